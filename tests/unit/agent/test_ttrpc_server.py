"""The server against clients that do right, wrong, or nothing."""

from __future__ import annotations

import logging
import select
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import ttrpc_server
from agent.ttrpc import MAX_DATA, Client, Code, Handler, Server, TtrpcError
from proto import ttrpc_pb2
from tests.peers.ttrpc_raw import DATA, REQUEST, RESPONSE, connected, frame, read_frame, request, response


def fail(payload: bytes) -> bytes:
    code, _, message = payload.partition(b" ")
    raise TtrpcError(int(code), message.decode())


def crash(payload: bytes) -> bytes:
    raise RuntimeError(payload.decode())


HANDLERS: Mapping[tuple[str, str], Handler] = {
    ("s", "echo"): lambda payload: payload,
    ("s", "fail"): fail,
    ("s", "crash"): crash,
    ("s", "fill"): lambda payload: bytes(int(payload)),
    ("s", "wrong"): cast(Handler, lambda _: "text"),
}


@contextmanager
def serving(
    path: Path, handlers: Mapping[tuple[str, str], Handler] = HANDLERS, frame_timeout: float = 30.0
) -> Iterator[Server]:
    server = Server(str(path), handlers, frame_timeout=frame_timeout)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with serving(tmp_path / "s"):
        yield tmp_path / "s"


def test_the_handler_gets_the_payload_and_the_caller_its_answer(path: Path) -> None:
    with connected(path) as connection:
        connection.sendall(request(1, "echo", b"\0\xff binary"))
        assert read_frame(connection) == (1, RESPONSE, 0, response(1, b"\0\xff binary")[10:])


def test_answers_come_when_they_are_ready_not_in_order(tmp_path: Path) -> None:
    ends = {b"1": threading.Event(), b"3": threading.Event(), b"5": threading.Event()}

    def wait(payload: bytes) -> bytes:
        assert ends[payload].wait(60)
        return payload

    with serving(tmp_path / "s", {("s", "wait"): wait}), connected(tmp_path / "s") as connection:
        for payload in ends:
            connection.sendall(request(int(payload), "wait", payload))
        for payload in (b"5", b"3", b"1"):
            ends[payload].set()
            assert read_frame(connection).stream_id == int(payload)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (request(1, "nothing"), Code.UNIMPLEMENTED),
        (request(1, "echo", service="other"), Code.UNIMPLEMENTED),
        (request(2, "echo"), Code.INVALID_ARGUMENT),
        (request(0, "echo"), Code.INVALID_ARGUMENT),
        (frame(1, DATA, b"x"), Code.INVALID_ARGUMENT),
        (frame(1, REQUEST, b"\xff\xff"), Code.INVALID_ARGUMENT),
        (frame(1, REQUEST, b"\x0a\x02\xff\xfe"), Code.INVALID_ARGUMENT),
        (frame(1, REQUEST, request(1, "echo")[10:], flags=2), Code.UNIMPLEMENTED),
        (frame(1, REQUEST, bytes(MAX_DATA + 1)), Code.RESOURCE_EXHAUSTED),
        (request(1, "echo", timeout_nano=-1), Code.DEADLINE_EXCEEDED),
        (request(1, "fail", b"5 gone"), 5),
        (request(1, "fail", b"0 success is no failure"), Code.INTERNAL),
        (request(1, "fail", b"9999999999 no such code"), Code.INTERNAL),
        (request(1, "crash", b"boom"), Code.INTERNAL),
        (request(1, "wrong"), Code.INTERNAL),
        (request(1, "fill", b"%d" % MAX_DATA), Code.RESOURCE_EXHAUSTED),
    ],
    ids=[
        "unknown method",
        "unknown service",
        "even stream",
        "stream 0",
        "data frame",
        "unreadable request",
        "service is not UTF-8",
        "streaming call",
        "oversized request",
        "expired timeout",
        "handler's status",
        "handler's status 0",
        "handler's status out of range",
        "handler crashes",
        "handler breaks its contract",
        "oversized answer",
    ],
)
def test_what_can_not_be_done_is_answered_with_its_code_and_the_connection_lives_on(
    path: Path, message: bytes, code: int
) -> None:
    with connected(path) as connection:
        connection.sendall(message)
        answer = read_frame(connection)
        assert answer.stream_id == int.from_bytes(message[4:8], "big")
        assert answer.response.status.code == code
        assert answer.response.status.message
        assert not answer.response.payload
        connection.sendall(request(3, "echo", b"still here"))
        assert read_frame(connection).response.payload == b"still here"


