"""Calls to Azure Resource Manager: bounded by the caller's deadline, repeated here and nowhere else.

The SDK's own retries are off (they sleep as long as Azure says, whatever the caller's deadline), so is its
poller's thread: an accepted operation is followed here, and one that is not finished is not a success.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from azure.core.credentials import TokenCredential
from azure.core.pipeline import policies
from azure.core.pipeline.transport import HttpTransport
from azure.core.polling import PollingMethod
from azure.core.rest import HttpRequest
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.core.policies import ARMChallengeAuthenticationPolicy

from providers.azure.failures import (
    Failed,
    NoAnswer,
    NotSent,
    Refused,
    Throttled,
    as_provider_error,
    classified,
    retry_after,
)
from providers.azure.settings import Timings
from providers.deadline import Deadline
from providers.errors import DeadlineError, OutcomeUnknownError

#: Of disks and snapshots; all of Azure's clouds have it.
API_VERSION = "2024-03-02"

Json = dict[str, Any]
Result = TypeVar("Result")

_ATTEMPTS = 3
_LOOK_SECONDS = 0.5
#: Kept back of the deadline, so that the answer "not known yet" arrives before it.
_MARGIN_SECONDS = 0.25
_TERMINAL = frozenset({"succeeded", "failed", "canceled"})


@dataclass(frozen=True)
class Operation:
    """What Azure answered to a change that it accepted."""

    status: int
    body: Json
    url: str
    """Where the operation can be watched; empty if it is over."""
    retry_after: float | None


class Arm:
    """The disks and snapshots of one subscription. Thread-safe; connections and tokens are reused."""

    def __init__(
        self,
        subscription: str,
        endpoint: str,
        credential: TokenCredential,
        timings: Timings,
        transport: HttpTransport[Any, Any] | None,
    ) -> None:
        self.timings = timings
        options: Json = {} if transport is None else {"transport": transport}
        self._client = ComputeManagementClient(
            credential,
            subscription,
            endpoint,
            policies=[
                policies.RequestIdPolicy(),
                policies.UserAgentPolicy("confidential-csi"),
                policies.ProxyPolicy(),
                policies.ContentDecodePolicy(),
                ARMChallengeAuthenticationPolicy(credential, f"{endpoint}/.default"),
                policies.CustomHookPolicy(),
            ],
            **options,
        )
        self._operations: Mapping[str, Any] = {
            "disks": self._client.disks,
            "snapshots": self._client.snapshots,
        }

    def get(self, kind: str, group: str, name: str, deadline: Deadline) -> Json | None:
        """The disk or snapshot (``kind``: ``disks``, ``snapshots``); None if Azure was asked and has none.

        Raises:
            UnavailableError: it could not be asked.
        """
        try:
            found: Json = self._ask(
                f"reading {name}",
                lambda sending: self._operations[kind].get(group, name, **sending.options).as_dict(),
                deadline,
            )
        except Refused as error:
            if error.not_found:
                return None
            raise as_provider_error(f"reading {name}", error) from error
        return found

    def list(self, kind: str, group: str, deadline: Deadline) -> Sequence[Json]:
        """All disks or snapshots of the resource group.

        Raises:
            UnavailableError: it could not be asked.
        """

        def pages(sending: _Sending) -> Sequence[Json]:
            found = self._operations[kind].list_by_resource_group(group, **sending.options)
            return [item.as_dict() for item in found]

        try:
            return self._ask(f"listing {kind}", pages, deadline)
        except Refused as error:
            raise as_provider_error(f"listing {kind}", error) from error

    def put(self, kind: str, group: str, name: str, body: Json, deadline: Deadline) -> None:
        """Create the object, and wait until it is made. Doing it twice is doing it once.

        A conflict is the caller's to look into: the object that is there then may be what another call made.

        Raises:
            Refused: nothing was done. UnavailableError: nothing was sent. Failed: it came to nothing.
            OutcomeUnknownError: it may have been done, or is not finished.
        """
        self._change(f"creating {name}", "begin_create_or_update", kind, (group, name, body), deadline)

    def patch(self, kind: str, group: str, name: str, body: Json, deadline: Deadline) -> None:
        """Change the object, and wait until it is changed.

        Raises:
            As :meth:`put`.
        """
        self._change(f"changing {name}", "begin_update", kind, (group, name, body), deadline)

    def delete(self, kind: str, group: str, name: str, deadline: Deadline) -> None:
        """Delete the object, and wait until it is gone; one that is gone already is a success.

        Raises:
            As :meth:`put`.
        """
        try:
            self._change(f"deleting {name}", "begin_delete", kind, (group, name), deadline)
        except Refused as error:
            if not error.not_found:
                raise

    def _ask(self, action: str, call: Callable[[_Sending], Result], deadline: Deadline) -> Result:
        """A call that changes nothing.

        Raises:
            Refused: Azure answered with an error. UnavailableError: it could not be asked.
        """
        pauses = self.pauses()
        attempt = 0
        while True:
            try:
                return self._send(call, deadline)
            except Throttled as error:
                failure: Refused | NotSent | NoAnswer = error
                wanted = error.retry_after
            except (NotSent, NoAnswer) as error:
                attempt += 1
                if attempt == _ATTEMPTS:
                    raise as_provider_error(action, error) from error
                failure = error
                wanted = error.retry_after if isinstance(error, NoAnswer) else None
            if not pause(next(pauses), wanted, deadline):
                raise as_provider_error(action, failure) from failure

    def _change(
        self, action: str, method: str, kind: str, arguments: tuple[object, ...], deadline: Deadline
    ) -> None:
        def call(sending: _Sending) -> Operation:
            return _accepted(getattr(self._operations[kind], method), arguments, sending.options)

        repeated = method != "begin_create_or_update"
        operation = self._begin(action, call, deadline, repeat_conflicts=repeated)
        if operation.url and not self._follow(action, operation, deadline):
            group, name = str(arguments[0]), str(arguments[1])
            self._watch(action, kind, group, name, deadline, gone_is_done=method == "begin_delete")

    def _begin(
        self,
        action: str,
        call: Callable[[_Sending], Operation],
        deadline: Deadline,
        *,
        repeat_conflicts: bool,
    ) -> Operation:
        pauses = self.pauses()
        attempt = 0
        maybe_done = False
        while True:
            try:
                return self._send(call, deadline)
            except Throttled as error:
                failure: Exception = error
                wanted = error.retry_after
            except Refused as error:
                if not (error.conflict and repeat_conflicts):
                    raise
                failure, wanted = error, error.retry_after
                maybe_done = True  # by whoever is at it; the repeated call will tell
            except (NotSent, NoAnswer) as error:
                maybe_done = maybe_done or isinstance(error, NoAnswer)
                attempt += 1
                failure = error
                wanted = error.retry_after if isinstance(error, NoAnswer) else None
            except DeadlineError as error:
                raise OutcomeUnknownError(f"{action}: no answer before the deadline; call again") from error
            if attempt == _ATTEMPTS or not pause(next(pauses), wanted, deadline):
                if maybe_done:
                    raise OutcomeUnknownError(
                        f"{action}: {failure}; it may have been done, call again"
                    ) from failure
                raise as_provider_error(action, failure) from failure

    def _follow(self, action: str, operation: Operation, deadline: Deadline) -> bool:
        """Wait until the operation is over; False if Azure does not tell (any more) how it goes."""
        pauses = self.pauses()
        wanted = operation.retry_after
        url = operation.url
        last: Exception | None = None
        while True:
            if not pause(next(pauses), wanted, deadline):
                raise OutcomeUnknownError(
                    f"{action}: Azure accepted it and is not done{f' ({last})' if last else ''}; call again"
                ) from last
            try:
                state = self._send(lambda sending: self._look(url, sending), deadline)
            except (Throttled, NoAnswer) as error:
                last, wanted = error, error.retry_after
                continue
            except (Refused, NotSent) as error:
                last, wanted = error, None
                if isinstance(error, Refused):
                    return False
                continue
            except DeadlineError as error:
                raise OutcomeUnknownError(
                    f"{action}: accepted, not done at the deadline; call again"
                ) from error
            last, wanted = None, state.retry_after
            if state.url:
                continue
            status = str(state.body.get("status", "Succeeded"))
            if status.lower() != "succeeded":
                error_body = state.body.get("error") or {}
                raise Failed(str(error_body.get("code", "")) or status)
            return True

    def _watch(
        self, action: str, kind: str, group: str, name: str, deadline: Deadline, *, gone_is_done: bool
    ) -> None:
        """Wait until the object itself shows that nothing is being done to it.

        Operations are the subscription's, not the resource group's, so a role there need not cover them.
        """
        pauses = self.pauses()
        while True:
            document = self.get(kind, group, name, deadline)
            if document is None:
                if gone_is_done:
                    return
                raise OutcomeUnknownError(f"{action}: the object is gone; call again")
            state = str(document.get("properties", {}).get("provisioningState", ""))
            if state.lower() in _TERMINAL:
                if state.lower() == "succeeded" and not gone_is_done:
                    return
                raise Failed(state)
            if not pause(next(pauses), None, deadline):
                raise OutcomeUnknownError(f"{action}: Azure accepted it and is not done; call again")

    def _look(self, url: str, sending: _Sending) -> Operation:
        options = dict(sending.options)
        options.pop("api_version", None)
        response = self._client.send_request(HttpRequest("GET", url), **options)
        response.raise_for_status()
        body: Json = response.json() if response.content else {}
        # What a Location header names has no status in its answer: it is 202 until the operation is over.
        status = str(body.get("status", ""))
        over = status.lower() in _TERMINAL if status else response.status_code != 202
        return Operation(
            response.status_code,
            body if status else {},
            "" if over else url,
            retry_after(response.headers.get("Retry-After")),
        )

    def _send(self, call: Callable[[_Sending], Result], deadline: Deadline) -> Result:
        """One call, once, by a thread of its own, so that the caller can leave in time.

        Raises:
            Refused, NotSent, NoAnswer: see there. DeadlineError: the deadline came first.
        """
        deadline.check()
        sending = _Sending(deadline, self.timings.answer)

        def run() -> Result:
            try:
                return call(sending)
            except Exception as error:
                known = classified(error, sent=sending.sent)
                if known is error:
                    raise
                raise known from error

        return _bounded(run, deadline)

    def pauses(self) -> Iterator[float]:
        """Seconds between attempts, longer and longer."""
        seconds = self.timings.first_pause
        while True:
            yield seconds
            seconds = min(seconds * 2, self.timings.longest_pause)


@dataclass
class _Sending:
    """One request on its way; ``options`` are for the SDK's methods."""

    deadline: Deadline
    answer_seconds: float
    sent: bool = False
    options: Json = field(init=False)

    def __post_init__(self) -> None:
        seconds = max(0.001, min(self.deadline.remaining(), self.answer_seconds))
        self.options = {
            "api_version": API_VERSION,
            "connection_timeout": seconds,
            "read_timeout": seconds,
            "raw_request_hook": self._about_to_send,
        }

    def _about_to_send(self, _request: object) -> None:
        # The caller may have left while a token was fetched: a change sent now would come out of turn.
        self.deadline.check()
        self.sent = True


