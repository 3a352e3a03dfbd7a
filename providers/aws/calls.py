"""Calls to one region's EC2: bounded by the deadline, with retries chosen here, not by the SDK.

The SDK's own retries are off: they know no deadline, and they would send again what must be looked up first
(CreateSnapshot has no client token).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from providers import observation
from providers.aws.failures import NoAnswer, NotSent, Refused, Throttled, as_provider_error, classified
from providers.aws.pacing import Pacer
from providers.bounded import bounded
from providers.deadline import Deadline
from providers.errors import UnavailableError
from providers.observation import Outcome, observer

_ATTEMPTS = 3
"""Of a call that did not get through."""
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0

Answer = dict[str, Any]


class Ec2:
    """One region's EC2, through one long-lived client."""

    def __init__(self, region: str, client: Any) -> None:
        self.region = region
        self._client = client
        self._pacers: defaultdict[str, Pacer] = defaultdict(Pacer)

    def send(self, action: str, deadline: Deadline, **arguments: Any) -> Answer:
        """One attempt of one call; ``action`` is boto3's name for it, as ``create_volume``.

        Raises:
            Refused, Throttled, NotSent, NoAnswer: as their classes say.
            DeadlineError: no answer before the deadline; it may have been done.
        """
        deadline.check()
        method = getattr(self._client, action)

        def call() -> Answer:
            with observation.call(api_name(action), _outcome):
                return _classifying(method, arguments)

        return bounded(call, deadline)

    def ask(self, action: str, deadline: Deadline, **arguments: Any) -> Answer:
        """A call that changes nothing.

        Raises:
            Refused: EC2 answered with an error. UnavailableError: it could not be asked.
        """
        pauses = _pauses()
        attempt = 0
        while True:
            try:
                return self.send(action, deadline, **arguments)
            except Throttled as error:
                pause = next(pauses)
                failure: Refused | NotSent | NoAnswer = error
            except (NotSent, NoAnswer) as error:
                attempt += 1
                pause = next(pauses) if attempt < _ATTEMPTS else deadline.remaining()
                failure = error
            if pause >= deadline.remaining():
                raise as_provider_error(action, failure) from failure
            sleep(pause, deadline)
            observer().call_repeated(api_name(action))

    def change(self, action: str, deadline: Deadline, *, repeatable: bool, **arguments: Any) -> Answer:
        """A call that changes something; throttled ones wait for their turn.

        Args:
            repeatable: doing it twice is doing it once, so it is sent again when no answer came.

        Raises:
            Refused: EC2 answered with an error; nothing was done. UnavailableError: nothing was sent.
            NoAnswer: it may have been done. DeadlineError: likewise.
        """
        pacer = self._pacers[action]
        pauses = _pauses()
        attempt = 0
        while True:
            begun = pacer.begin(deadline)
            throttled = False
            try:
                return self.send(action, deadline, **arguments)
            except Throttled:
                throttled = True
                observer().call_repeated(api_name(action))
                continue
            except NotSent as error:
                attempt += 1
                if attempt == _ATTEMPTS:
                    raise as_provider_error(action, error) from error
            except NoAnswer:
                attempt += 1
                if attempt == _ATTEMPTS or not repeatable:
                    raise
            finally:
                pacer.end(begun, throttled=throttled)
            sleep(next(pauses), deadline)
            observer().call_repeated(api_name(action))

    def pages(self, action: str, member: str, deadline: Deadline, **arguments: Any) -> Iterator[Answer]:
        """The items, under ``member``, of all pages of a describe call.

        Raises:
            As :meth:`ask`.
        """
        while True:
            answer = self.ask(action, deadline, **arguments)
            yield from answer.get(member, ())
            if not answer.get("NextToken"):
                return
            arguments["NextToken"] = answer["NextToken"]


def sleep(seconds: float, deadline: Deadline) -> None:
    """Wait, at most until the deadline.

    Raises:
        UnavailableError: it comes first.
    """
    if seconds >= deadline.remaining():
        raise UnavailableError("EC2 does not take the call before the deadline; it is tried again")
    threading.Event().wait(seconds)


def _classifying(method: Callable[..., Answer], arguments: Answer) -> Answer:
    try:
        return method(**arguments)
    except Exception as error:
        known = classified(error)
        if known is error:
            raise
        raise known from error


def api_name(action: str) -> str:
    """EC2's name of a call: ``DescribeVolumes`` for ``describe_volumes``."""
    return "".join(part.capitalize() for part in action.split("_"))


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, Refused):
        return Outcome(error.code or "Refused", throttled=isinstance(error, Throttled))
    return Outcome(type(error).__name__)


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE)
