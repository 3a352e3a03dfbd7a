"""The server under a cloud that never answers, and its socket and signals."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from driver import controller_base
from driver import server as server_module
from driver.controller import ControllerService
from driver.endpoint import Endpoint, EndpointError
from driver.identity import IdentityService
from driver.server import Server
from proto import csi_pb2
from providers.deadline import Deadline
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider, hang
from tests.unit.driver.rig import Client, connect, controller, refused, serving

Code = grpc.StatusCode


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until ``condition`` holds; fail after ``seconds``."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not come to pass in time"
        time.sleep(0.005)


def _wait(event: threading.Event) -> None:
    assert event.wait(60)


def hung_creates(
    pool: ThreadPoolExecutor, client: Client, number: int, timeout: float
) -> list[Future[object]]:
    """Calls of CreateVolume, each of another volume, that the cloud never answers."""
    return [pool.submit(client.create, f"hung-{index}", timeout=timeout) for index in range(number)]


def test_a_cloud_that_never_answers_stops_neither_probe_nor_other_volumes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Field case B3, with ten hung calls: each ends by its deadline and leaves no lock."""
    # A reserve for our own answer that a busy machine does not use up.
    monkeypatch.setattr(controller_base, "seconds_left", lambda *_: 1.5)
    cloud = MemoryCloud()
    cloud.before["create_volume"] += [hang] * 10
    with controller(MemoryProvider(cloud)) as client, ThreadPoolExecutor(10) as pool:
        other = client.controller.DeleteVolume.future(
            csi_pb2.DeleteVolumeRequest(volume_id="pvc-x"), timeout=30
        )
        calls = hung_creates(pool, client, 10, timeout=60)
        wait_for(lambda: cloud.calls.count("create_volume") == 10)
        assert client.identity.Probe(csi_pb2.ProbeRequest(), timeout=30).ready.value
        client.delete("pvc-y")
        other.result()
        for call in calls:
            with refused(Code.DEADLINE_EXCEEDED) as refusal:
                call.result()
            assert "continues on retry" in refusal.message, "our own words, before the client gives up"
        monkeypatch.undo()
        for index in range(10):
            assert client.create(f"hung-{index}").volume_id


def test_more_calls_than_the_server_takes_are_sent_away_and_probe_still_answers() -> None:
    """Field case B3: the pool is never full of slow calls."""
    cloud = MemoryCloud()
    release = threading.Event()
    cloud.before["create_volume"] += [lambda _deadline: _wait(release)] * 4
    services = {
        "Identity": IdentityService(can_expand=True),
        "Controller": ControllerService(MemoryProvider(cloud)),
    }
    with serving(services, concurrent_calls=4) as client, ThreadPoolExecutor() as pool:
        calls = hung_creates(pool, client, 4, timeout=120)
        wait_for(lambda: cloud.calls.count("create_volume") == 4)
        for index in range(30):
            with refused(Code.UNAVAILABLE):
                client.create(f"late-{index}")
        client.identity.Probe(csi_pb2.ProbeRequest(), timeout=30)
        client.controller.ControllerGetCapabilities(csi_pb2.ControllerGetCapabilitiesRequest(), timeout=30)
        assert not any(call.done() for call in calls)
        release.set()
        for call in calls:
            call.result()


def test_a_canceled_call_frees_its_volume() -> None:
    """Field case B3."""
    cloud = MemoryCloud()
    cloud.before["create_volume"].append(hang)
    with controller(MemoryProvider(cloud)) as client:
        request = csi_pb2.CreateVolumeRequest(name="pvc-1")
        request.volume_capabilities.add().mount.fs_type = "ext4"
        request.volume_capabilities[
            0
        ].access_mode.mode = csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
        call = client.controller.CreateVolume.future(request, timeout=60)
        wait_for(lambda: "create_volume" in cloud.calls)
        with refused(Code.ABORTED):
            client.create()
        call.cancel()
        wait_for(lambda: _created(client))


def _created(client: Client) -> bool:
    try:
        return bool(client.create().volume_id)
    except grpc.RpcError:
        return False


