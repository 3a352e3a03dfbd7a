"""ttrpc, as much of it as the node plugin needs: one unary call on a connection of its own.

A frame is a 10-byte big-endian header, ``length u32 | stream id u32 | type u8 | flags u8``, and its data
(containerd/ttrpc, PROTOCOL.md). What answers is a guest, or something on the way to it, that may be broken or
hostile: the call ends by its deadline whatever is sent, and reads no more than a small answer takes.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

from google.protobuf.message import DecodeError

from proto import ttrpc_pb2

MAXIMUM_ANSWER: Final = 64 << 10
"""Bytes of an answer's frame. The protocol allows 4 MiB; what is asked for here takes a few hundred."""

_HEADER: Final = struct.Struct(">IIBB")
_REQUEST: Final = 1
_RESPONSE: Final = 2
_STREAM_ID: Final = 1
"""A client's are odd and begin at 1."""


class NoAnswer(Exception):
    """No answer that can be read. Says why; the call may have been carried out."""


class Refusal(Exception):
    """The server answered with a status: ``code`` is gRPC's, ``message`` the server's own words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"status {code}: {message}")
        self.code = code
        self.message = message


def call(path: str, service: str, method: str, payload: bytes, seconds: float) -> bytes:
    """Call ``method`` on the Unix socket ``path`` and return the answer's payload, within ``seconds``.

    Raises:
        NoAnswer: nobody listens, or there is no complete and well-formed answer in time.
        Refusal: the answer is a status other than OK.
    """
    deadline = time.monotonic() + seconds
    request = ttrpc_pb2.Request(
        service=service, method=method, payload=payload, timeout_nano=max(1, int(seconds * 1e9))
    ).SerializeToString()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            _wait_at_most(connection, deadline)
            connection.connect(path)
            _send(connection, _HEADER.pack(len(request), _STREAM_ID, _REQUEST, 0) + request, deadline)
            return _payload(_receive(connection, deadline))
        except TimeoutError:
            raise NoAnswer(f"no answer within {seconds:.1f} s") from None
        except OSError as error:
            raise NoAnswer(f"the connection failed: {error.strerror or type(error).__name__}") from None


def _wait_at_most(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _send(connection: socket.socket, data: bytes, deadline: float) -> None:
    while data:
        _wait_at_most(connection, deadline)
        data = data[connection.send(data) :]


def _receive(connection: socket.socket, deadline: float) -> bytes:
    """The data of the one frame that is the answer."""
    length, stream_id, kind, _ = _HEADER.unpack(_read(connection, _HEADER.size, deadline))
    if (stream_id, kind) != (_STREAM_ID, _RESPONSE):
        raise NoAnswer(f"a message of type {kind} on stream {stream_id} came, not the response")
    if length > MAXIMUM_ANSWER:
        raise NoAnswer(f"the response has {length} bytes; at most {MAXIMUM_ANSWER} are read")
    return _read(connection, length, deadline)


def _read(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        _wait_at_most(connection, deadline)
        piece = connection.recv(size - len(data))
        if not piece:
            raise NoAnswer("the connection was closed before the response was complete")
        data += piece
    return data


def _payload(data: bytes) -> bytes:
    response = ttrpc_pb2.Response()
    try:
        response.ParseFromString(data)
    except DecodeError:
        raise NoAnswer("the response can't be read") from None
    if response.status.code:
        raise Refusal(response.status.code, response.status.message)
    return response.payload
