"""The data hub's client over a real socket, against hubs that help, refuse, and fail."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.cdh import DataHub, DataHubClient, EncryptedOpen
from agent.errors import Refused, Unavailable
from agent.keys import fetch_key
from agent.ttrpc import Client, Server, TtrpcError
from proto import cdh_pb2
from tests.peers.ttrpc_raw import read_frame, response, scripted_server

URI = "kbs:///default/key/vol1"
KEY = b"S3CR3T-key-bytes-of-some-length!"
OPEN: dict[str, str] = {
    "device_path": "/dev/mapper/caa-vol-0-shield",
    "key_uri": URI,
    "mapper_name": "caa-vol-0",
    "link_path": "/run/confidential-csi/caa-vol-0",
}


class Hub:
    """A data hub whose two methods do what a test says; counts the calls."""

    def __init__(
        self, release: Callable[[str], bytes] = lambda _: KEY, mount: Callable[[], object] = lambda: None
    ) -> None:
        self._release = release
        self._mount = mount
        self.released: list[str] = []
        self.mounted: list[cdh_pb2.SecureMountRequest] = []

    def get_resource(self, payload: bytes) -> bytes:
        self.released.append(cdh_pb2.GetResourceRequest.FromString(payload).ResourcePath)
        return cdh_pb2.GetResourceResponse(Resource=self._release(self.released[-1])).SerializeToString()

    def secure_mount(self, payload: bytes) -> bytes:
        self.mounted.append(cdh_pb2.SecureMountRequest.FromString(payload))
        self._mount()
        return cdh_pb2.SecureMountResponse().SerializeToString()

    @contextmanager
    def serving(self, path: Path) -> Iterator[None]:
        server = Server(
            str(path),
            {
                ("api.GetResourceService", "GetResource"): self.get_resource,
                ("api.SecureMountService", "SecureMount"): self.secure_mount,
            },
        )
        server.start()
        try:
            yield
        finally:
            server.stop()


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise TtrpcError(code, "the hub's own words, with " + KEY.decode())

    return fail


class Stuck:
    """A hub's doing that does not come to an end before ``let_go``, the first ``times`` times."""

    def __init__(self, times: int = 1000) -> None:
        self._times = times
        self._end = threading.Event()

    def __call__(self, *_: object) -> bytes:
        self._times -= 1
        if self._times >= 0:
            self._end.wait(60)
        return KEY

    def let_go(self) -> None:
        self._end.set()


def everything_shown(error: BaseException) -> str:
    """All that a log could hold of it."""
    return "".join(traceback.format_exception(error)) + repr(error)


def test_a_resource_comes_byte_for_byte(tmp_path: Path) -> None:
    key = bytes(range(256)) + b"\n"
    hub = Hub(release=lambda _: key)
    with hub.serving(tmp_path / "s"):
        client: DataHub = DataHubClient(str(tmp_path / "s"))
        assert client.get_resource(URI) == key
        assert fetch_key(client, "default/key/vol1") == key
    assert hub.released == [URI, URI]