def test_a_call_without_deadline_still_gets_one() -> None:
    """Every wait is bounded, whatever the caller leaves out."""
    seen: list[float] = []

    def note(deadline: Deadline) -> None:
        seen.append(deadline.remaining())

    cloud = MemoryCloud()
    cloud.before["delete_volume"].append(note)
    with controller(MemoryProvider(cloud)) as client:
        client.controller.DeleteVolume(csi_pb2.DeleteVolumeRequest(volume_id="pvc-1"))
    assert 60 < seen[0] <= 120


def test_stopping_lets_calls_end_and_takes_no_new_ones(tmp_path: Path) -> None:
    began, release = threading.Event(), threading.Event()

    class Slow:
        def GetCapacity(self, _request: object, _context: object) -> csi_pb2.GetCapacityResponse:
            began.set()
            release.wait(60)
            return csi_pb2.GetCapacityResponse(available_capacity=7)

    endpoint = Endpoint(tmp_path / "s")
    server = Server(endpoint, {"Controller": Slow()})
    server.start()
    with connect(endpoint.target) as client, ThreadPoolExecutor() as pool:
        answer = client.controller.GetCapacity.future(csi_pb2.GetCapacityRequest(), timeout=60)
        assert began.wait(60)
        stopping = pool.submit(server.stop, 60)
        wait_for(lambda: not _accepts(endpoint))
        release.set()
        assert answer.result().available_capacity == 7
        assert stopping.result() is True
    assert not endpoint.path.exists()


def test_a_connection_that_never_speaks_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path / "s")
    server = Server(endpoint, {"Identity": IdentityService(can_expand=False)})
    server.start()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(endpoint.path))
        started = time.monotonic()
        assert server.stop(120)
        assert time.monotonic() - started < 60


def test_stopping_cancels_calls_after_the_grace_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field case B3: a provider that watches its deadline is told; one that does not is reported."""
    cloud = MemoryCloud()
    began, stuck = threading.Event(), threading.Event()

    def begin_and_hang(deadline: Deadline) -> None:
        began.set()
        hang(deadline)

    cloud.before["delete_volume"].append(begin_and_hang)

    class Deaf:
        def GetCapacity(self, _request: object, _context: object) -> csi_pb2.GetCapacityResponse:
            began.set()
            stuck.wait(60)
            return csi_pb2.GetCapacityResponse()

    for service, call, ended, seconds in (
        (ControllerService(MemoryProvider(cloud)), "DeleteVolume", True, 30.0),
        (Deaf(), "GetCapacity", False, 0.5),
    ):
        monkeypatch.setattr(server_module, "_CANCELED_SECONDS", seconds)
        began.clear()
        endpoint = Endpoint(tmp_path / call)
        server = Server(endpoint, {"Controller": service})
        server.start()
        with connect(endpoint.target) as client:
            request = getattr(csi_pb2, f"{call}Request")()
            if call == "DeleteVolume":
                request.volume_id = "pvc-1"
            waiting = getattr(client.controller, call).future(request, timeout=120)
            assert began.wait(60)
            assert server.stop(0.2) is ended
            assert waiting.exception().code() in (Code.CANCELLED, Code.UNAVAILABLE)
    stuck.set()


def _accepts(endpoint: Endpoint) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(endpoint.path)) == 0


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = Server(Endpoint(path), {"Identity": IdentityService(can_expand=False)})
    server.start()
    with connect(f"unix:{path}") as client:
        assert client.identity.Probe(csi_pb2.ProbeRequest(), timeout=60).ready.value
    assert server.stop(0)


def test_a_live_socket_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    services = {"Identity": IdentityService(can_expand=False)}
    first = Server(Endpoint(path), services)
    first.start()
    second = Server(Endpoint(path), services)
    with pytest.raises(EndpointError, match="another process serves"):
        second.start()
    with connect(f"unix:{path}") as client:
        assert client.identity.Probe(csi_pb2.ProbeRequest(), timeout=60).ready.value
    assert first.stop(0)


def test_a_busy_listener_counts_as_live(tmp_path: Path) -> None:
    """A process that does not accept, its backlog full, is not dead."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(str(path))
        with pytest.raises(EndpointError, match="another process serves"):
            Endpoint(path).clear()
        for client in waiting:
            client.close()


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(EndpointError, match="not a socket"):
        Endpoint(path).clear()
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(EndpointError, match="not a socket"):
        Endpoint(link).clear()
    assert path.read_text() == "precious"
    with pytest.raises(EndpointError, match="not a directory"):
        Endpoint(tmp_path / "none" / "s").clear()


