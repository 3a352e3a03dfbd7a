"""A ttrpc client for unary calls."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Self

from google.protobuf.message import DecodeError

from agent.ttrpc_frame import (
    MAX_DATA,
    Channel,
    ChannelClosed,
    Code,
    Frame,
    MessageType,
    OversizedFrame,
    TtrpcConnectionError,
    TtrpcError,
    TtrpcTimeout,
    encode_frame,
)
from proto import ttrpc_pb2

_CONNECT_TIMEOUT: Final = 5.0
_FRAME_TIMEOUT: Final = 30.0
_LAST_STREAM_ID: Final = 0xFFFF_FFFF


class Client:
    """One connection to a ttrpc server, for any number of threads.

    A lost connection stays lost: make a new client.

    Raises:
        TtrpcConnectionError: nothing listens on ``socket_path``.
    """

    def __init__(self, socket_path: str) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_CONNECT_TIMEOUT)
        try:
            connection.connect(socket_path)
        except OSError as error:
            connection.close()
            raise TtrpcConnectionError(
                f"could not connect to {socket_path}: {error.strerror or error}", sent=False
            ) from error
        self._channel = Channel(connection, _FRAME_TIMEOUT)
        self._lock = threading.Lock()
        self._pending: dict[int, Future[Frame]] = {}
        self._lost: str | None = None
        # Ids must reach the server in rising order, so taking one and sending are one step.
        self._send_lock = threading.Lock()
        self._next_stream_id = 1
        self._reader = threading.Thread(target=self._receive_all, name="ttrpc-client", daemon=True)
        self._reader.start()

    def call(self, service: str, method: str, payload: bytes, timeout: float) -> bytes:
        """Call ``service/method`` and return the payload of its answer.

        ``timeout`` is in seconds and covers sending, the server's work and the answer.

        Raises:
            TtrpcError: the server answered with a status, or the request is larger than a frame.
            TtrpcTimeout: no answer in time.
            TtrpcConnectionError: the connection is lost.
        """
        if not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout}")
        deadline = time.monotonic() + timeout
        request = ttrpc_pb2.Request(
            service=service, method=method, payload=payload, timeout_nano=int(timeout * 1e9)
        ).SerializeToString()
        if len(request) > MAX_DATA:
            raise TtrpcError(
                Code.RESOURCE_EXHAUSTED, f"a request of {len(request)} bytes exceeds the limit of {MAX_DATA}"
            )
        stream_id, answer = self._send(request, deadline)
        try:
            frame = answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise TtrpcTimeout(f"no answer to {service}/{method} within {timeout:g} s") from None
        finally:
            with self._lock:
                self._pending.pop(stream_id, None)
        return _payload(frame, self._break)

    def close(self) -> None:
        """Close the connection; calls that still wait end with TtrpcConnectionError."""
        self._break("the client was closed")
        self._reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, request: bytes, deadline: float) -> tuple[int, Future[Frame]]:
        if not self._send_lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise TtrpcTimeout("the connection was busy sending other requests")
        try:
            answer: Future[Frame] = Future()
            with self._lock:
                if self._lost is not None:
                    raise TtrpcConnectionError(self._lost, sent=False)
                stream_id = self._next_stream_id
                if stream_id > _LAST_STREAM_ID:
                    raise TtrpcConnectionError("the connection's stream ids are used up", sent=False)
                self._next_stream_id += 2
                self._pending[stream_id] = answer
            frame = encode_frame(stream_id, MessageType.REQUEST, request)
            try:
                self._channel.send(frame, max(0.0, deadline - time.monotonic()))
            except (ChannelClosed, TimeoutError) as error:
                with self._lock:
                    self._pending.pop(stream_id, None)
                if isinstance(error, TimeoutError):
                    raise TtrpcTimeout(f"the request could not be sent: {error}") from error
                raise TtrpcConnectionError(f"sending failed: {error}", sent=True) from error
            return stream_id, answer
        finally:
            self._send_lock.release()

    def _receive_all(self) -> None:
        try:
            while True:
                message = self._channel.receive()
                with self._lock:
                    answer = self._pending.pop(message.stream_id, None)
                if answer is None:
                    continue  # The answer to a call that gave up, or nothing of ours.
                if isinstance(message, OversizedFrame):
                    answer.set_exception(
                        TtrpcError(
                            Code.RESOURCE_EXHAUSTED,
                            f"an answer of {message.length} bytes exceeds the limit of {MAX_DATA}",
                        )
                    )
                else:
                    answer.set_result(message)
        except ChannelClosed as error:
            self._break(str(error))
        finally:
            self._channel.close()

    def _break(self, reason: str) -> None:
        with self._lock:
            if self._lost is None:
                self._lost = reason
            pending, self._pending = self._pending, {}
        self._channel.shut_down()
        for answer in pending.values():
            answer.set_exception(TtrpcConnectionError(reason, sent=True))


def _payload(frame: Frame, give_up: Callable[[str], None]) -> bytes:
    """The payload in an answer's frame; a peer that sends nonsense is not listened to any longer."""
    response = ttrpc_pb2.Response()
    problem = f"the server sent a message of type {frame.type} where a response was due"
    if frame.type == MessageType.RESPONSE:
        try:
            response.ParseFromString(frame.data)
        except DecodeError:
            problem = "the server sent a response that can't be read"
        else:
            if response.status.code:
                raise TtrpcError(response.status.code, response.status.message)
            return response.payload
    give_up(problem)
    raise TtrpcConnectionError(problem, sent=True)