def test_opening_sends_exactly_these_options(tmp_path: Path) -> None:
    """Field cases I1 (never ``empty``) and I7 (one selector, no integrity by accident, always a key)."""
    hub = Hub()
    with hub.serving(tmp_path / "s"):
        DataHubClient(str(tmp_path / "s")).open_encrypted(**OPEN)
    (request,) = hub.mounted
    assert request == cdh_pb2.SecureMountRequest(
        volume_type="block-device",
        options={
            "devicePath": "/dev/mapper/caa-vol-0-shield",
            "sourceType": "encrypted",
            "targetType": "device",
            "encryptionType": "luks2",
            "key": URI,
            "mapperName": "caa-vol-0",
        },
        mount_point="/run/confidential-csi/caa-vol-0",
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"key_uri": ""},
        {"key_uri": "default/key/vol1"},
        {"key_uri": "kbs:///"},
        {"key_uri": "kbs:///default/key"},
        {"key_uri": "kbs:///kbs:///default/key/vol1"},
        {"key_uri": "KBS:///default/key/vol1"},
        {"key_uri": "file:///etc/hostname"},
        {"key_uri": "sealed.a.b.c"},
        {"key_uri": URI + "\n"},
        {"device_path": ""},
        {"device_path": "vdb"},
        {"device_path": "/dev/../etc/shadow"},
        {"device_path": "/dev//vdb"},
        {"device_path": "/dev/vdb\0"},
        {"mapper_name": ""},
        {"mapper_name": "a/b"},
        {"mapper_name": "-d"},
        {"mapper_name": "caa vol"},
        {"mapper_name": "caa-vol-0\n"},
        {"mapper_name": "x" * 128},
        {"link_path": ""},
        {"link_path": "run/x"},
        {"link_path": "/run/../x"},
    ],
    ids=repr,
)
def test_a_value_that_the_hub_would_misread_is_refused_before_it_is_asked(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    """Field case I7."""
    hub = Hub()
    with hub.serving(tmp_path / "s"), pytest.raises(Refused) as raised:
        DataHubClient(str(tmp_path / "s")).open_encrypted(**{**OPEN, **changes})
    assert raised.value.rule in {"data-hub-request", "key-id"}
    assert hub.mounted == []


def test_the_builder_can_not_be_given_anything_else() -> None:
    """Field case I7: no deviceId beside the path, no other source, no integrity flag."""
    assert set(EncryptedOpen.__dataclass_fields__) == {"device_path", "key_uri", "mapper_name", "link_path"}


def test_a_malformed_uri_is_not_asked_for(tmp_path: Path) -> None:
    hub = Hub()
    with hub.serving(tmp_path / "s"):
        for uri in (
            "",
            "default/key/vol1",
            "file:///etc/shadow",
            "kbs:///a/b",
            "kbs:///a/b/..",
            "kbs:///a/b/c\n",
        ):
            with pytest.raises(Refused):
                DataHubClient(str(tmp_path / "s")).get_resource(uri)
    assert hub.released == []


@pytest.mark.parametrize("code", [13, 2, 5, 7, 14, 16])
def test_a_refusal_is_final_names_the_key_and_shows_nothing_of_the_hubs_words(
    tmp_path: Path, code: int
) -> None:
    """Field case J3: no retry storm on a refusal; the error names the key id but not the key."""
    hub = Hub(release=failing(code), mount=failing(code))
    with hub.serving(tmp_path / "s"):
        client = DataHubClient(str(tmp_path / "s"))
        attempts: Mapping[str, Callable[[], object]] = {
            "release": lambda: client.get_resource(URI),
            "open": lambda: client.open_encrypted(**OPEN),
        }
        for attempt in attempts.values():
            started = time.monotonic()
            with pytest.raises(Unavailable) as raised:
                attempt()
            assert time.monotonic() - started < 30
            assert raised.value.rule == "data-hub-failed"
            assert "default/key/vol1" in str(raised.value)
            assert KEY.decode() not in everything_shown(raised.value)
    assert (len(hub.released), len(hub.mounted)) == (1, 1)


@pytest.mark.parametrize("code", [3, 12], ids=["Rust server", "Go server"])
def test_a_hub_without_the_service_is_told_apart(tmp_path: Path, code: int) -> None:
    """Contracts 3: an unknown service is 12 from the Go server and 3 from the Rust one."""
    hub = Hub(release=failing(code))
    with hub.serving(tmp_path / "s"), pytest.raises(Unavailable) as raised:
        DataHubClient(str(tmp_path / "s")).get_resource(URI)
    assert raised.value.rule == "data-hub-unsupported"
    assert len(hub.released) == 1


def test_an_absent_hub_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    """Field case J3: the socket is absent."""
    client = DataHubClient(str(tmp_path / "s"), timeout=0.6)
    for attempt in (lambda: client.get_resource(URI), lambda: client.open_encrypted(**OPEN)):
        started = time.monotonic()
        with pytest.raises(Unavailable) as raised:
            attempt()
        assert raised.value.rule == "data-hub-unavailable"
        assert "default/key/vol1" in str(raised.value)
        assert 0.3 < time.monotonic() - started < 30


def test_a_hub_that_comes_up_late_is_used(tmp_path: Path) -> None:
    hub = Hub()
    result: list[bytes] = []
    thread = threading.Thread(
        target=lambda: result.append(DataHubClient(str(tmp_path / "s"), timeout=60).get_resource(URI))
    )
    thread.start()
    time.sleep(0.3)
    with hub.serving(tmp_path / "s"):
        thread.join(60)
    assert result == [KEY]


def test_a_socket_left_by_a_dead_hub_counts_as_absent(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(tmp_path / "s"))
    with pytest.raises(Unavailable) as raised:
        DataHubClient(str(tmp_path / "s"), timeout=0.3).get_resource(URI)
    assert raised.value.rule == "data-hub-unavailable"


def test_a_release_that_times_out_is_tried_three_times_within_the_bound(tmp_path: Path) -> None:
    """Field case J3: bounded retries for timeouts."""
    stuck = Stuck()
    hub = Hub(release=stuck)
    with hub.serving(tmp_path / "s"):
        started = time.monotonic()
        with pytest.raises(Unavailable) as raised:
            DataHubClient(str(tmp_path / "s"), timeout=3).get_resource(URI)
        assert 2.9 < time.monotonic() - started < 30
        stuck.let_go()
    assert raised.value.rule == "data-hub-timeout"
    assert "default/key/vol1" in str(raised.value)
    assert hub.released == [URI] * 3


def test_a_release_that_succeeds_on_the_second_try_is_returned(tmp_path: Path) -> None:
    stuck = Stuck(times=1)
    hub = Hub(release=stuck)
    with hub.serving(tmp_path / "s"):
        assert DataHubClient(str(tmp_path / "s"), timeout=3).get_resource(URI) == KEY
        stuck.let_go()
    assert len(hub.released) == 2


def test_a_hub_whose_own_clock_runs_out_counts_as_a_timeout(tmp_path: Path) -> None:
    hub = Hub(release=failing(4))
    with hub.serving(tmp_path / "s"), pytest.raises(Unavailable) as raised:
        DataHubClient(str(tmp_path / "s")).get_resource(URI)
    assert raised.value.rule == "data-hub-timeout"
    assert len(hub.released) == 3


def test_an_open_that_times_out_is_not_repeated(tmp_path: Path) -> None:
    """The first try may have opened the device; a second would only fail on the name being taken."""
    stuck = Stuck()
    hub = Hub(mount=stuck)
    with hub.serving(tmp_path / "s"):
        started = time.monotonic()
        with pytest.raises(Unavailable) as raised:
            DataHubClient(str(tmp_path / "s"), timeout=1).open_encrypted(**OPEN)
        assert 0.9 < time.monotonic() - started < 30
        stuck.let_go()
    assert raised.value.rule == "data-hub-timeout"
    assert len(hub.mounted) == 1


def test_a_hub_that_dies_in_the_middle_of_a_call_is_reported(tmp_path: Path) -> None:
    calls: list[None] = []

    def script(connection: socket.socket) -> None:
        read_frame(connection)
        calls.append(None)

    with scripted_server(tmp_path / "s", script):
        client = DataHubClient(str(tmp_path / "s"))
        for attempt in (lambda: client.get_resource(URI), lambda: client.open_encrypted(**OPEN)):
            with pytest.raises(Unavailable) as raised:
                attempt()
            assert raised.value.rule == "data-hub-unavailable"
            assert "default/key/vol1" in str(raised.value)
    assert len(calls) == 2


def test_an_answer_that_is_no_resource_is_reported_without_its_bytes(tmp_path: Path) -> None:
    def script(connection: socket.socket) -> None:
        read_frame(connection)
        connection.sendall(response(1, b"\xff" + KEY))
        connection.recv(1)

    with scripted_server(tmp_path / "s", script), pytest.raises(Unavailable) as raised:
        DataHubClient(str(tmp_path / "s")).get_resource(URI)
    assert raised.value.rule == "data-hub-protocol"
    assert KEY.decode() not in everything_shown(raised.value)


@pytest.mark.parametrize("resource", [b"", b"S3CR3T"])
def test_an_empty_or_short_key_is_refused(tmp_path: Path, resource: bytes) -> None:
    """Field case I7: an empty key is no key."""
    hub = Hub(release=lambda _: resource)
    with hub.serving(tmp_path / "s"), pytest.raises(Refused) as raised:
        fetch_key(DataHubClient(str(tmp_path / "s")), "default/key/vol1")
    assert raised.value.rule == "key-too-short"
    assert "S3CR3T" not in everything_shown(raised.value)


def test_volumes_are_opened_in_parallel_through_one_client(tmp_path: Path) -> None:
    barrier = threading.Barrier(4, timeout=60)

    def meet() -> None:
        barrier.wait()

    hub = Hub(mount=meet)
    failures: list[BaseException] = []

    def open_one(client: DataHubClient, index: int) -> None:
        try:
            client.open_encrypted(**{**OPEN, "mapper_name": f"caa-vol-{index}"})
        except BaseException as error:
            failures.append(error)

    with hub.serving(tmp_path / "s"):
        client = DataHubClient(str(tmp_path / "s"), timeout=60)
        threads = [threading.Thread(target=open_one, args=(client, index)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failures
    assert len(hub.mounted) == 4


def test_the_test_hub_refuses_what_it_does_not_serve(tmp_path: Path) -> None:
    with Hub().serving(tmp_path / "s"), Client(str(tmp_path / "s")) as client, pytest.raises(TtrpcError):
        client.call("api.SealedSecretService", "UnsealSecret", b"", 5)
