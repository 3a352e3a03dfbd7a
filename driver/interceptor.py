"""What every RPC has in common: admission, required fields, errors to statuses, one log line."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message

from driver.errors import OutcomeUncertain, Unavailable, bounded, code_for
from driver.logs import SCRUBBER, request_id, strip_secrets
from driver.observation import Observer
from driver.required_fields import check_required_fields

_LOG = logging.getLogger(__name__)

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Behavior = Callable[[Message, grpc.ServicerContext], Message]

#: These ask neither a cloud nor a disk, and always find a thread: liveness must not depend on load.
ALWAYS_ADMITTED = frozenset(
    {
        "/csi.v1.Identity/GetPluginInfo",
        "/csi.v1.Identity/GetPluginCapabilities",
        "/csi.v1.Identity/Probe",
        "/csi.v1.Controller/ControllerGetCapabilities",
        "/csi.v1.Node/NodeGetCapabilities",
        "/csi.v1.Node/NodeGetInfo",
    }
)

_PACKAGE = "/csi.v1."
_PROBE = "/csi.v1.Identity/Probe"

#: Names of the object that a call is about, for its log line, most telling first.
_OBJECT_FIELDS = ("volume_id", "snapshot_id", "source_volume_id", "name")


class _StatusContext(Protocol):
    """What grpcio's context also has, and its type stubs leave out."""

    def code(self) -> grpc.StatusCode | None: ...

    def details(self) -> bytes | None: ...


@dataclass(frozen=True)
class _Call:
    """One RPC in progress."""

    number: int
    method: str
    request: Message
    context: grpc.ServicerContext
    started: float

    @property
    def short_method(self) -> str:
        """``Controller/CreateVolume``."""
        return self.method.removeprefix(_PACKAGE)

    def seconds(self) -> float:
        """How long ago it arrived."""
        return time.monotonic() - self.started

    def chosen_status(self) -> tuple[grpc.StatusCode, str] | None:
        """The code and words that the service itself gave to the context (as ``context.abort`` does)."""
        context = cast(_StatusContext, self.context)
        code = context.code()
        return None if code is None else (code, (context.details() or b"").decode("utf-8", "replace"))

    def failure(self, error: Exception) -> tuple[grpc.StatusCode, str]:
        """The status to answer for what the service raised."""
        code, message = self.chosen_status() or (code_for(error), str(error))
        if code is None:
            code = grpc.StatusCode.INTERNAL
            message = (
                f"unexpected {type(error).__name__}; the driver's log tells more at request_id {self.number}"
            )
        elif code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.OK):
            code = grpc.StatusCode.INTERNAL
        return code, bounded(SCRUBBER.scrub(message))

    def unplanned(self, error: Exception) -> Exception | None:
        """The error whose traceback belongs in the log; None when it was raised on purpose."""
        if self.chosen_status() is not None:
            return None
        return error if code_for(error) is None or isinstance(error, OutcomeUncertain) else None

    def log(self, code: grpc.StatusCode, message: str, unplanned: Exception | None) -> None:
        """The call's one line."""
        fields: dict[str, object] = {"method": self.method}
        for name in _OBJECT_FIELDS:
            if name in self.request.DESCRIPTOR.fields_by_name and getattr(self.request, name):
                fields[name] = getattr(self.request, name)[:128]
        fields["code"] = code.name
        fields["milliseconds"] = round(self.seconds() * 1000, 1)
        if message:
            fields["error"] = message
        level = logging.INFO if code is grpc.StatusCode.OK else logging.WARNING
        if code is grpc.StatusCode.OK and self.method == _PROBE:
            level = logging.DEBUG  # one comes every few seconds
        if unplanned is not None:
            level = logging.ERROR
        _LOG.log(level, "rpc", extra={"fields": fields}, exc_info=unplanned)


class RpcInterceptor(grpc.ServerInterceptor):
    """Runs each unary call; ``concurrent_calls`` bounds those in progress.

    The bound is below the number of the server's threads, so that the calls of
    :data:`ALWAYS_ADMITTED` never wait for a slow one. A call over it is told at once to come again.
    """

    def __init__(self, concurrent_calls: int, observer: Observer) -> None:
        self._observer = observer
        self._concurrent_calls = concurrent_calls
        self._free = threading.Semaphore(concurrent_calls)
        self._numbers = itertools.count(1)
        self._in_flight: set[int] = set()
        self._idle = threading.Condition()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[_Request, _Response] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        method = handler_call_details.method
        behavior = cast(_Behavior, handler.unary_unary)

        def run(request: _Request, context: grpc.ServicerContext) -> _Response:
            call = _Call(next(self._numbers), method, cast(Message, request), context, time.monotonic())
            return cast(_Response, self._run(call, behavior))

        return grpc.unary_unary_rpc_method_handler(
            run, handler.request_deserializer, handler.response_serializer
        )

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no call is in progress; False when some still are after ``seconds``."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._in_flight, timeout=seconds)

    def _run(self, call: _Call, behavior: _Behavior) -> Message:
        with self._idle:
            self._in_flight.add(call.number)
        self._observer.rpc_began(call.short_method)
        try:
            with request_id(call.number), SCRUBBER.hold(call.request):
                return self._answer(call, behavior)
        finally:
            with self._idle:
                self._in_flight.remove(call.number)
                self._idle.notify_all()

    def _answer(self, call: _Call, behavior: _Behavior) -> Message:
        """The service's answer, logged; a failure leaves as the status chosen for it."""
        if _LOG.isEnabledFor(logging.DEBUG):
            request = str(strip_secrets(call.request))
            fields = {"method": call.method, "request": request}
            _LOG.debug("rpc begins", extra={"fields": fields})
        try:
            check_required_fields(call.request)
            response = self._admit(call, behavior)
        except Exception as error:  # the one place where every failure becomes a status
            code, message = call.failure(error)
            self._end(call, code, message, call.unplanned(error))
            call.context.abort(code, message)
        code, message = call.chosen_status() or (grpc.StatusCode.OK, "")
        self._end(call, code, bounded(SCRUBBER.scrub(message)))
        return response

    def _end(
        self, call: _Call, code: grpc.StatusCode, message: str, unplanned: Exception | None = None
    ) -> None:
        self._observer.rpc_ended(call.short_method, code.name, call.seconds())
        call.log(code, message, unplanned)

    def _admit(self, call: _Call, behavior: _Behavior) -> Message:
        if call.method in ALWAYS_ADMITTED:
            return behavior(call.request, call.context)
        if not self._free.acquire(blocking=False):
            raise Unavailable(
                f"{self._concurrent_calls} calls are in progress, the most at a time; call again"
            )
        try:
            return behavior(call.request, call.context)
        finally:
            self._free.release()
