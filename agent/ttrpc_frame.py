"""ttrpc framing: one message at a time over a stream socket.

A frame is a 10-byte big-endian header, ``length u32 | stream id u32 | type u8 | flags u8``, and at most
4 MiB of data (containerd/ttrpc, PROTOCOL.md). There is no handshake, no ping and no flow control.
"""

from __future__ import annotations

import contextlib
import enum
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final

MAX_DATA: Final = 4 << 20
"""Bytes of data that a frame may carry."""

STREAM_FLAGS: Final = 0x7
"""Remote closed, remote open, no data: on a request, any of them says that this is not a unary call."""

HEADER: Final = struct.Struct(">IIBB")
MAX_DISCARDED: Final = 16 << 20
"""The protocol reserves the first byte of a frame as zero; a length that sets it is no ttrpc."""
_CHUNK: Final = 256 << 10


class MessageType(enum.IntEnum):
    """What a frame is. Other values are left for later versions and are ignored."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class Code(enum.IntEnum):
    """The gRPC status codes that this implementation sends or looks at."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class TtrpcError(Exception):
    """A call was answered with a status: ``code`` is gRPC's (never 0), ``message`` the server's words."""

    def __init__(self, code: int, message: str) -> None:
        if code == 0 or not -(1 << 31) <= code < 1 << 31:
            raise ValueError(f"{code} is not the code of a failure")
        super().__init__(f"status {code}: {message}")
        self.code = int(code)
        self.message = message


class TtrpcTimeout(TimeoutError):
    """No answer came in time. The server may have run the call, or still be running it."""


class TtrpcConnectionError(ConnectionError):
    """The connection could not be made or was lost.

    ``sent`` tells whether the request may have reached the server, which then may have run it.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class ChannelClosed(Exception):
    """The peer closed the connection, broke the protocol, or stalled in the middle of a frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message as received. ``type`` and ``flags`` are as on the wire, known or not."""

    stream_id: int
    type: int
    flags: int
    data: bytes


@dataclass(frozen=True, slots=True)
class OversizedFrame:
    """A message of more than ``MAX_DATA`` bytes came; its data was read and thrown away."""

    stream_id: int
    length: int


def encode_frame(stream_id: int, message_type: MessageType, data: bytes) -> bytes:
    """A frame without flags, as it goes on the wire.

    Raises:
        ValueError: the data is longer than ``MAX_DATA``.
    """
    if len(data) > MAX_DATA:
        raise ValueError(f"{len(data)} bytes of data exceed the frame's {MAX_DATA}")
    return HEADER.pack(len(data), stream_id, message_type, 0) + data


class RequestGate:
    """What a server checks of each message of one client before it reads the request."""

    def __init__(self) -> None:
        self._last_stream_id = 0

    def admit(self, message: Frame | OversizedFrame) -> Frame | None:
        """The message, if it begins a unary call; None if it is to be ignored.

        Raises:
            TtrpcError: the status to answer with.
        """
        if isinstance(message, OversizedFrame):
            raise TtrpcError(
                Code.RESOURCE_EXHAUSTED,
                f"a message of {message.length} bytes exceeds the limit of {MAX_DATA}",
            )
        if message.stream_id % 2 == 0:
            raise TtrpcError(Code.INVALID_ARGUMENT, "a client's stream id must be odd")
        if message.type == MessageType.DATA:
            raise TtrpcError(Code.INVALID_ARGUMENT, "the stream is not open for data")
        if message.type != MessageType.REQUEST:
            return None  # Left for later versions of the protocol.
        if message.stream_id <= self._last_stream_id:
            raise TtrpcError(Code.INVALID_ARGUMENT, "stream ids must increase and can't be used again")
        self._last_stream_id = message.stream_id
        if message.flags & STREAM_FLAGS:
            raise TtrpcError(Code.UNIMPLEMENTED, "streaming calls are not supported")
        return message


class Channel:
    """Frames over a connected stream socket, which it owns.

    One thread at a time may ``receive``; any thread may ``send``. Waiting for a frame to begin has no
    limit; a frame that has begun must be complete within ``frame_timeout`` seconds.
    """

    def __init__(self, connection: socket.socket, frame_timeout: float) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._frame_timeout = frame_timeout
        self._send_lock = threading.Lock()

    def receive(self) -> Frame | OversizedFrame:
        """The next message.

        Raises:
            ChannelClosed: nothing more will come.
        """
        self._wait(select.POLLIN, None)
        deadline = time.monotonic() + self._frame_timeout
        header = self._read(HEADER.size, deadline)
        length, stream_id, message_type, flags = HEADER.unpack(header)
        if length > MAX_DATA:
            if length >= MAX_DISCARDED:
                raise ChannelClosed(f"a frame of {length} bytes is not ttrpc")
            self._discard(length, deadline)
            return OversizedFrame(stream_id, length)
        return Frame(stream_id, message_type, flags, self._read(length, deadline))

    def send(self, frame: bytes, timeout: float) -> None:
        """Send one encoded frame within ``timeout`` seconds.

        Raises:
            TimeoutError: none of it could be sent in time; the connection is as it was.
            ChannelClosed: the connection is gone, or was cut because the peer stopped reading midway.
        """
        deadline = time.monotonic() + timeout
        if not self._send_lock.acquire(timeout=timeout):
            raise TimeoutError("the connection was busy sending")
        try:
            self._write(frame, deadline)
        except ChannelClosed:
            # Half a frame may be out: whatever followed would be read as its rest.
            self.shut_down()
            raise
        finally:
            self._send_lock.release()

    def shut_down(self) -> None:
        """Cut the connection; a ``receive`` or ``send`` in another thread ends with ChannelClosed."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket. For the receiving thread alone, after its last ``receive``."""
        self.shut_down()
        with self._send_lock:
            self._socket.close()

    def _read(self, size: int, deadline: float) -> bytes:
        # Grows with what arrives: a header alone reserves no memory.
        data = bytearray()
        while len(data) < size:
            data += self._read_some(min(size - len(data), _CHUNK), deadline)
        return bytes(data)

    def _discard(self, size: int, deadline: float) -> None:
        while size:
            size -= len(self._read_some(min(size, _CHUNK), deadline))

    def _read_some(self, size: int, deadline: float) -> bytes:
        while True:
            try:
                data = self._socket.recv(size)
            except BlockingIOError:
                if not self._wait(select.POLLIN, deadline):
                    raise ChannelClosed("the peer stalled in the middle of a frame") from None
                continue
            except OSError as error:
                raise ChannelClosed(f"reading failed: {error.strerror}") from error
            if not data:
                raise ChannelClosed("the peer closed the connection")
            return data

    def _write(self, frame: bytes, deadline: float) -> None:
        view = memoryview(frame)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                if not self._wait(select.POLLOUT, deadline):
                    if len(view) == len(frame):
                        raise TimeoutError("the peer does not read") from None
                    raise ChannelClosed("the peer stopped reading in the middle of a frame") from None
            except OSError as error:
                raise ChannelClosed(f"writing failed: {error.strerror}") from error

    def _wait(self, event: int, deadline: float | None) -> bool:
        """Whether the socket was ready (or broken) before the deadline."""
        poll = select.poll()
        try:
            poll.register(self._socket, event)
        except ValueError as error:  # closed
            raise ChannelClosed("the connection is closed") from error
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        return bool(poll.poll(remaining))
