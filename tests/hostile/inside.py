"""Clients in the guest that break the rules of ttrpc, beside one that keeps them."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from proto import ttrpc_pb2
from tests.guest.inside.kata import call
from tests.peers.kata import SERVICE
from tests.peers.ttrpc_raw import REQUEST, RawFrame, connected, frame, read_frame, request

_MAX_DATA = 4 << 20
_STREAMS = 60


def _answer(got: RawFrame) -> list[Any]:
    """Stream id, status code and payload."""
    return [got.stream_id, got.response.status.code, got.response.payload.hex()]


def _noise(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.sendall(b"\xff" * 4000)


def malformed(socket_path: str, create: str, other: dict[str, Any]) -> dict[str, Any]:
    """A request that is no protobuf, a truncated CreateContainer, flags nobody knows; at last, noise."""
    truncated = ttrpc_pb2.Request(
        service=SERVICE, method="CreateContainer", payload=bytes.fromhex(create)[:-1]
    )
    with connected(Path(socket_path), 60.0) as connection:
        connection.sendall(frame(1, REQUEST, b"\xff\xff\xff"))
        connection.sendall(frame(3, REQUEST, truncated.SerializeToString()))
        connection.sendall(frame(5, REQUEST, truncated.SerializeToString(), flags=1))
        answers = [_answer(read_frame(connection)) for _ in range(3)]
        _noise(connection)
        return {"answers": sorted(answers), "other": call(**other)}


def oversized(socket_path: str, create: str, other: dict[str, Any]) -> dict[str, Any]:
    """One frame just too large, one whose header promises 4 GiB; both for CreateContainer."""
    payload = bytes.fromhex(create) + bytes(_MAX_DATA)
    with connected(Path(socket_path), 60.0) as connection:
        connection.sendall(request(1, "CreateContainer", payload, service=SERVICE))
        answers = [_answer(read_frame(connection))]
        with connected(Path(socket_path), 60.0) as second:
            second.sendall(frame(1, REQUEST, bytes(1000), length=(1 << 32) - 1))
            return {"answers": answers, "other": call(**other)}


def interleaved(socket_path: str, create: str, other: dict[str, Any]) -> dict[str, Any]:
    """Many streams of two connections at once, a refused CreateContainer among them, an id used twice."""
    with connected(Path(socket_path), 60.0) as first, connected(Path(socket_path), 60.0) as second:
        for number in range(1, 2 * _STREAMS, 2):
            method, payload = ("StartContainer", b"%d" % number)
            if number == 1:
                method, payload = "CreateContainer", bytes.fromhex(create)
            data = request(number, method, payload, service=SERVICE)
            for connection in (first, second):
                # The one's frame is complete only after the other's has begun.
                connection.sendall(data[:7])
            for connection in (first, second):
                connection.sendall(data[7:])
        answers = [
            sorted(_answer(read_frame(connection)) for _ in range(_STREAMS)) for connection in (first, second)
        ]
        first.sendall(request(3, "StartContainer", b"again", service=SERVICE))
        return {"answers": answers, "other": call(**other)}


def slow(socket_path: str, create: str, other: dict[str, Any]) -> dict[str, Any]:
    """One sends half a header and stops, one drips its CreateContainer, one never reads its answers."""
    data = request(1, "CreateContainer", bytes.fromhex(create), service=SERVICE)
    with (
        connected(Path(socket_path), 60.0) as stalled,
        connected(Path(socket_path), 60.0) as dripping,
        connected(Path(socket_path), 60.0) as deaf,
    ):
        stalled.sendall(data[:5])
        for number in range(1, 200, 2):
            deaf.sendall(request(number, "StartContainer", bytes(10_000), service=SERVICE))
        for byte in data[:20]:
            dripping.sendall(bytes([byte]))
            time.sleep(0.01)
        answered = call(**other)
        dripping.sendall(data[20:])
        return {"answers": [_answer(read_frame(dripping))], "other": answered}
