"""A ttrpc proxy for unary calls: some calls are taken over, all others go on byte for byte.

Each client gets a connection of its own to the upstream server, so that a peer that is slow or sends nonsense
holds up nobody but itself. Upstream stream ids are the proxy's own. Streaming calls are refused: neither
Kata's agent protocol nor the data hub's has any.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from agent.proxy_upstream import Upstream
from agent.ttrpc_async import Stream, status_response
from agent.ttrpc_frame import (
    MAX_DATA,
    ChannelClosed,
    Code,
    Frame,
    MessageType,
    RequestGate,
    TtrpcConnectionError,
    TtrpcError,
)
from agent.ttrpc_server import remove_stale_socket
from proto import ttrpc_pb2

_MAX_CONNECTIONS: Final = 64
_MAX_TAKEN_BYTES: Final = 64 << 20
"""Of requests that are being worked on here, over all connections."""
_CALL_BYTES: Final = 16 << 10
"""What a call costs beside its payload, generously."""
_FRAME_TIMEOUT: Final = 30.0
_UPSTREAM_WAIT: Final = 60.0
_UPSTREAM_POLL: Final = 0.1
_HANDSHAKE_TIMEOUT: Final = 10.0
_STOP_SECONDS: Final = 15.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """Where a server listens: a Unix socket's path, or a host and a TCP port."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


class Forward(Protocol):
    """Passes a call on to the upstream server."""

    async def __call__(self, request: ttrpc_pb2.Request) -> ttrpc_pb2.Response:
        """The upstream's answer, whatever its status.

        Raises:
            TtrpcError: it can't be sent: nothing reached the upstream.
            TtrpcConnectionError: the connection was lost; ``sent`` tells whether the call may have been run.
        """


Takeover = Callable[[ttrpc_pb2.Request, Forward], Awaitable[ttrpc_pb2.Response]]
"""Answers a call in the upstream's place; raises TtrpcError to answer with a status."""


class Proxy:
    """Listens on ``listen`` and forwards to ``upstream``, but for the calls that ``takeovers`` names.

    An upstream that is not there yet is waited for, for ``upstream_wait`` seconds; a lost one is connected to
    again by the next call. ``frame_timeout``, in seconds, bounds how long a peer may take to complete a
    frame it began, or to read what is sent to it.
    """

    def __init__(
        self,
        listen: Address,
        upstream: Address,
        takeovers: Mapping[tuple[str, str], Takeover],
        *,
        tls: ssl.SSLContext | None = None,
        upstream_wait: float = _UPSTREAM_WAIT,
        frame_timeout: float = _FRAME_TIMEOUT,
    ) -> None:
        self.listen = listen
        self._upstream = upstream
        self._takeovers = dict(takeovers)
        self._tls = tls
        self._upstream_wait = upstream_wait
        self._frame_timeout = frame_timeout
        self._taken_bytes = 0
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._stopping = False
        self._server: asyncio.Server | None = None

    async def start(self) -> Address:
        """Listen; on a Unix socket for root alone (mode 0600). A socket that nobody serves is replaced.

        Returns the address that was bound: port 0 asks for any.

        Raises:
            OSError: the address is taken or can't be bound.
        """
        if self.listen.path:
            path = Path(self.listen.path)
            remove_stale_socket(path)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(str(path))
                path.chmod(0o600)  # Before listen: until then nobody can connect.
            except OSError:
                listener.close()
                raise
            self._server = await asyncio.start_unix_server(self._accept, sock=listener)
            return self.listen
        self._server = await asyncio.start_server(
            self._accept,
            self.listen.host,
            self.listen.port,
            ssl=self._tls,
            ssl_handshake_timeout=_HANDSHAKE_TIMEOUT if self._tls else None,
        )
        return Address(host=self.listen.host, port=self._server.sockets[0].getsockname()[1])

    async def stop(self, grace: float = _STOP_SECONDS) -> None:
        """Stop listening and cut every connection.

        Calls that are being worked on here get ``grace`` seconds for the upstream's answer.
        """
        if self._server is None:
            return
        self._server.close()
        if self.listen.path:
            Path(self.listen.path).unlink(missing_ok=True)
        self._stopping = True
        for connection in self._connections.values():
            connection.cut()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=grace)
        for connection in self._connections.values():
            connection.cut_upstream()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=grace)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = Stream(reader, writer, self._frame_timeout)
        task = asyncio.current_task()
        if task is None or len(self._connections) >= _MAX_CONNECTIONS:
            _log.warning("refused a connection: there are %d already", _MAX_CONNECTIONS)
            stream.cut()
            return
        connection = _Connection(self, stream)
        self._connections[task] = connection
        try:
            await connection.serve()
        finally:
            del self._connections[task]

    def takeover(self, request: ttrpc_pb2.Request) -> Takeover | None:
        return self._takeovers.get((request.service, request.method))

    def take_room(self, size: int) -> None:
        """Account for a call that is worked on here.

        Raises:
            TtrpcError: there are too many.
        """
        if self._taken_bytes + size > _MAX_TAKEN_BYTES:
            raise TtrpcError(Code.RESOURCE_EXHAUSTED, "too many calls are being worked on; try again later")
        self._taken_bytes += size

    def give_room(self, size: int) -> None:
        self._taken_bytes -= size

    async def connect(self) -> Stream:
        """A new connection to the upstream server.

        Raises:
            TtrpcConnectionError: it did not come up in time.
        """
        deadline = time.monotonic() + self._upstream_wait
        while True:
            try:
                async with asyncio.timeout(self._frame_timeout):
                    if self._upstream.path:
                        opened = await asyncio.open_unix_connection(self._upstream.path)
                    else:
                        opened = await asyncio.open_connection(self._upstream.host, self._upstream.port)
                return Stream(*opened, self._frame_timeout)
            except OSError as error:  # TimeoutError is one.
                if self._stopping or time.monotonic() + _UPSTREAM_POLL > deadline:
                    raise TtrpcConnectionError(
                        f"nothing answers on {self._upstream}: {error.strerror or error}", sent=False
                    ) from None
            await asyncio.sleep(_UPSTREAM_POLL)


