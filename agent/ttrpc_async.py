"""ttrpc frames over an asyncio connection, for the proxy: TLS or a Unix socket, thousands of open calls."""

from __future__ import annotations

import asyncio
from typing import Final

from agent.ttrpc_frame import (
    HEADER,
    MAX_DATA,
    MAX_DISCARDED,
    ChannelClosed,
    Frame,
    OversizedFrame,
    TtrpcError,
)
from proto import ttrpc_pb2

_CHUNK: Final = 256 << 10
_MAX_MESSAGE: Final = 4096
"""Characters of a status message that are sent."""


class Stream:
    """Frames over a connection, which it owns. One task may ``receive``, any may ``send``.

    ``frame_timeout``, in seconds, bounds how long the peer may take to complete a frame it began, and to make
    room for one that is sent to it.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame_timeout: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._frame_timeout = frame_timeout

    async def receive(self) -> Frame | OversizedFrame:
        """The next message; for its beginning there is no limit of time.

        Raises:
            ChannelClosed: nothing more will come.
        """
        try:
            begin = await self._reader.readexactly(1)
            async with asyncio.timeout(self._frame_timeout):
                header = begin + await self._reader.readexactly(HEADER.size - 1)
                length, stream_id, kind, flags = HEADER.unpack(header)
                if length > MAX_DATA:
                    await self._discard(length)
                    return OversizedFrame(stream_id, length)
                # The reader's buffer grows with what arrives: a header alone reserves no memory.
                return Frame(stream_id, kind, flags, await self._reader.readexactly(length))
        except TimeoutError:
            raise ChannelClosed("the peer stalled in the middle of a frame") from None
        except (OSError, EOFError) as error:
            raise ChannelClosed(f"the connection ended: {error}") from None

    async def send(self, stream_id: int, kind: int, flags: int, data: bytes) -> None:
        """Send one frame.

        Raises:
            ChannelClosed: the connection is gone, or was cut because the peer does not read.
        """
        if self._writer.is_closing():
            raise ChannelClosed("the connection is closed")
        try:
            # In one piece, so that frames of several tasks do not mix.
            self._writer.write(HEADER.pack(len(data), stream_id, kind, flags) + data)
            async with asyncio.timeout(self._frame_timeout):
                await self._writer.drain()
        except TimeoutError:
            self.cut()
            raise ChannelClosed("the peer does not read") from None
        except OSError as error:
            raise ChannelClosed(f"writing failed: {error}") from None

    def cut(self) -> None:
        """Close; what a peer that does not read has left in the buffer is dropped."""
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def _discard(self, length: int) -> None:
        if length >= MAX_DISCARDED:
            raise ChannelClosed(f"a frame of {length} bytes is not ttrpc")
        while length:
            piece = await self._reader.read(min(length, _CHUNK))
            if not piece:
                raise ChannelClosed("the peer closed the connection")
            length -= len(piece)


def status_response(error: TtrpcError) -> bytes:
    """An encoded response that carries the status, and no payload."""
    message = error.message[:_MAX_MESSAGE].encode("utf-8", "replace").decode()
    return ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=error.code, message=message)).SerializeToString()