@pytest.mark.parametrize("second", [5, 3, 1])
def test_a_stream_id_that_does_not_rise_is_refused(path: Path, second: int) -> None:
    with connected(path) as connection:
        connection.sendall(request(5, "echo", b"first"))
        assert read_frame(connection).response.payload == b"first"
        connection.sendall(request(second, "echo", b"second"))
        assert read_frame(connection).response.status.code == Code.INVALID_ARGUMENT


@pytest.mark.parametrize("kind", [0, RESPONSE, 4, 255])
def test_message_types_of_later_versions_are_passed_over(path: Path, kind: int) -> None:
    with connected(path) as connection:
        connection.sendall(frame(1, kind, b"x") + request(1, "echo", b"next"))
        assert read_frame(connection).response.payload == b"next"


def test_an_answer_of_exactly_4_mib_arrives(path: Path) -> None:
    overhead = len(ttrpc_pb2.Response(payload=bytes(MAX_DATA - 100)).SerializeToString()) - (MAX_DATA - 100)
    with Client(str(path)) as client:
        assert len(client.call("s", "fill", b"%d" % (MAX_DATA - overhead), 20)) == MAX_DATA - overhead
        with pytest.raises(TtrpcError) as raised:
            client.call("s", "fill", b"%d" % (MAX_DATA - overhead + 1), 20)
    assert raised.value.code == Code.RESOURCE_EXHAUSTED


def test_a_reserved_length_drops_the_connection_and_no_other(path: Path) -> None:
    with connected(path) as good, connected(path) as bad:
        bad.sendall(frame(1, REQUEST, b"", length=1 << 31))
        assert bad.recv(1) == b""
        good.sendall(request(1, "echo", b"fine"))
        assert read_frame(good).response.payload == b"fine"


def test_a_request_not_done_in_time_is_answered_once_with_deadline_exceeded(tmp_path: Path) -> None:
    finish, finished = threading.Event(), threading.Event()

    def handler(payload: bytes) -> bytes:
        finish.wait(60)
        finished.set()
        return payload

    handlers = {**HANDLERS, ("s", "stuck"): handler}
    with serving(tmp_path / "s", handlers), connected(tmp_path / "s") as connection:
        started = time.monotonic()
        connection.sendall(request(1, "stuck", timeout_nano=100_000_000))
        assert read_frame(connection).response.status.code == Code.DEADLINE_EXCEEDED
        assert 0.1 <= time.monotonic() - started < 30
        finish.set()
        assert finished.wait(60)
        time.sleep(0.1)
        connection.sendall(request(3, "echo"))
        # Had the handler's late result been sent too, it would come before this one.
        assert read_frame(connection).stream_id == 3


def test_neither_the_clients_nor_the_logs_learn_what_a_crash_was_about(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), connected(path) as connection:
        connection.sendall(request(1, "crash", b"S3CR3T"))
        assert "S3CR3T" not in read_frame(connection).response.status.message
    assert "RuntimeError" in caplog.text
    assert "S3CR3T" not in caplog.text


def test_a_status_message_without_end_is_cut(path: Path) -> None:
    with connected(path) as connection:
        connection.sendall(request(1, "fail", b"13 " + b"x" * 100_000))
        assert len(read_frame(connection).response.status.message) == 4096


def test_a_slow_frame_is_dropped_in_time_and_holds_up_nobody(tmp_path: Path) -> None:
    incomplete = request(1, "echo", b"never whole")[:-1]
    with serving(tmp_path / "patient", frame_timeout=600), connected(tmp_path / "patient") as slow:
        slow.sendall(incomplete)
        with connected(tmp_path / "patient") as other:
            other.sendall(request(1, "echo", b"quick"))
            assert read_frame(other).response.payload == b"quick"
    with (
        serving(tmp_path / "s", frame_timeout=0.5),
        connected(tmp_path / "s") as slow,
        connected(tmp_path / "s") as other,
    ):
        slow.sendall(incomplete)
        assert slow.recv(1) == b""
        # An idle connection is not a slow one.
        other.sendall(request(3, "echo", b"still"))
        assert read_frame(other).response.payload == b"still"


def test_a_client_that_never_reads_is_dropped_and_holds_up_nobody(tmp_path: Path) -> None:
    with serving(tmp_path / "s", frame_timeout=0.4), connected(tmp_path / "s") as deaf:
        for stream_id in (1, 3, 5):
            deaf.sendall(request(stream_id, "fill", b"4000000"))
        with Client(str(tmp_path / "s")) as client:
            assert client.call("s", "echo", b"quick", 30) == b"quick"
        hung_up = select.poll()
        hung_up.register(deaf, 0)
        assert hung_up.poll(60_000)
        with suppress(ConnectionError):
            received = 0
            while chunk := deaf.recv(1 << 20):
                received += len(chunk)
        assert received < 4_000_000


