"""Waiting for calls of SDKs that know nothing of deadlines, no longer than the deadline allows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Final, TypeVar

from providers.deadline import Deadline
from providers.errors import DeadlineError

Result = TypeVar("Result")

#: Seconds between two looks at the deadline, which can come early: when the caller leaves.
_LOOK_SECONDS: Final = 0.25


def bounded(call: Callable[[], Result], deadline: Deadline) -> Result:
    """The result of ``call``, which has a thread of its own, so that the caller can leave in time.

    The thread has the caller's context variables, so that its log lines name the same request.

    Raises:
        DeadlineError: the deadline came first. Whatever ``call`` raises.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    # A daemon: a call that hangs must not keep the process from ending.
    threading.Thread(target=copy_context().run, args=(run,), name="bounded-call", daemon=True).start()
    return wait_for(future, deadline)


def wait_for(future: Future[Result], deadline: Deadline) -> Result:
    """The future's result.

    Raises:
        DeadlineError: the deadline came first. Whatever the future holds.
    """
    while True:
        remaining = deadline.remaining()
        try:
            return future.result(timeout=min(remaining, _LOOK_SECONDS))
        except TimeoutError:
            if future.done():
                raise
            if remaining == 0.0:
                raise DeadlineError(
                    "the cloud did not answer before the call's deadline; it continues on retry"
                ) from None
