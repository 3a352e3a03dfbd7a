"""The proxy's transport: what goes through it, in which order, and what bad peers can't do to others."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.proxy import Forward
from agent.ttrpc import MAX_DATA, Client, Code, TtrpcError
from proto import ttrpc_pb2
from tests.peers.kata import SERVICE as AGENT
from tests.peers.kata import by_id, go_agent
from tests.peers.ttrpc_go import SERVICE, GoCall, go_calls, go_server, unwrapped, wrapped
from tests.peers.ttrpc_raw import (
    DATA,
    REQUEST,
    RESPONSE,
    RawFrame,
    connected,
    frame,
    read_frame,
    request,
    response,
    scripted_server,
)
from tests.unit.agent.proxy_support import unix_proxy


def echo_frames(connection: socket.socket) -> None:
    """Answer each request with its own data as the payload."""
    while True:
        got = read_frame(connection)
        connection.sendall(response(got.stream_id, got.data))


@pytest.fixture
def go_proxy(tmp_path: Path) -> Iterator[Path]:
    with go_server(tmp_path / "u"), unix_proxy(tmp_path) as path:
        yield path


def test_a_thousand_concurrent_calls_of_a_go_client_to_a_go_server(go_proxy: Path) -> None:
    calls = [GoCall(SERVICE, "Sleep", wrapped(b"%d" % (500 + i % 500))) for i in range(1000)]
    results = go_calls(go_proxy, calls, timeout=240)
    assert len(results) == 1000
    assert not [one for one in results if one.code]
    assert {one.index: unwrapped(one.payload) for one in results} == {
        i: b"%d" % (500 + i % 500) for i in range(1000)
    }


def test_answers_come_in_the_order_of_the_server_not_of_the_calls(go_proxy: Path) -> None:
    with connected(go_proxy) as client:
        client.sendall(request(1, "Sleep", wrapped(b"30000"), service=SERVICE))
        for stream_id in (3, 5):
            client.sendall(request(stream_id, "Echo", wrapped(b"x"), service=SERVICE))
            assert read_frame(client).stream_id == stream_id


def test_statuses_timeouts_and_unknown_methods_go_through(go_proxy: Path) -> None:
    with Client(str(go_proxy)) as client:
        for service, method, value, code, message in (
            (SERVICE, "Fail", b"7 not allowed", 7, "not allowed"),
            (SERVICE, "NoSuch", b"", Code.UNIMPLEMENTED, "NoSuch"),
            ("no.such", "Echo", b"", Code.UNIMPLEMENTED, "no.such"),
        ):
            with pytest.raises(TtrpcError) as raised:
                client.call(service, method, wrapped(value), 5)
            assert raised.value.code == code
            assert message in raised.value.message
        assert 40_000 < int(unwrapped(client.call(SERVICE, "Remaining", b"", 60))) <= 60_000
        big = os.urandom(MAX_DATA - 100)
        assert unwrapped(client.call(SERVICE, "Echo", wrapped(big), 20)) == big


def test_every_method_of_the_agent_protocol_reaches_a_go_agent_byte_for_byte(tmp_path: Path) -> None:
    methods = ["StartContainer", "WaitProcess", "ReadStdout", "GetOOMEvent", "SetPolicy", "CopyFile"]
    with go_agent(tmp_path / "u") as agent, unix_proxy(tmp_path) as path:
        payload = by_id("c1")
        results = go_calls(path, [GoCall(AGENT, method, payload) for method in methods])
        assert [one.payload for one in results] == [payload] * len(methods)
        assert [agent.calls(method)[0]["payload"] for method in methods] == [payload] * len(methods)


def test_frames_go_through_byte_for_byte_under_stream_ids_of_the_proxy(tmp_path: Path) -> None:
    seen: list[RawFrame] = []
    unknown = ttrpc_pb2.Request(service="s", method="m", payload=b"\x00\xff").SerializeToString() + bytes(
        [0x82, 0x7D, 2, 0xFE, 0xFF]  # Field 2000.
    )
    answer = ttrpc_pb2.Response(payload=b"\xff").SerializeToString() + bytes([0x82, 0x7D, 1, 0xFE])

    def serve(connection: socket.socket) -> None:
        got = [read_frame(connection), read_frame(connection)]
        seen.extend(got)
        connection.sendall(frame(got[1].stream_id, RESPONSE, answer, flags=0x40))
        connection.sendall(frame(got[0].stream_id, RESPONSE, b""))
        read_frame(connection)

    with scripted_server(tmp_path / "u", serve), unix_proxy(tmp_path) as path, connected(path) as client:
        client.sendall(frame(101, REQUEST, unknown, flags=0x80) + frame(4001, REQUEST, unknown))
        assert read_frame(client) == RawFrame(4001, RESPONSE, 0x40, answer)
        assert read_frame(client) == RawFrame(101, RESPONSE, 0, b"")
    assert seen == [RawFrame(1, REQUEST, 0x80, unknown), RawFrame(3, REQUEST, 0, unknown)]


def test_what_is_no_unary_call_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    with (
        scripted_server(tmp_path / "u", echo_frames),
        unix_proxy(tmp_path) as path,
        connected(path) as client,
    ):
        for sent, code in (
            (frame(1, REQUEST, b"\xff\xff"), Code.INVALID_ARGUMENT),
            (frame(2, REQUEST, b""), Code.INVALID_ARGUMENT),
            (frame(1, REQUEST, b""), Code.INVALID_ARGUMENT),
            (frame(3, DATA, b"x"), Code.INVALID_ARGUMENT),
            (frame(5, REQUEST, b"", flags=2), Code.UNIMPLEMENTED),
            (frame(7, REQUEST, b"", flags=1), Code.UNIMPLEMENTED),
            (frame(9, REQUEST, bytes(MAX_DATA + 1)), Code.RESOURCE_EXHAUSTED),
        ):
            client.sendall(sent)
            assert read_frame(client).response.status.code == code
        client.sendall(frame(11, 9, b"from a later version") + request(13, "m"))
        assert read_frame(client).stream_id == 13


def test_nonsense_from_the_upstream_answers_the_call_or_is_ignored(tmp_path: Path) -> None:
    def serve(connection: socket.socket) -> None:
        first, second, third = (read_frame(connection).stream_id for _ in range(3))
        connection.sendall(response(9999, b"nobody asked") + frame(first, 77, b"later version"))
        connection.sendall(frame(second, DATA, b"x") + frame(third, RESPONSE, bytes(MAX_DATA + 1)))
        connection.sendall(response(first, b"fine") + response(first, b"twice"))
        read_frame(connection)

    with scripted_server(tmp_path / "u", serve), unix_proxy(tmp_path) as path, connected(path) as client:
        client.sendall(request(1, "a") + request(3, "b") + request(5, "c"))
        got = {one.stream_id: one.response for one in (read_frame(client) for _ in range(3))}
    assert got[1].payload == b"fine"
    assert got[3].status.code == Code.UNIMPLEMENTED
    assert got[5].status.code == Code.RESOURCE_EXHAUSTED


def test_a_lost_upstream_answers_unavailable_and_is_found_again(tmp_path: Path) -> None:
    with unix_proxy(tmp_path) as path, Client(str(path)) as client:
        with go_server(tmp_path / "u") as server, ThreadPoolExecutor() as pool:
            waiting = [pool.submit(client.call, SERVICE, "Sleep", wrapped(b"50000"), 60.0) for _ in range(3)]
            time.sleep(0.3)
            server.kill()
            for one in waiting:
                with pytest.raises(TtrpcError) as raised:
                    one.result(60)
                assert raised.value.code == Code.UNAVAILABLE
        (tmp_path / "u").unlink()
        started = time.monotonic()
        with pytest.raises(TtrpcError) as raised:
            client.call(SERVICE, "Echo", b"", 60)
        assert raised.value.code == Code.UNAVAILABLE
        assert 1.5 < time.monotonic() - started < 30
        with go_server(tmp_path / "u"):
            assert unwrapped(client.call(SERVICE, "Echo", wrapped(b"back"), 60)) == b"back"


def test_an_upstream_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    with unix_proxy(tmp_path, upstream_wait=60.0) as path, ThreadPoolExecutor() as pool:
        early = pool.submit(go_calls, path, [GoCall(SERVICE, "Echo", wrapped(b"early"))])
        time.sleep(0.5)
        with go_server(tmp_path / "u"):
            (result,) = early.result(60)
    assert (result.code, unwrapped(result.payload)) == (0, b"early")


@pytest.mark.parametrize("frame_timeout", [600.0, 1.0])
def test_slow_and_silent_clients_do_not_hold_up_others(tmp_path: Path, frame_timeout: float) -> None:
    """One begins a frame and stops, one does not read its answers, one says nothing, one talks nonsense."""
    with (
        go_server(tmp_path / "u"),
        unix_proxy(tmp_path, frame_timeout=frame_timeout) as path,
        connected(path) as half,
        connected(path) as deaf,
        connected(path),
        connected(path) as wild,
        Client(str(path)) as good,
    ):
        half.sendall(frame(1, REQUEST, b"x", length=4 << 20))
        wild.sendall(b"GET / HTTP/1.1\r\n\r\n")
        fill = ttrpc_pb2.Request(service=SERVICE, method="Fill", payload=wrapped(b"4000000"))
        deaf.sendall(b"".join(frame(i, REQUEST, fill.SerializeToString()) for i in range(1, 41, 2)))
        for _ in range(50):
            assert unwrapped(good.call(SERVICE, "Echo", wrapped(b"x"), 60)) == b"x"
        assert wild.recv(10) == b""
        if frame_timeout == 1.0:
            assert half.recv(10) == b""
            assert unwrapped(good.call(SERVICE, "Echo", wrapped(b"x"), 60)) == b"x"


def test_an_upstream_that_stops_reading_cuts_only_the_connection_it_serves(tmp_path: Path) -> None:
    stuck = threading.Event()

    def serve(connection: socket.socket) -> None:
        if stuck.is_set():
            echo_frames(connection)
        stuck.set()
        time.sleep(4)

    with (
        scripted_server(tmp_path / "u", serve),
        unix_proxy(tmp_path, frame_timeout=1.0) as path,
        connected(path) as first,
        connected(path) as second,
    ):
        flood = b"".join(request(i, "m", bytes(1 << 20)) for i in range(1, 9, 2))
        writer = threading.Thread(target=first.sendall, args=(flood,))
        writer.start()
        assert stuck.wait(60)
        second.sendall(request(1, "m"))
        assert read_frame(second).stream_id == 1
        assert read_frame(first).response.status.code == Code.UNAVAILABLE
        writer.join(60)


def test_a_call_that_is_taken_over_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def take(got: ttrpc_pb2.Request, forward: Forward) -> ttrpc_pb2.Response:
        if got.payload == b"fail":
            raise RuntimeError("with a secret in it")
        if got.payload == b"refuse":
            raise TtrpcError(9, "no")
        return await forward(ttrpc_pb2.Request(service="s", method="changed", payload=b"mine"))

    forwarded = threading.Event()

    def serve(connection: socket.socket) -> None:
        first = read_frame(connection)
        forwarded.set()
        second = read_frame(connection)
        assert ttrpc_pb2.Request.FromString(first.data).method == "changed"
        connection.sendall(response(second.stream_id, b"2") + response(first.stream_id, b"1", 5, "five"))
        read_frame(connection)

    with (
        scripted_server(tmp_path / "u", serve),
        unix_proxy(tmp_path, {("s", "mine"): take}) as path,
        connected(path) as client,
    ):
        client.sendall(request(1, "mine"))
        assert forwarded.wait(60)
        client.sendall(request(3, "other"))
        assert read_frame(client).response.payload == b"2"
        answer = read_frame(client).response
        assert (answer.payload, answer.status.code, answer.status.message) == (b"1", 5, "five")
        client.sendall(request(5, "mine", b"refuse"))
        assert read_frame(client).response.status.code == 9
        client.sendall(request(7, "mine", b"fail"))
        answer = read_frame(client).response
        assert (answer.status.code, "secret" in answer.status.message) == (Code.INTERNAL, False)


def test_requests_that_are_worked_on_here_have_a_limit_of_memory(tmp_path: Path) -> None:
    async def forever(_: ttrpc_pb2.Request, forward: Forward) -> ttrpc_pb2.Response:
        return await forward(ttrpc_pb2.Request(service="s", method="m"))

    def silent(connection: socket.socket) -> None:
        while True:
            read_frame(connection)

    with (
        scripted_server(tmp_path / "u", silent),
        unix_proxy(tmp_path, {("s", "mine"): forever}) as path,
        connected(path) as client,
    ):
        for stream_id in range(1, 41, 2):
            client.sendall(request(stream_id, "mine", bytes(MAX_DATA - 100)))
        got = [read_frame(client) for _ in range(5)]
        assert {one.response.status.code for one in got} == {Code.RESOURCE_EXHAUSTED}


def test_the_socket_is_roots_alone_and_a_living_one_is_not_taken(tmp_path: Path) -> None:
    with unix_proxy(tmp_path) as path:
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(FileExistsError), unix_proxy(tmp_path):
            pass
        with connected(path):
            pass
    assert not path.exists()
