"""One request to Azure: sent once, by a thread of its own, and left when its caller's deadline comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from azure.core.polling import PollingMethod

from providers.azure.failures import classified, retry_after
from providers.bounded import bounded
from providers.deadline import Deadline

#: Of disks and snapshots; all of Azure's clouds have it.
API_VERSION = "2024-03-02"

Json = dict[str, Any]
Result = TypeVar("Result")

_LOOK_SECONDS = 0.5
#: Kept back of the deadline, so that the answer "not known yet" arrives before it.
_MARGIN_SECONDS = 0.25


@dataclass(frozen=True)
class Operation:
    """What Azure answered to a change that it accepted."""

    body: Json
    url: str
    """Where the operation can be watched; empty if it is over."""
    retry_after: float | None


@dataclass
class Sending:
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


def send(call: Callable[[Sending], Result], answer_seconds: float, deadline: Deadline) -> Result:
    """The result of ``call``, which makes one request with the options of the :class:`Sending` it gets.

    Raises:
        Refused, NotSent, NoAnswer (``failures.py``): see there. DeadlineError: the deadline came first.
    """
    deadline.check()
    sending = Sending(deadline, answer_seconds)

    def run() -> Result:
        try:
            return call(sending)
        except Exception as error:
            known = classified(error, sent=sending.sent)
            if known is error:
                raise
            raise known from error

    return bounded(run, deadline)


class NoPolling(PollingMethod[Operation]):
    """In place of the SDK's poller, which waits in a thread without bounds: keeps the first answer."""

    def initialize(self, client: Any, initial_response: Any, deserialization_callback: Any) -> None:
        del client, deserialization_callback
        response = initial_response.http_response
        url = response.headers.get("Azure-AsyncOperation") or response.headers.get("Location") or ""
        self._operation = Operation(
            {},
            url if response.status_code in (201, 202) or "Azure-AsyncOperation" in response.headers else "",
            retry_after(response.headers.get("Retry-After")),
        )

    def run(self) -> None:
        """Nothing: :class:`providers.azure.calls.Arm` follows the operation."""

    def status(self) -> str:
        return "accepted"

    def finished(self) -> bool:
        return True

    def resource(self) -> Operation:
        return self._operation


def accepted(begin: Callable[..., Any], arguments: tuple[object, ...], options: Json) -> Operation:
    operation: Operation = begin(*arguments, polling=NoPolling(), **options).result()
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
