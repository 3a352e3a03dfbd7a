"""ttrpc peers that say exactly what a test tells them, right or wrong. Shares no code with ``agent``."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from proto import ttrpc_pb2

REQUEST, RESPONSE, DATA = 1, 2, 3


class RawFrame(NamedTuple):
    stream_id: int
    type: int
    flags: int
    data: bytes

    @property
    def response(self) -> ttrpc_pb2.Response:
        assert self.type == RESPONSE
        return ttrpc_pb2.Response.FromString(self.data)


def frame(stream_id: int, kind: int, data: bytes, flags: int = 0, length: int | None = None) -> bytes:
    """A frame; ``length`` lets its header lie."""
    return struct.pack(">IIBB", len(data) if length is None else length, stream_id, kind, flags) + data


def request(
    stream_id: int, method: str, payload: bytes = b"", *, timeout_nano: int = 0, service: str = "s"
) -> bytes:
    message = ttrpc_pb2.Request(service=service, method=method, payload=payload, timeout_nano=timeout_nano)
    return frame(stream_id, REQUEST, message.SerializeToString())


def response(stream_id: int, payload: bytes = b"", code: int = 0, message: str = "") -> bytes:
    answer = ttrpc_pb2.Response(payload=payload)
    if code or message:
        answer.status.CopyFrom(ttrpc_pb2.Status(code=code, message=message))
    return frame(stream_id, RESPONSE, answer.SerializeToString())


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError(f"{len(data)} of {size} bytes came")
        data += chunk
    return data


def read_frame(connection: socket.socket) -> RawFrame:
    length, stream_id, kind, flags = struct.unpack(">IIBB", read_exactly(connection, 10))
    return RawFrame(stream_id, kind, flags, read_exactly(connection, length))


@contextmanager
def connected(path: Path, timeout: float = 60.0) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        yield connection


@contextmanager
def scripted_server(path: Path, script: Callable[[socket.socket], None]) -> Iterator[list[BaseException]]:
    """A server that runs ``script`` on each connection, then closes it; yields what scripts raised.

    A client that goes away in the middle (a reset, end of file) is not an error of the script.
    """
    raised: list[BaseException] = []
    running: list[threading.Thread] = []
    connections: list[socket.socket] = []

    def run(connection: socket.socket) -> None:
        with connection:
            try:
                script(connection)
            except (OSError, EOFError):
                pass
            except BaseException as error:
                raised.append(error)

    def accept_all() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.settimeout(60)
            connections.append(connection)
            running.append(threading.Thread(target=run, args=(connection,), daemon=True))
            running[-1].start()

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(64)
        acceptor = threading.Thread(target=accept_all, daemon=True)
        acceptor.start()
        try:
            yield raised
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join(5)
            for connection in connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in running:
                thread.join(5)
    assert not raised, raised
