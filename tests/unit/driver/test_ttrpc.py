"""The node plugin's ttrpc client: against the Go server, and against servers that break the protocol."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver import ttrpc
from driver.ttrpc import MAXIMUM_ANSWER, NoAnswer, Refusal, call
from proto import ttrpc_pb2
from tests.peers.ttrpc_go import SERVICE, go_server, unwrapped, wrapped
from tests.peers.ttrpc_raw import (
    DATA,
    REQUEST,
    RESPONSE,
    RawFrame,
    frame,
    read_frame,
    response,
    scripted_server,
)

SLACK = 20.0
"""Seconds by which a busy machine may be late."""


@pytest.fixture(scope="module")
def go_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("go") / "s"
    with go_server(path):
        yield path


def go(path: Path, method: str, value: bytes = b"", seconds: float = 10.0, service: str = SERVICE) -> bytes:
    return unwrapped(call(str(path), service, method, wrapped(value), seconds))


def test_the_go_server_answers(go_socket: Path) -> None:
    for value in (b"", b"x", bytes(range(256)) * 100):
        assert go(go_socket, "Echo", value) == value


def test_the_go_server_s_statuses_are_told(go_socket: Path) -> None:
    with pytest.raises(Refusal) as refusal:
        go(go_socket, "Fail", b"9 not allowed")
    assert (refusal.value.code, refusal.value.message) == (9, "not allowed")
    for service, method in ((SERVICE, "NoSuch"), ("no.such", "Echo")):
        with pytest.raises(Refusal) as refusal:
            go(go_socket, method, service=service)
        assert refusal.value.code == 12


def test_the_go_server_learns_how_long_we_wait(go_socket: Path) -> None:
    assert 40_000 < int(go(go_socket, "Remaining", seconds=60)) <= 60_000


def test_a_late_go_server_is_given_up_in_time(go_socket: Path) -> None:
    started = time.monotonic()
    # The server's own status or our clock, whichever is first: both say that time is up.
    with pytest.raises((NoAnswer, Refusal)):
        go(go_socket, "Sleep", b"60000", seconds=0.2)
    assert time.monotonic() - started < 0.2 + SLACK


def test_the_go_server_dying_in_a_call_is_no_answer(tmp_path: Path) -> None:
    with go_server(tmp_path / "s"), pytest.raises(NoAnswer):
        go(tmp_path / "s", "Exit")


def test_more_than_a_small_answer_is_not_read(go_socket: Path) -> None:
    with pytest.raises(NoAnswer, match="at most"):
        go(go_socket, "Fill", b"%d" % MAXIMUM_ANSWER)


def after_request(answer: Callable[[socket.socket, RawFrame], None]) -> Callable[[socket.socket], None]:
    def script(connection: socket.socket) -> None:
        answer(connection, read_frame(connection))

    return script


def sending(*pieces: bytes) -> Callable[[socket.socket], None]:
    """Sends the pieces and closes."""
    return after_request(lambda connection, _: connection.sendall(b"".join(pieces)))


def outcome(path: Path, script: Callable[[socket.socket], None], seconds: float = 5.0) -> str:
    """Why there is no answer."""
    with scripted_server(path, script), pytest.raises(NoAnswer) as caught:
        call(str(path), "s", "M", b"payload", seconds)
    return str(caught.value)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "closed"),
        (b"\0\0\0", "closed"),
        (frame(1, RESPONSE, b"12345", length=100), "closed"),
        (response(3), "stream 3"),
        (response(0), "stream 0"),
        (frame(1, REQUEST, b""), "type 1"),
        (frame(1, DATA, b""), "type 3"),
        (frame(1, 99, b""), "type 99"),
        (frame(1, RESPONSE, b"\xff" * 10), "can't be read"),
        (frame(1, RESPONSE, b"", length=MAXIMUM_ANSWER + 1), "at most"),
        (frame(1, RESPONSE, b"", length=0xFFFFFFFF), "at most"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "came, not the response"),
    ],
    ids=range(12),
)
def test_a_broken_answer_is_no_answer(tmp_path: Path, answer: bytes, words: str) -> None:
    assert words in outcome(tmp_path / "s", sending(answer))


def test_a_server_that_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    def hang(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            pass

    started = time.monotonic()
    assert "no answer within 0.2 s" in outcome(tmp_path / "s", hang, 0.2)
    assert time.monotonic() - started < 0.2 + SLACK


def test_a_server_that_trickles_is_given_up_in_time(tmp_path: Path) -> None:
    """Each byte comes well in time; all together do not."""

    def trickle(connection: socket.socket, _: RawFrame) -> None:
        for byte in response(1, b"x" * 5000):
            connection.sendall(bytes([byte]))
            time.sleep(0.02)

    started = time.monotonic()
    assert "no answer within 0.3 s" in outcome(tmp_path / "s", after_request(trickle), 0.3)
    assert time.monotonic() - started < 0.3 + SLACK


def test_a_server_that_never_reads_is_given_up_in_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        started = time.monotonic()
        with pytest.raises(NoAnswer):
            call(str(tmp_path / "s"), "s", "M", bytes(4 << 20), 0.2)
    assert time.monotonic() - started < 0.2 + SLACK


def test_a_late_answer_in_time_counts_even_in_pieces(tmp_path: Path) -> None:
    def slow(connection: socket.socket, _: RawFrame) -> None:
        time.sleep(0.1)
        whole = response(1, b"fine")
        for piece in (whole[:3], whole[3:11], whole[11:]):
            connection.sendall(piece)
            time.sleep(0.02)

    with scripted_server(tmp_path / "s", after_request(slow)):
        assert call(str(tmp_path / "s"), "s", "M", b"", 5) == b"fine"


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match="No such file"):
        call(str(tmp_path / "s"), "s", "M", b"", 5)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
    with pytest.raises(NoAnswer, match="refused"):
        call(str(tmp_path / "s"), "s", "M", b"", 5)


def test_no_time_left_sends_nothing(tmp_path: Path) -> None:
    with scripted_server(tmp_path / "s", sending(response(1))), pytest.raises(NoAnswer, match="no answer"):
        call(str(tmp_path / "s"), "s", "M", b"", 0)


def test_the_request_is_as_the_protocol_has_it(tmp_path: Path) -> None:
    seen: list[RawFrame] = []

    def record(connection: socket.socket, asked: RawFrame) -> None:
        seen.append(asked)
        connection.sendall(response(1, b"ok"))

    with scripted_server(tmp_path / "s", after_request(record)):
        assert call(str(tmp_path / "s"), "a.Service", "Method", b"\0\xff", 3) == b"ok"
    (asked,) = seen
    assert (asked.stream_id, asked.type, asked.flags) == (1, REQUEST, 0)
    request = ttrpc_pb2.Request.FromString(asked.data)
    assert (request.service, request.method, request.payload) == ("a.Service", "Method", b"\0\xff")
    assert request.timeout_nano == 3_000_000_000


@given(st.binary(max_size=64))
def test_no_bytes_do_more_than_fail(garbage: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(garbage)
        theirs.close()
        try:
            ttrpc._payload(ttrpc._receive(ours, time.monotonic() + 5))
        except (NoAnswer, Refusal):
            return
