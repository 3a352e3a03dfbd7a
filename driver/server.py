"""The gRPC server: one Unix socket, a bounded pool of threads, a graceful stop."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from types import FrameType

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from driver.endpoint import Endpoint, EndpointError
from driver.interceptor import RpcInterceptor
from driver.observation import Observer
from proto import csi_pb2

_LOG = logging.getLogger(__name__)

_Behavior = Callable[[Message, grpc.ServicerContext], Message]

#: Each sidecar runs up to 100 workers; a call that waits for a cloud costs one thread, made on demand.
CONCURRENT_CALLS = 128

#: Threads that only calls of ``interceptor.ALWAYS_ADMITTED``, and refusals, can use.
SPARE_THREADS = 8

#: Seconds in which a call that was accepted has begun, and an answer has left.
_SETTLE_SECONDS = 0.2

#: After the grace period calls are canceled; this long (seconds) they may take to notice.
_CANCELED_SECONDS = 1.0

_SIGNAL_POLL_SECONDS = 0.25


class Server:
    """Serves CSI services, given by their name in csi.proto (``Identity``, ``Controller``, ``Node``).

    A service is an object with a method ``(request, context)`` for each RPC it implements; the RPCs it
    lacks answer UNIMPLEMENTED.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        services: Mapping[str, object],
        concurrent_calls: int = CONCURRENT_CALLS,
        observer: Observer | None = None,
    ) -> None:
        self._endpoint = endpoint
        observer = observer or Observer()
        self._interceptor = RpcInterceptor(concurrent_calls, observer)
        self._threads = futures.ThreadPoolExecutor(concurrent_calls + SPARE_THREADS, thread_name_prefix="rpc")
        self._server = grpc.server(self._threads, interceptors=[self._interceptor])
        for name, service in services.items():
            descriptor = csi_pb2.DESCRIPTOR.services_by_name[name]
            behaviors = _behaviors(descriptor, service)
            self._server.add_generic_rpc_handlers((_handlers(descriptor, behaviors),))
            observer.rpcs_offered(f"{name}/{method.name}" for method in behaviors)

    @property
    def target(self) -> str:
        """Where it serves, as gRPC writes it."""
        return self._endpoint.target

    def start(self) -> None:
        """Listen and serve.

        Raises:
            EndpointError: the socket can't be had.
        """
        self._endpoint.clear()
        try:
            self._server.add_insecure_port(self._endpoint.target)
        except RuntimeError as error:
            raise EndpointError(f"can't listen on {self._endpoint.path}: {error}") from error
        self._server.start()

    def stop(self, grace_seconds: float) -> bool:
        """Take no new calls, let those in progress end, and cancel the rest after the grace period.

        gRPC removes the socket as it stops listening, so a successor can start while this one drains.

        Returns:
            Whether every call has ended. One that has not holds a thread that can't be stopped.
        """
        stopped = self._server.stop(grace_seconds)
        # gRPC also waits for connections that never say a word; for us only calls count.
        while not stopped.wait(_SETTLE_SECONDS):
            if self._interceptor.wait_until_idle(0):
                self._server.stop(0)
        ended = self._interceptor.wait_until_idle(_CANCELED_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)
        return ended


def serve_until_signal(server: Server, grace_seconds: float) -> None:
    """Run ``server`` until SIGTERM or SIGINT, then drain it. Call it from the main thread.

    Raises:
        EndpointError: the socket can't be had.
    """
    stop = threading.Event()

    def request_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_stop)
    server.start()
    _LOG.info("serving", extra={"fields": {"endpoint": server.target}})
    # Not one long wait: a signal that arrives just before a thread begins to wait does not end the wait.
    while not stop.wait(_SIGNAL_POLL_SECONDS):
        pass
    _LOG.info("stopping", extra={"fields": {"grace_seconds": grace_seconds}})
    if server.stop(grace_seconds):
        _LOG.info("stopped")
        return
    # A thread is stuck in a backend's library. Whatever it does can be repeated by the next process.
    _LOG.warning("stopped; a call did not end in time, the next process repeats it")
    logging.shutdown()
    os._exit(0)


def _behaviors(service: ServiceDescriptor, implementation: object) -> dict[MethodDescriptor, _Behavior]:
    """The RPCs of ``service`` that ``implementation`` has a method for."""
    found = {method: getattr(implementation, method.name, None) for method in service.methods}
    return {method: behavior for method, behavior in found.items() if behavior}


def _handlers(
    service: ServiceDescriptor, behaviors: Mapping[MethodDescriptor, _Behavior]
) -> grpc.GenericRpcHandler:
    handlers = {method.name: _handler(method, behavior) for method, behavior in behaviors.items()}
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _handler(method: MethodDescriptor, behavior: _Behavior) -> grpc.RpcMethodHandler[Message, Message]:
    request_class: type[Message] = getattr(csi_pb2, method.input_type.name)
    return grpc.unary_unary_rpc_method_handler(behavior, request_class.FromString, _serialize)


def _serialize(response: Message) -> bytes:
    """Maps in key order, so that a replayed call is answered byte for byte as before."""
    return response.SerializeToString(deterministic=True)