def test_a_client_that_only_asks_and_never_reads_is_dropped(tmp_path: Path) -> None:
    with serving(tmp_path / "s", frame_timeout=0.4), connected(tmp_path / "s") as deaf:
        started = time.monotonic()
        with pytest.raises(ConnectionError):
            for stream_id in range(1, 1 << 20, 2):
                deaf.sendall(request(stream_id, "echo", b"x"))
        assert time.monotonic() - started < 60


def test_one_connection_runs_a_bounded_number_of_calls_and_serves_the_rest_later(tmp_path: Path) -> None:
    lock = threading.Lock()
    running = most = 0

    def handler(payload: bytes) -> bytes:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return payload

    with serving(tmp_path / "s", {("s", "m"): handler}), connected(tmp_path / "s") as connection:
        for stream_id in range(1, 200, 2):
            connection.sendall(request(stream_id, "m"))
        answers = {read_frame(connection).stream_id for _ in range(100)}
    assert answers == set(range(1, 200, 2))
    assert 1 < most <= 16


def test_a_busy_connection_does_not_delay_another(tmp_path: Path) -> None:
    finish = threading.Event()
    handlers = {**HANDLERS, ("s", "stuck"): lambda _: b"%d" % finish.wait(60)}
    with serving(tmp_path / "s", handlers), connected(tmp_path / "s") as busy:
        for stream_id in range(1, 80, 2):
            busy.sendall(request(stream_id, "stuck"))
        with Client(str(tmp_path / "s")) as client:
            assert client.call("s", "echo", b"quick", 30) == b"quick"
        finish.set()
        assert len({read_frame(busy).stream_id for _ in range(40)}) == 40


def test_a_connection_full_of_stuck_calls_is_told_so_and_recovers_when_one_ends(tmp_path: Path) -> None:
    finish = threading.Event()
    handlers = {**HANDLERS, ("s", "stuck"): lambda _: b"%d" % finish.wait(60)}
    with serving(tmp_path / "s", handlers, 0.3), connected(tmp_path / "s") as connection:
        for stream_id in range(1, 33, 2):
            connection.sendall(request(stream_id, "stuck", timeout_nano=1_000_000))
        assert {read_frame(connection).response.status.code for _ in range(16)} == {Code.DEADLINE_EXCEEDED}
        for stream_id in (33, 35):
            connection.sendall(request(stream_id, "echo"))
            assert read_frame(connection).response.status.code == Code.RESOURCE_EXHAUSTED
        finish.set()
        deadline = time.monotonic() + 60
        for stream_id in range(37, 1000, 2):
            connection.sendall(request(stream_id, "echo", b"again"))
            if read_frame(connection).response.payload == b"again":
                break
            assert time.monotonic() < deadline


def test_clients_that_leave_stuck_calls_behind_cost_a_bounded_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ttrpc_server, "_MAX_RUNNING", 20)
    finish, started = threading.Event(), threading.Semaphore(0)

    def stuck(payload: bytes) -> bytes:
        started.release()
        finish.wait(60)
        return payload

    handlers = {**HANDLERS, ("s", "stuck"): stuck}
    with serving(tmp_path / "s", handlers):
        for calls in (16, 4):
            with connected(tmp_path / "s") as leaving:
                for stream_id in range(1, 2 * calls, 2):
                    leaving.sendall(request(stream_id, "stuck"))
                for _ in range(calls):
                    assert started.acquire(timeout=60)
        with connected(tmp_path / "s") as connection:
            # The connection's own threads are there once the first call was answered.
            connection.sendall(request(1, "stuck"))
            assert read_frame(connection).response.status.code == Code.RESOURCE_EXHAUSTED
            before = threading.active_count()
            connection.sendall(request(3, "stuck"))
            assert read_frame(connection).response.status.code == Code.RESOURCE_EXHAUSTED
            assert threading.active_count() <= before
            finish.set()
            deadline = time.monotonic() + 60
            for stream_id in range(5, 1000, 2):
                connection.sendall(request(stream_id, "echo", b"again"))
                if read_frame(connection).response.payload == b"again":
                    break
                assert time.monotonic() < deadline