def test_a_successor_can_start_while_the_old_process_drains(tmp_path: Path) -> None:
    """A rolling restart: the old process neither blocks the new one nor removes its socket."""
    path = tmp_path / "s"
    began, release = threading.Event(), threading.Event()

    class Slow:
        def GetCapacity(self, _request: object, _context: object) -> csi_pb2.GetCapacityResponse:
            began.set()
            release.wait(60)
            return csi_pb2.GetCapacityResponse()

    old = Server(Endpoint(path), {"Controller": Slow()})
    old.start()
    with connect(f"unix:{path}") as client, ThreadPoolExecutor() as pool:
        answer = client.controller.GetCapacity.future(csi_pb2.GetCapacityRequest(), timeout=60)
        assert began.wait(60)
        stopping = pool.submit(old.stop, 60)
        wait_for(lambda: not _accepts(Endpoint(path)))
        new = Server(Endpoint(path), {"Identity": IdentityService(can_expand=False)})
        new.start()
        release.set()
        assert stopping.result()
        answer.result()
    with connect(f"unix:{path}") as client:
        assert client.identity.Probe(csi_pb2.ProbeRequest(), timeout=60).ready.value
    assert new.stop(0)


@pytest.mark.parametrize(
    ("text", "path"), [("unix:///run/csi/csi.sock", "/run/csi/csi.sock"), ("unix:/a", "/a")]
)
def test_endpoints_are_unix_urls(text: str, path: str) -> None:
    assert Endpoint.parse(text).path == Path(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unix:",
        "unix://",
        "unix:///",
        "unix://host/path",
        "/csi.sock",
        "tcp://127.0.0.1:1",
        "unix:relative",
        "unix:///" + "x" * 107,
    ],
)
def test_other_endpoints_are_refused(text: str) -> None:
    with pytest.raises(EndpointError):
        Endpoint.parse(text)


def test_identity_tells_name_version_and_capabilities() -> None:
    with serving({"Identity": IdentityService(can_expand=True, readiness=lambda: "not now")}) as client:
        info = client.identity.GetPluginInfo(csi_pb2.GetPluginInfoRequest(), timeout=60)
        assert info.name == "caa-csi-block.csi.confidentialcontainers.io"
        assert info.vendor_version[0].isdecimal()
        offered = client.identity.GetPluginCapabilities(csi_pb2.GetPluginCapabilitiesRequest(), timeout=60)
        kinds = csi_pb2.PluginCapability
        assert offered.capabilities[0].service.type == kinds.Service.CONTROLLER_SERVICE
        assert offered.capabilities[1].volume_expansion.type == kinds.VolumeExpansion.ONLINE
        probe = client.identity.Probe(csi_pb2.ProbeRequest(), timeout=60)
        assert probe.HasField("ready")
        assert not probe.ready.value
    with serving({"Identity": IdentityService(can_expand=False)}) as client:
        offered = client.identity.GetPluginCapabilities(csi_pb2.GetPluginCapabilitiesRequest(), timeout=60)
        assert len(offered.capabilities) == 1


def test_garbage_on_the_wire_is_answered_and_survived() -> None:
    with controller(MemoryProvider(MemoryCloud())) as client:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = client.channel.unary_unary(
            "/csi.v1.Controller/CreateVolume"
        )
        with refused(Code.INTERNAL):
            call(b"\xff\xff\xff", timeout=60)
        assert client.create().volume_id