class _NoPolling(PollingMethod[Operation]):
    """In place of the SDK's poller, which waits in a thread without bounds: keeps the first answer."""

    def initialize(self, client: Any, initial_response: Any, deserialization_callback: Any) -> None:
        del client, deserialization_callback
        response = initial_response.http_response
        url = response.headers.get("Azure-AsyncOperation") or response.headers.get("Location") or ""
        self._operation = Operation(
            response.status_code,
            {},
            url if response.status_code in (201, 202) or "Azure-AsyncOperation" in response.headers else "",
            retry_after(response.headers.get("Retry-After")),
        )

    def run(self) -> None:
        """Nothing: :class:`Arm` follows the operation."""

    def status(self) -> str:
        return "accepted"

    def finished(self) -> bool:
        return True

    def resource(self) -> Operation:
        return self._operation


def _accepted(begin: Callable[..., Any], arguments: tuple[object, ...], options: Json) -> Operation:
    operation: Operation = begin(*arguments, polling=_NoPolling(), **options).result()
    return operation


def pause(seconds: float, wanted: float | None, deadline: Deadline) -> bool:
    """Wait as long as Azure ``wanted``, else ``seconds``; False, at once, if the deadline comes first."""
    wait = seconds if wanted is None else wanted
    if wait >= deadline.remaining() - _MARGIN_SECONDS:
        return False
    event = threading.Event()
    while wait > 0:
        event.wait(min(wait, _LOOK_SECONDS))
        wait -= _LOOK_SECONDS
        if deadline.remaining() == 0.0:
            return False
    return True


def _bounded(call: Callable[[], Result], deadline: Deadline) -> Result:
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    # A daemon: a call that hangs must not keep the process from ending.
    threading.Thread(target=run, name="azure-call", daemon=True).start()
    while True:
        remaining = deadline.remaining()
        try:
            return future.result(timeout=min(remaining, _LOOK_SECONDS))
        except TimeoutError:
            if future.done():
                raise
            if remaining == 0.0:
                raise DeadlineError(
                    "Azure did not answer before the call's deadline; it continues on retry"
                ) from None