def test_a_call_for_which_there_is_no_thread_is_refused_and_the_next_one_served(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with connected(path) as connection:
        connection.sendall(request(1, "echo"))
        read_frame(connection)
        for stream_id in range(3, 50, 2):
            with monkeypatch.context() as out_of_threads:
                out_of_threads.setattr(threading.Thread, "start", start)
                connection.sendall(request(stream_id, "echo"))
                assert read_frame(connection).response.status.code == Code.RESOURCE_EXHAUSTED
        connection.sendall(request(51, "echo", b"fine"))
        assert read_frame(connection).response.payload == b"fine"


def test_connections_beyond_the_bound_are_closed_and_room_returns(path: Path) -> None:
    connections = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(24)]
    refused = 0
    for connection in connections:
        connection.settimeout(60)
        connection.connect(str(path))
        try:
            connection.sendall(request(1, "echo", b"x"))
            read_frame(connection)
        except (OSError, EOFError):
            refused += 1
    assert refused == 8
    for connection in connections:
        connection.close()
    deadline = time.monotonic() + 60
    while True:
        try:
            with connected(path) as connection:
                connection.sendall(request(1, "echo", b"again"))
                assert read_frame(connection).response.payload == b"again"
                break
        except (OSError, EOFError):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_connection_for_which_there_is_no_thread_is_dropped_and_the_next_one_served(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as out_of_threads:
        out_of_threads.setattr(threading.Thread, "start", start)
        with connected(path) as connection:
            assert connection.recv(1) == b""
    with Client(str(path)) as client:
        assert client.call("s", "echo", b"x", 5) == b"x"


def test_many_threads_share_one_client_and_one_server(path: Path) -> None:
    with Client(str(path)) as client, ThreadPoolExecutor(16) as pool:
        payloads = [b"%d" % i * 50 for i in range(300)]
        assert list(pool.map(lambda one: client.call("s", "echo", one, 20), payloads)) == payloads


def test_stopping_cuts_connections_and_removes_the_socket(tmp_path: Path) -> None:
    server = Server(str(tmp_path / "s"), HANDLERS)
    server.start()
    with connected(tmp_path / "s") as connection:
        connection.sendall(request(1, "echo"))
        read_frame(connection)
        server.stop()
        assert connection.recv(1) == b""
    assert not (tmp_path / "s").exists()
    server.stop()


def test_stopping_leaves_a_successors_socket_alone(tmp_path: Path) -> None:
    server = Server(str(tmp_path / "s"), HANDLERS)
    server.start()
    (tmp_path / "s").rename(tmp_path / "old")
    with serving(tmp_path / "s"):
        server.stop()
        assert (tmp_path / "s").exists()


def test_a_socket_is_for_its_owner_alone(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_dead_servers_socket_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(tmp_path / "s"))
    with serving(tmp_path / "s"), Client(str(tmp_path / "s")) as client:
        assert client.call("s", "echo", b"x", 5) == b"x"


def test_a_living_servers_socket_is_refused(path: Path) -> None:
    with pytest.raises(FileExistsError, match="listens"):
        Server(str(path), {}).start()
    with Client(str(path)) as client:
        assert client.call("s", "echo", b"x", 5) == b"x"


def test_a_file_in_the_sockets_place_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(FileExistsError, match="not a socket"):
        Server(str(tmp_path / "s"), {}).start()
    assert (tmp_path / "s").read_text() == "precious"


client_noise = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            frame,
            stream_id=st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)),
            kind=st.integers(0, 5),
            data=st.one_of(
                st.binary(max_size=60),
                st.builds(
                    lambda service, method, payload, timeout: request(
                        1, method, payload, timeout_nano=timeout, service=service
                    )[10:],
                    st.sampled_from(["s", "", "other"]),
                    st.sampled_from(["echo", "fail", "crash", "x"]),
                    st.binary(max_size=20),
                    st.integers(-(2**63), 2**63 - 1),
                ),
            ),
            flags=st.integers(0, 255),
            length=st.one_of(st.none(), st.none(), st.integers(0, 2**32 - 1)),
        ),
    ),
    max_size=8,
).map(b"".join)


def test_whatever_a_client_sends_the_server_ends_its_connection_and_serves_on() -> None:
    with TemporaryDirectory() as directory, serving(Path(directory, "s")):
        path = Path(directory, "s")

        @settings(max_examples=400, deadline=None)
        @given(noise=client_noise)
        def run(noise: bytes) -> None:
            # A reset means that it was dropped while there was more to read.
            with suppress(ConnectionError), connected(path) as connection:
                connection.sendall(noise)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
            with Client(str(path)) as client:
                assert client.call("s", "echo", b"alive", 60) == b"alive"

        before = threading.active_count()
        run()
        deadline = time.monotonic() + 60
        while threading.active_count() > before + 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert threading.active_count() <= before + 2
