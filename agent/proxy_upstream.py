"""The proxy's side towards the upstream server: connecting, numbering the requests, sorting the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from agent.ttrpc_async import Stream, status_response
from agent.ttrpc_frame import (
    ChannelClosed,
    Code,
    Frame,
    MessageType,
    OversizedFrame,
    TtrpcConnectionError,
    TtrpcError,
)

Deliver = Callable[[Frame | None], Awaitable[None]]
"""Gets the upstream's answer, or None when the connection is lost."""

_MAX_PENDING: Final = 16_384
"""Calls of one connection that the upstream has not answered; a container's processes are waited for with one
each, for as long as they run."""
_LAST_STREAM_ID: Final = 0xFFFF_FFFF

_log = logging.getLogger(__name__)


class Upstream:
    """The connection to the upstream server of one client: made when needed, and again when lost."""

    def __init__(self, connect: Callable[[], Awaitable[Stream]]) -> None:
        self._connect = connect
        self._connecting = asyncio.Lock()
        self._link: _Link | None = None

    async def send(self, flags: int, data: bytes, deliver: Deliver) -> None:
        """Send a request; ``deliver`` is called once, unless this raises with ``sent`` false.

        Raises:
            TtrpcError: too many calls are waiting for an answer.
            TtrpcConnectionError: there is no connection.
        """
        async with self._connecting:
            if self._link is None or self._link.lost:
                self._link = _Link(await self._connect())
            link = self._link
        await link.send(flags, data, deliver)

    def cut(self) -> None:
        """Give up; who waits for an answer is told."""
        if self._link is not None:
            self._link.cut()

    async def close(self) -> None:
        """Give up, and wait until everybody was told."""
        if self._link is not None:
            await self._link.close()


class _Link:
    """One connection: numbers the requests, and gives each answer to whom it belongs."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pending: dict[int, Deliver] = {}
        self._next_id = 1
        self.lost = False
        self._reader = asyncio.create_task(self._receive_all())

    async def send(self, flags: int, data: bytes, deliver: Deliver) -> None:
        if self.lost:
            raise TtrpcConnectionError("the connection to the upstream was lost", sent=False)
        if len(self._pending) >= _MAX_PENDING:
            raise TtrpcError(Code.RESOURCE_EXHAUSTED, f"{_MAX_PENDING} calls wait for an answer already")
        stream_id = self._next_id
        self._next_id += 2
        self._pending[stream_id] = deliver
        if self._next_id > _LAST_STREAM_ID:
            self.lost = True  # To new calls: the ids are used up.
        try:
            await self._stream.send(stream_id, MessageType.REQUEST, flags, data)
        except ChannelClosed as error:
            # The reader tells ``deliver``.
            raise TtrpcConnectionError(f"sending to the upstream failed: {error}", sent=True) from None

    async def close(self) -> None:
        self.cut()
        await asyncio.wait([self._reader])

    def cut(self) -> None:
        self.lost = True
        self._stream.cut()

    async def _receive_all(self) -> None:
        try:
            while True:
                message = await self._stream.receive()
                await self._take(message)
        except ChannelClosed as error:
            _log.debug("an upstream connection ended: %s", error)
        finally:
            self.cut()
            pending, self._pending = self._pending, {}
            for deliver in pending.values():
                await deliver(None)

    async def _take(self, message: Frame | OversizedFrame) -> None:
        if isinstance(message, Frame) and message.type not in (MessageType.RESPONSE, MessageType.DATA):
            return  # Left for later versions of the protocol.
        deliver = self._pending.pop(message.stream_id, None)
        if deliver is None:
            return  # Nothing of ours.
        if isinstance(message, OversizedFrame):
            problem = TtrpcError(Code.RESOURCE_EXHAUSTED, f"an answer of {message.length} bytes is too large")
        elif message.type == MessageType.DATA:
            problem = TtrpcError(Code.UNIMPLEMENTED, "the answer is a stream; only unary calls are forwarded")
        else:
            await deliver(message)
            return
        await deliver(Frame(message.stream_id, MessageType.RESPONSE, 0, status_response(problem)))
