"""Both directions against containerd/ttrpc, the Go implementation that cloud-api-adaptor and Kata use."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.ttrpc import (
    MAX_DATA,
    Client,
    Code,
    Handler,
    Server,
    TtrpcConnectionError,
    TtrpcError,
    TtrpcTimeout,
)
from proto import cdh_pb2
from tests.peers.ttrpc_go import SERVICE, GoCall, go_calls, go_server, unwrapped, wrapped
from tests.tools.waiting import eventually


@pytest.fixture(scope="module")
def go_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("go") / "s"
    with go_server(path):
        yield path


@pytest.fixture
def client(go_socket: Path) -> Iterator[Client]:
    with Client(str(go_socket)) as connected:
        yield connected


def call(client: Client, method: str, value: bytes, timeout: float = 60.0) -> bytes:
    return unwrapped(client.call(SERVICE, method, wrapped(value), timeout))


def test_our_client_and_the_go_server_exchange_bytes(client: Client) -> None:
    for value in (b"", b"x", bytes(range(256)) * 1000):
        assert call(client, "Echo", value) == value


def test_our_client_gets_the_go_servers_answers_out_of_order(client: Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(call, client, "Sleep", b"30000")
        for value in (b"1", b"2"):
            assert call(client, "Echo", value) == value
        assert not slow.done()
        client.close()
        assert isinstance(slow.exception(60), TtrpcConnectionError)


def test_our_client_makes_many_calls_at_once_to_the_go_server(client: Client) -> None:
    values = [b"%d " % i * 100 for i in range(400)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda value: call(client, "Echo", value), values)) == values


def test_our_client_raises_the_go_servers_status(client: Client) -> None:
    with pytest.raises(TtrpcError) as raised:
        call(client, "Fail", b"7 not allowed")
    assert (raised.value.code, raised.value.message) == (7, "not allowed")


@pytest.mark.parametrize(("service", "method"), [("no.such", "Echo"), (SERVICE, "NoSuch")])
def test_the_go_server_answers_12_to_what_it_does_not_know(client: Client, service: str, method: str) -> None:
    with pytest.raises(TtrpcError) as raised:
        client.call(service, method, b"", 5)
    assert raised.value.code == Code.UNIMPLEMENTED


def test_the_go_server_learns_how_long_our_client_waits(client: Client) -> None:
    assert 40_000 < int(call(client, "Remaining", b"", timeout=60)) <= 60_000


def test_our_client_times_out_on_the_go_server_and_goes_on(client: Client) -> None:
    started = time.monotonic()
    with pytest.raises(TtrpcTimeout):
        call(client, "Sleep", b"60000", timeout=0.2)
    assert time.monotonic() - started < 20
    assert call(client, "Echo", b"next") == b"next"


def test_4_mib_to_and_from_the_go_server(client: Client) -> None:
    # A request's envelope is larger than an answer's, so what fits one way fits back.
    room = MAX_DATA - 60
    assert len(call(client, "Echo", bytes(room))) == room
    with pytest.raises(TtrpcError) as raised:
        call(client, "Echo", bytes(MAX_DATA))
    assert raised.value.code == Code.RESOURCE_EXHAUSTED


def test_an_answer_the_go_server_can_not_send_ends_the_connection(go_socket: Path) -> None:
    with Client(str(go_socket)) as client, pytest.raises(TtrpcConnectionError):
        call(client, "Fill", b"%d" % MAX_DATA)


def test_our_client_sees_the_go_server_die_in_the_middle_of_a_call(tmp_path: Path) -> None:
    with go_server(tmp_path / "s"), Client(str(tmp_path / "s")) as client, ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(call, client, "Sleep", b"50000")
        eventually(lambda: client._next_stream_id > 1)
        assert call(client, "Echo", b"sent after it") == b"sent after it"
        dying = pool.submit(call, client, "Exit", b"")
        for ended in (dying, waiting):
            with pytest.raises(TtrpcConnectionError) as raised:
                ended.result(60)
            assert raised.value.sent


class Overtaken:
    """A method whose first call, of the payload ``first``, returns a good while after the second one."""

    def __init__(self) -> None:
        self._is_first, self._second = threading.Lock(), threading.Event()
        self.first = b""

    def __call__(self, payload: bytes) -> bytes:
        if self._is_first.acquire(blocking=False):
            self.first = payload
            assert self._second.wait(60)
            time.sleep(1)
        self._second.set()
        return payload


def sleep(payload: bytes) -> bytes:
    time.sleep(int(unwrapped(payload)) / 1000)
    return payload


def refuse(_: bytes) -> bytes:
    raise TtrpcError(7, "not allowed")


def get_resource(payload: bytes) -> bytes:
    uri = cdh_pb2.GetResourceRequest.FromString(payload).ResourcePath
    return cdh_pb2.GetResourceResponse(Resource=uri.encode()).SerializeToString()


@contextmanager
def serving(path: Path, **more: Handler) -> Iterator[None]:
    handlers: dict[tuple[str, str], Handler] = {
        **{("peer.Python", name): handler for name, handler in more.items()},
        ("peer.Python", "Echo"): lambda payload: payload,
        ("peer.Python", "Sleep"): sleep,
        ("peer.Python", "Fail"): refuse,
        ("peer.Python", "Fill"): lambda payload: wrapped(bytes(int(unwrapped(payload)))),
        ("api.GetResourceService", "GetResource"): get_resource,
    }
    server = Server(str(path), handlers)
    server.start()
    try:
        yield
    finally:
        server.stop()


@pytest.fixture
def our_socket(tmp_path: Path) -> Iterator[Path]:
    with serving(tmp_path / "s"):
        yield tmp_path / "s"


def python(method: str, value: bytes = b"", timeout_ms: int = 0) -> GoCall:
    return GoCall("peer.Python", method, wrapped(value), timeout_ms)


def test_the_go_client_makes_many_calls_at_once_to_our_server(our_socket: Path) -> None:
    values = [b"%d " % i * 100 for i in range(200)]
    results = go_calls(our_socket, [python("Echo", value) for value in values])
    assert {one.index: unwrapped(one.payload) for one in results} == dict(enumerate(values))
    assert not any(one.code for one in results)


def test_the_go_client_gets_our_answers_out_of_order(tmp_path: Path) -> None:
    overtaken = Overtaken()
    with serving(tmp_path / "s", Overtaken=overtaken):
        results = go_calls(tmp_path / "s", [python("Overtaken", value) for value in (b"one", b"other")])
    assert {unwrapped(one.payload) for one in results} == {b"one", b"other"}
    assert results[1].payload == overtaken.first


def test_the_go_client_reads_our_statuses_and_goes_on(our_socket: Path) -> None:
    results = go_calls(
        our_socket,
        [
            python("Fail"),
            python("NoSuch"),
            GoCall("no.such", "Echo", b""),
            python("Fill", b"%d" % MAX_DATA),
            python("Echo", b"fine"),
        ],
    )
    by_index = {one.index: one for one in results}
    assert [by_index[i].code for i in range(5)] == [
        7,
        Code.UNIMPLEMENTED,
        Code.UNIMPLEMENTED,
        Code.RESOURCE_EXHAUSTED,
        0,
    ]
    assert "not allowed" in by_index[0].message
    assert not any(one.closed for one in results)


def test_4_mib_from_the_go_client_and_back(our_socket: Path) -> None:
    room = MAX_DATA - 60
    (result,) = go_calls(our_socket, [python("Echo", bytes(room))])
    assert (result.code, len(unwrapped(result.payload))) == (0, room)


def test_a_go_client_that_gave_up_does_not_disturb_the_others(our_socket: Path) -> None:
    results = go_calls(our_socket, [python("Sleep", b"1500", timeout_ms=100), python("Sleep", b"500")])
    results.sort(key=lambda one: one.index)
    # The client's own clock or our status, whichever comes first: both say that time is up.
    assert "deadline exceeded" in results[0].message.lower() or results[0].code == Code.DEADLINE_EXCEEDED
    assert results[1].code == 0


def test_the_go_client_sees_our_server_stop_in_the_middle_of_a_call(tmp_path: Path) -> None:
    began = threading.Event()

    def begin_and_sleep(payload: bytes) -> bytes:
        began.set()
        time.sleep(1)
        return payload

    with ThreadPoolExecutor(1) as pool:
        with serving(tmp_path / "s", Begin=begin_and_sleep):
            waiting = pool.submit(go_calls, tmp_path / "s", [python("Begin")])
            assert began.wait(60)
        (result,) = waiting.result(60)
    assert result.closed


def test_the_go_client_reads_a_data_hubs_answer_from_our_server(our_socket: Path) -> None:
    request = cdh_pb2.GetResourceRequest(ResourcePath="kbs:///a/b/c").SerializeToString()
    (result,) = go_calls(our_socket, [GoCall("api.GetResourceService", "GetResource", request)])
    assert cdh_pb2.GetResourceResponse.FromString(result.payload).Resource == b"kbs:///a/b/c"