class _Connection:
    """One client of the proxy."""

    def __init__(self, proxy: Proxy, stream: Stream) -> None:
        self._proxy = proxy
        self._stream = stream
        self._upstream = Upstream(proxy.connect)
        self._gate = RequestGate()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Until the client goes, stalls or breaks the protocol beyond repair."""
        try:
            while True:
                message = await self._stream.receive()
                try:
                    frame = self._gate.admit(message)
                    if frame is not None:
                        await self._take(frame)
                except TtrpcError as error:
                    await self._answer(message.stream_id, status_response(error))
        except ChannelClosed as error:
            _log.debug("a client's connection ended: %s", error)
        finally:
            self._stream.cut()
            # What was begun here is brought to its end, with the upstream's answer.
            await self._finish()
            await self._upstream.close()

    def cut(self) -> None:
        self._stream.cut()

    def cut_upstream(self) -> None:
        self._upstream.cut()

    async def _finish(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _take(self, frame: Frame) -> None:
        request = ttrpc_pb2.Request()
        try:
            request.ParseFromString(frame.data)
        except DecodeError:
            # Not forwarded: the upstream may read what we could not.
            raise TtrpcError(Code.INVALID_ARGUMENT, "the request can't be read") from None
        takeover = self._proxy.takeover(request)
        if takeover is None:
            await self._pass_on(frame)
            return
        size = len(frame.data) + _CALL_BYTES
        self._proxy.take_room(size)
        task = asyncio.create_task(self._run(takeover, request, frame.stream_id, size))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, frame: Frame) -> None:
        async def deliver(answer: Frame | None) -> None:
            if answer is None:
                await self._answer(frame.stream_id, _lost())
            else:
                await self._send(frame.stream_id, answer.type, answer.flags, answer.data)

        try:
            await self._upstream.send(frame.flags, frame.data, deliver)
        except TtrpcConnectionError as error:
            if not error.sent:
                raise TtrpcError(Code.UNAVAILABLE, str(error)) from None
            # Then ``deliver`` gets to know.

    async def _run(self, takeover: Takeover, request: ttrpc_pb2.Request, stream_id: int, size: int) -> None:
        try:
            response = (await takeover(request, self._forward)).SerializeToString()
            if len(response) > MAX_DATA:
                raise TtrpcError(Code.RESOURCE_EXHAUSTED, f"an answer of {len(response)} bytes is too large")
        except TtrpcError as error:
            response = status_response(error)
        except TtrpcConnectionError as error:
            response = status_response(TtrpcError(Code.UNAVAILABLE, str(error)))
        except Exception as error:
            # Neither the text nor the traceback: either may hold what the call was about.
            _log.error("a call that was taken over failed with %s", type(error).__name__)
            response = status_response(TtrpcError(Code.INTERNAL, "the proxy failed"))
        finally:
            self._proxy.give_room(size)
        await self._answer(stream_id, response)

    async def _forward(self, request: ttrpc_pb2.Request) -> ttrpc_pb2.Response:
        data = request.SerializeToString()
        if len(data) > MAX_DATA:
            raise TtrpcError(
                Code.RESOURCE_EXHAUSTED, f"the changed request of {len(data)} bytes is too large"
            )
        answered: asyncio.Future[Frame | None] = asyncio.get_running_loop().create_future()

        async def deliver(answer: Frame | None) -> None:
            answered.set_result(answer)

        await self._upstream.send(0, data, deliver)
        answer = await answered
        if answer is None:
            raise TtrpcConnectionError("the connection to the upstream was lost", sent=True)
        try:
            return ttrpc_pb2.Response.FromString(answer.data)
        except DecodeError:
            raise TtrpcConnectionError("the upstream's answer can't be read", sent=True) from None

    async def _answer(self, stream_id: int, response: bytes) -> None:
        await self._send(stream_id, MessageType.RESPONSE, 0, response)

    async def _send(self, stream_id: int, kind: int, flags: int, data: bytes) -> None:
        with suppress(ChannelClosed):  # Nobody is left to tell; ``serve`` ends by itself.
            await self._stream.send(stream_id, kind, flags, data)


def _lost() -> bytes:
    return status_response(
        TtrpcError(Code.UNAVAILABLE, "the upstream's connection was lost; it may have run the call, or not")
    )
