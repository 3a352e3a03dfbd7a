"""What providers tell of their calls to whoever counts them; nobody does unless the process asked for it.

One observer for the process, as with logging: SDK calls are made deep inside, by threads that serve many
RPCs. Names of operations, codes and waits come from small fixed sets, never from a request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

OK = "OK"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How a call of a backend's API ended."""

    code: str
    """:data:`OK`, or the backend's error code; ``NotSent`` or ``NoAnswer`` where it gave none."""
    throttled: bool = False
    """The backend answered that there are too many calls."""


class ProviderObserver:
    """Is told what happens, and does nothing; subclasses count. Its methods are quick and never raise."""

    def call_began(self, operation: str) -> None:
        """A call of the backend's API is about to be sent; ``operation`` as the API names it."""

    def call_ended(self, operation: str, outcome: Outcome, seconds: float) -> None:
        """It ended, ``seconds`` after it began."""

    def call_repeated(self, operation: str) -> None:
        """A call that failed or was throttled is going to be sent again."""

    def asked_together(self, question: str, size: int) -> None:
        """``size`` objects are asked about by one call."""

    def waited(self, what: str, seconds: float) -> None:
        """A caller waited that long for ``what``."""


_observers: list[ProviderObserver] = [ProviderObserver()]


def observe(observer: ProviderObserver) -> None:
    """Tell ``observer`` from now on, in place of the one before."""
    _observers[:] = [observer]


def observer() -> ProviderObserver:
    """The one to tell."""
    return _observers[0]


class Call:
    """One call of a backend's API, told of as it begins and as it ends; logged at ``debug``."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._told = observer()
        self._began = time.monotonic()
        self._told.call_began(operation)

    def ended(self, outcome: Outcome) -> None:
        """It did, with this."""
        seconds = time.monotonic() - self._began
        self._told.call_ended(self._operation, outcome, seconds)
        _log.debug("%s: %s after %.0f ms", self._operation, outcome.code, seconds * 1000)


@contextmanager
def call(operation: str, outcome_of: Callable[[BaseException], Outcome]) -> Iterator[None]:
    """Around one call of a backend's API; ``outcome_of`` says what an exception of it means."""
    one = Call(operation)
    outcome = Outcome(OK)
    try:
        yield
    except BaseException as error:
        outcome = outcome_of(error)
        raise
    finally:
        one.ended(outcome)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Around looking again and again until a backend has done something."""
    began = time.monotonic()
    try:
        yield
    finally:
        observer().waited(what, time.monotonic() - began)
