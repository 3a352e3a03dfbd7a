"""Frames on the channel between host and guest: a length (u32, big-endian) and a JSON object.

Used on both ends. It imports next to nothing, for every import delays each boot: ``typing`` alone costs 0.1 s
of emulation.
"""

from __future__ import annotations

import binascii
import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    Frame = dict[str, Any]

    class Stream(Protocol):
        """What both a raw device and a buffered socket can do."""

        def read(self, size: int, /) -> bytes | None:
            """Up to ``size`` bytes, nothing at the end."""

        def write(self, data: bytes | memoryview, /) -> int | None:
            """How many bytes were taken."""

        def flush(self) -> None:
            """Nothing stays in a buffer."""
else:
    Frame = dict


def write_frame(stream: Stream, frame: Frame) -> None:
    """Write one frame and flush."""
    body = json.dumps(frame).encode()
    rest = memoryview(len(body).to_bytes(4, "big") + body)
    while rest:
        # A virtio-serial port takes 32 KiB at a time.
        rest = rest[stream.write(rest) or 0 :]
    stream.flush()


def read_frame(stream: Stream) -> Frame:
    """Read one frame.

    Raises:
        EOFError: the other side is gone.
    """
    body = _read_exactly(stream, int.from_bytes(_read_exactly(stream, 4), "big"))
    frame: Frame = json.loads(body)
    return frame


def _read_exactly(stream: Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = stream.read(size - len(data))
        if not piece:
            raise EOFError("the channel between host and guest was closed")
        data += piece
    return data


def pack(data: bytes) -> str:
    """Bytes as they stand in a frame."""
    return binascii.b2a_base64(data, newline=False).decode()


def unpack(text: str) -> bytes:
    """The reverse of :func:`pack`."""
    return binascii.a2b_base64(text)
