"""A ttrpc server for unary calls, on a Unix socket.

Its peers are processes of the same machine that may be buggy or slow: each costs a bounded number of
threads and bytes, and none holds up another.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from agent.ttrpc_frame import (
    MAX_DATA,
    Channel,
    ChannelClosed,
    Code,
    Frame,
    MessageType,
    OversizedFrame,
    RequestGate,
    TtrpcError,
    encode_frame,
)
from proto import ttrpc_pb2

Handler = Callable[[bytes], bytes]
"""Takes a request's payload and returns the answer's; raises TtrpcError to answer with a status."""

_MAX_CONNECTIONS: Final = 16
_MAX_CALLS: Final = 16
"""Calls that run at once on one connection; its further requests wait unread, for as long as a frame may."""
_MAX_RUNNING: Final = _MAX_CONNECTIONS * _MAX_CALLS
"""Calls that run at once on all connections, those that are gone included: a handler can't be stopped."""
_FRAME_TIMEOUT: Final = 30.0
_ACCEPT_PAUSE: Final = 0.5
"""Seconds to wait when file descriptors or memory run out."""
_MAX_MESSAGE: Final = 4096
"""Characters of a status message that are sent."""

_log = logging.getLogger(__name__)


class Server:
    """Answers ``handlers[(service, method)]`` on ``socket_path``; started once, stopped once.

    Each call runs in a thread of its own. When a request's timeout passes first, it is answered with
    DEADLINE_EXCEEDED and what the handler returns later is dropped; until then it keeps its thread and its
    place among the calls of its connection, also when the client goes. Where no place gets free, a request is
    answered with RESOURCE_EXHAUSTED. ``frame_timeout``, in seconds, bounds how long a peer may take to
    complete a frame it began, or to read an answer.
    """

    def __init__(
        self,
        socket_path: str,
        handlers: Mapping[tuple[str, str], Handler],
        *,
        frame_timeout: float = _FRAME_TIMEOUT,
    ) -> None:
        self._path = Path(socket_path)
        self._handlers = dict(handlers)
        self._frame_timeout = frame_timeout
        self._running = threading.BoundedSemaphore(_MAX_RUNNING)
        self._lock = threading.Lock()
        self._connections: dict[_Connection, threading.Thread] = {}
        self._stopping = False
        self._listener: socket.socket | None = None
        self._inode = -1
        self._acceptor: threading.Thread | None = None

    def start(self) -> None:
        """Listen, for root alone (mode 0600). A socket that nobody listens on any more is replaced.

        Raises:
            OSError: the path is taken by a living server or by something that is not a socket, or
                can't be bound.
        """
        remove_stale_socket(self._path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self._path))
            self._path.chmod(0o600)  # Before listen: until then nobody can connect.
            listener.listen(_MAX_CONNECTIONS)
        except OSError:
            listener.close()
            raise
        self._inode = self._path.stat().st_ino
        self._listener = listener
        self._acceptor = threading.Thread(target=self._accept_all, args=(listener,), daemon=True)
        self._acceptor.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop listening, cut every connection and remove the socket.

        Handlers that still run get ``timeout`` seconds each to return; their answers go nowhere.
        """
        if self._listener is None or self._acceptor is None:
            return
        with self._lock:
            self._stopping = True
            connections = dict(self._connections)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            connection.cut()
        self._acceptor.join()
        self._listener.close()
        for connection, thread in connections.items():
            thread.join(timeout)
            connection.join(timeout)
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _accept_all(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError as error:
                if self._stopping:
                    return
                _log.warning("ttrpc server on %s could not accept: %s", self._path, error.strerror)
                time.sleep(_ACCEPT_PAUSE)
                continue
            with self._lock:
                if self._stopping or len(self._connections) >= _MAX_CONNECTIONS:
                    accepted.close()
                    continue
                connection = _Connection(
                    Channel(accepted, self._frame_timeout), self._handlers, self._running, self._frame_timeout
                )
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # Out of threads.
                    _log.warning("ttrpc server on %s dropped a connection: %s", self._path, error)
                    accepted.close()
                    continue
                self._connections[connection] = thread

    def _serve(self, connection: _Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                del self._connections[connection]


class _Connection:
    """One client: reads its requests and runs them."""

    def __init__(
        self,
        channel: Channel,
        handlers: Mapping[tuple[str, str], Handler],
        running: threading.BoundedSemaphore,
        patience: float,
    ) -> None:
        self._channel = channel
        self._handlers = handlers
        self._running = running
        self._patience = patience
        self._slots = threading.BoundedSemaphore(_MAX_CALLS)
        self._gate = RequestGate()
        self._workers: set[threading.Thread] = set()

    def serve(self) -> None:
        """Until the client goes, stalls or breaks the protocol beyond repair."""
        try:
            while True:
                message = self._channel.receive()
                try:
                    self._take(message)
                except TtrpcError as error:
                    self.answer(message.stream_id, _status(error))
        except ChannelClosed as error:
            _log.debug("ttrpc connection ended: %s", error)
        finally:
            self._channel.close()

    def cut(self) -> None:
        self._channel.shut_down()

    def join(self, timeout: float) -> None:
        for worker in list(self._workers):
            worker.join(timeout)

    def _take(self, message: Frame | OversizedFrame) -> None:
        """Start the call that ``message`` asks for.

        Raises:
            TtrpcError: it can't be taken; the status to answer with.
        """
        frame = self._gate.admit(message)
        if frame is None:
            return
        request = ttrpc_pb2.Request()
        try:
            request.ParseFromString(frame.data)
        except DecodeError:
            raise TtrpcError(Code.INVALID_ARGUMENT, "the request can't be read") from None
        handler = self._handlers.get((request.service, request.method))
        if handler is None:
            raise TtrpcError(Code.UNIMPLEMENTED, f"no method {request.service}/{request.method}")
        if request.timeout_nano < 0:
            raise TtrpcError(Code.DEADLINE_EXCEEDED, "the request's timeout had passed when it was sent")
        if not self._slots.acquire(timeout=self._patience):
            raise TtrpcError(
                Code.RESOURCE_EXHAUSTED,
                f"{_MAX_CALLS} calls of this connection have been running for {self._patience:g} s",
            )
        if not self._running.acquire(blocking=False):
            self._slots.release()
            raise TtrpcError(Code.RESOURCE_EXHAUSTED, f"{_MAX_RUNNING} calls are running already")
        worker = threading.Thread(
            target=self._run, args=(_Call(self, frame.stream_id, handler, request),), daemon=True
        )
        self._workers.add(worker)
        try:
            worker.start()
        except RuntimeError:
            self._end(worker)
            raise TtrpcError(Code.RESOURCE_EXHAUSTED, "out of threads") from None

    def _run(self, call: _Call) -> None:
        try:
            call.run()
        finally:
            self._end(threading.current_thread())

    def _end(self, worker: threading.Thread) -> None:
        self._workers.discard(worker)
        self._running.release()
        self._slots.release()

    def answer(self, stream_id: int, response: bytes) -> None:
        try:
            self._channel.send(encode_frame(stream_id, MessageType.RESPONSE, response), self._patience)
        except TimeoutError:
            self.cut()  # It has not read an answer in all that time.
        except ChannelClosed:
            pass  # Nobody is left to tell; ``serve`` ends by itself.


class _Call:
    """One request being handled: exactly one answer, the handler's or the clock's."""

    def __init__(
        self, connection: _Connection, stream_id: int, handler: Handler, request: ttrpc_pb2.Request
    ) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._handler = handler
        self._payload = request.payload
        self._timeout = request.timeout_nano / 1e9
        self._answered = threading.Lock()

    def run(self) -> None:
        timer = threading.Timer(self._timeout, self._expire)
        timer.daemon = True
        if 0 < self._timeout < threading.TIMEOUT_MAX:
            timer.start()
        try:
            response = self._handle()
        finally:
            timer.cancel()
        self._answer(response)

    def _handle(self) -> bytes:
        try:
            response = ttrpc_pb2.Response(payload=self._handler(self._payload)).SerializeToString()
        except TtrpcError as error:
            return _status(error)
        except Exception as error:
            # Neither the text nor the traceback: either may hold what the call was about, a key.
            _log.error("ttrpc handler failed with %s", type(error).__name__)
            return _status(TtrpcError(Code.INTERNAL, "the handler failed"))
        if len(response) > MAX_DATA:
            return _status(
                TtrpcError(
                    Code.RESOURCE_EXHAUSTED,
                    f"an answer of {len(response)} bytes exceeds the limit of {MAX_DATA}",
                )
            )
        return response

    def _expire(self) -> None:
        self._answer(_status(TtrpcError(Code.DEADLINE_EXCEEDED, f"not done within {self._timeout:g} s")))

    def _answer(self, response: bytes) -> None:
        if self._answered.acquire(blocking=False):
            self._connection.answer(self._stream_id, response)


def _status(error: TtrpcError) -> bytes:
    """A response that carries the status, and no payload."""
    message = error.message[:_MAX_MESSAGE].encode("utf-8", "replace").decode()
    return ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=error.code, message=message)).SerializeToString()


def remove_stale_socket(path: Path) -> None:
    """Remove a socket that nobody listens on any more.

    Raises:
        OSError: a living server has it, or it is not a socket.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(f"{path} exists and is not a socket; remove it or listen elsewhere")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise OSError(f"{path} is taken: {error.strerror or error}") from error
    raise FileExistsError(f"{path} is taken: a server listens on it")
