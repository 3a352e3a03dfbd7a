"""The client against servers that do right, wrong, or nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.ttrpc import MAX_DATA, Client, Code, TtrpcConnectionError, TtrpcError, TtrpcTimeout
from proto import cdh_pb2, ttrpc_pb2
from tests.peers.ttrpc_raw import DATA, RESPONSE, frame, read_exactly, read_frame, response, scripted_server

REAL_FRAME = bytes.fromhex(
    "0000005b0000000101000a166170692e5365637572654d6f756e7453657276696365120b5365637572654d6f756e74"
    "1a2e0a0c626c6f636b2d64657669636512160a0a6465766963655061746812082f6465762f76646222062f72756e2f78"
    "2080e497d012"
)


@contextmanager
def client_of(script: Callable[[socket.socket], None], directory: Path) -> Iterator[Client]:
    """A client of a server that does what ``script`` says."""
    path = directory / "s"
    with scripted_server(path, script), Client(str(path)) as client:
        yield client


def echo_forever(connection: socket.socket) -> None:
    while True:
        received = read_frame(connection)
        payload = ttrpc_pb2.Request.FromString(received.data).payload
        connection.sendall(response(received.stream_id, payload))


def test_a_request_is_byte_for_byte_the_frame_of_a_real_client(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def script(connection: socket.socket) -> None:
        seen.append(read_exactly(connection, len(REAL_FRAME)))
        connection.sendall(response(1))

    request = cdh_pb2.SecureMountRequest(
        volume_type="block-device", options={"devicePath": "/dev/vdb"}, mount_point="/run/x"
    )
    with client_of(script, tmp_path) as client:
        assert client.call("api.SecureMountService", "SecureMount", request.SerializeToString(), 5) == b""
    assert seen == [REAL_FRAME]


def test_stream_ids_are_odd_and_rise_even_among_threads(tmp_path: Path) -> None:
    ids: list[int] = []

    def script(connection: socket.socket) -> None:
        while True:
            received = read_frame(connection)
            ids.append(received.stream_id)
            connection.sendall(response(received.stream_id))

    with client_of(script, tmp_path) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: client.call("s", "m", b"", 10), range(200)))
    assert ids == list(range(1, 400, 2))


def test_answers_in_reverse_order_reach_their_callers(tmp_path: Path) -> None:
    count = 20

    def script(connection: socket.socket) -> None:
        received = [read_frame(connection) for _ in range(count)]
        for one in reversed(received):
            connection.sendall(
                response(one.stream_id, ttrpc_pb2.Request.FromString(one.data).payload + b" back")
            )
        connection.recv(1)

    with client_of(script, tmp_path) as client, ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda i: client.call("s", "m", b"%d" % i, 10), range(count)))
    assert answers == [b"%d back" % i for i in range(count)]


@pytest.mark.parametrize("code", [3, 12, 13, 4711, -1])
def test_a_status_is_raised_with_its_code_and_words_whatever_the_payload(tmp_path: Path, code: int) -> None:
    def script(connection: socket.socket) -> None:
        read_frame(connection)
        connection.sendall(response(1, b"payload", code, "no such thing"))

    with client_of(script, tmp_path) as client, pytest.raises(TtrpcError) as raised:
        client.call("s", "m", b"", 5)
    assert (raised.value.code, raised.value.message) == (code, "no such thing")


def test_a_status_of_code_0_is_success(tmp_path: Path) -> None:
    def script(connection: socket.socket) -> None:
        read_frame(connection)
        connection.sendall(response(1, b"payload", 0, "fine"))

    with client_of(script, tmp_path) as client:
        assert client.call("s", "m", b"", 5) == b"payload"


def test_a_late_answer_goes_to_nobody_and_the_next_call_works(tmp_path: Path) -> None:
    def script(connection: socket.socket) -> None:
        first, second = read_frame(connection), read_frame(connection)
        connection.sendall(response(first.stream_id, b"late"))
        connection.sendall(response(second.stream_id, b"in time"))
        connection.recv(1)

    with client_of(script, tmp_path) as client:
        started = time.monotonic()
        with pytest.raises(TtrpcTimeout):
            client.call("s", "m", b"", 0.1)
        assert 0.1 <= time.monotonic() - started < 20
        assert client.call("s", "m", b"", 5) == b"in time"


def test_the_timeout_tells_the_server_nanoseconds(tmp_path: Path) -> None:
    seen: list[int] = []

    def script(connection: socket.socket) -> None:
        received = read_frame(connection)
        seen.append(ttrpc_pb2.Request.FromString(received.data).timeout_nano)
        connection.sendall(response(received.stream_id))

    with client_of(script, tmp_path) as client:
        client.call("s", "m", b"", 2.5)
    assert seen == [2_500_000_000]


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_call_without_a_limit_is_a_programming_error(tmp_path: Path, timeout: float) -> None:
    with client_of(echo_forever, tmp_path) as client, pytest.raises(ValueError, match="timeout"):
        client.call("s", "m", b"", timeout)


def test_every_waiting_call_ends_when_the_server_closes(tmp_path: Path) -> None:
    count = 5

    def script(connection: socket.socket) -> None:
        for _ in range(count):
            read_frame(connection)

    def call(client: Client) -> TtrpcConnectionError:
        with pytest.raises(TtrpcConnectionError) as raised:
            client.call("s", "m", b"", 60)
        return raised.value

    with client_of(script, tmp_path) as client:
        started = time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            errors = list(pool.map(call, [client] * count))
        assert all(error.sent for error in errors)
        assert not call(client).sent
        assert time.monotonic() - started < 30


def test_closing_the_client_ends_its_calls(tmp_path: Path) -> None:
    taken = threading.Event()

    def script(connection: socket.socket) -> None:
        read_frame(connection)
        taken.set()
        connection.recv(1)

    with scripted_server(tmp_path / "s", script), ThreadPoolExecutor(1) as pool:
        client = Client(str(tmp_path / "s"))
        waiting = pool.submit(client.call, "s", "m", b"", 120)
        assert taken.wait(60)
        client.close()
        with pytest.raises(TtrpcConnectionError, match="closed"):
            waiting.result(60)


@pytest.mark.parametrize("prepare", [lambda _: None, lambda path: path.touch(), lambda path: path.mkdir()])
def test_no_server_is_a_connection_error_with_nothing_sent(
    tmp_path: Path, prepare: Callable[[Path], None]
) -> None:
    prepare(tmp_path / "s")
    with pytest.raises(TtrpcConnectionError, match="could not connect") as raised:
        Client(str(tmp_path / "s"))
    assert not raised.value.sent


def test_a_path_too_long_for_a_socket_is_a_connection_error() -> None:
    with pytest.raises(TtrpcConnectionError):
        Client("/run/" + "x" * 200)


def test_a_socket_whose_server_died_is_a_connection_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(tmp_path / "s"))
    with pytest.raises(TtrpcConnectionError, match="refused"):
        Client(str(tmp_path / "s"))


def test_a_request_of_exactly_4_mib_is_sent_and_one_byte_more_is_not(tmp_path: Path) -> None:
    overhead = len(
        ttrpc_pb2.Request(
            service="s", method="m", payload=bytes(MAX_DATA - 100), timeout_nano=20_000_000_000
        ).SerializeToString()
    ) - (MAX_DATA - 100)
    fits = bytes(MAX_DATA - overhead)
    sizes: list[int] = []

    def script(connection: socket.socket) -> None:
        while True:
            received = read_frame(connection)
            sizes.append(len(received.data))
            connection.sendall(response(received.stream_id))

    with client_of(script, tmp_path) as client:
        client.call("s", "m", fits, 20)
        with pytest.raises(TtrpcError) as raised:
            client.call("s", "m", fits + b"x", 20)
        assert raised.value.code == Code.RESOURCE_EXHAUSTED
        assert client.call("s", "m", b"", 20) == b""
    assert sizes[0] == MAX_DATA
    assert len(sizes) == 2


def test_an_oversized_answer_fails_its_call_alone(tmp_path: Path) -> None:
    def script(connection: socket.socket) -> None:
        read_frame(connection)
        connection.sendall(frame(1, RESPONSE, bytes(MAX_DATA + 1)))
        read_frame(connection)
        connection.sendall(response(3, b"fine"))

    with client_of(script, tmp_path) as client:
        with pytest.raises(TtrpcError) as raised:
            client.call("s", "m", b"", 10)
        assert raised.value.code == Code.RESOURCE_EXHAUSTED
        assert client.call("s", "m", b"", 10) == b"fine"


@pytest.mark.parametrize(
    "nonsense",
    [
        frame(1, RESPONSE, b"\xff\xff"),
        frame(1, DATA, b"x"),
        frame(1, 9, b""),
        frame(1, RESPONSE, b"", 0, 1 << 30),
    ],
    ids=["no message", "data frame", "unknown type", "reserved length"],
)
def test_nonsense_for_an_answer_ends_the_connection(tmp_path: Path, nonsense: bytes) -> None:
    def script(connection: socket.socket) -> None:
        read_frame(connection)
        connection.sendall(nonsense)
        connection.recv(1)

    with client_of(script, tmp_path) as client:
        for sent in (True, False):
            with pytest.raises(TtrpcConnectionError) as raised:
                client.call("s", "m", b"", 10)
            assert raised.value.sent == sent


def test_messages_for_streams_that_are_not_open_are_passed_over(tmp_path: Path) -> None:
    def script(connection: socket.socket) -> None:
        read_frame(connection)
        for other in (0, 2, 3, 99, 2**32 - 1):
            connection.sendall(response(other, b"not yours"))
        connection.sendall(response(1, b"yours"))

    with client_of(script, tmp_path) as client:
        assert client.call("s", "m", b"", 5) == b"yours"


def test_a_server_that_never_reads_is_a_timeout_for_every_caller(tmp_path: Path) -> None:
    done = threading.Event()

    def script(_: socket.socket) -> None:
        done.wait(60)

    def call(client: Client) -> bool:
        with pytest.raises((TtrpcTimeout, TtrpcConnectionError)):
            client.call("s", "m", bytes(1 << 20), 0.5)
        return True

    with client_of(script, tmp_path) as client:
        started = time.monotonic()
        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(call, [client] * 6))
        assert time.monotonic() - started < 30
        done.set()


mostly_frames = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            frame,
            stream_id=st.sampled_from([0, 1, 2, 3, 2**32 - 1]),
            kind=st.integers(0, 5),
            data=st.one_of(
                st.binary(max_size=40),
                st.builds(
                    lambda code, message, payload: response(1, payload, code, message)[10:],
                    st.integers(-(2**31), 2**31 - 1),
                    st.text(max_size=10),
                    st.binary(max_size=10),
                ),
            ),
            flags=st.integers(0, 255),
            length=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
        ),
    ),
    max_size=6,
).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(answer=mostly_frames)
def test_whatever_a_server_sends_a_call_ends_with_an_answer_or_a_typed_error(answer: bytes) -> None:
    def script(connection: socket.socket) -> None:
        read_frame(connection)
        connection.sendall(answer)

    started = time.monotonic()
    with TemporaryDirectory() as directory, client_of(script, Path(directory)) as client:
        with suppress(TtrpcError, TtrpcConnectionError):
            client.call("s", "m", b"", 60)
        assert time.monotonic() - started < 30
