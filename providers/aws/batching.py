"""All who ask about objects at one moment share the calls that answer them.

A waiter polls by asking again and again; what it costs is one call for all waiters at a time. Calls follow
each other ever more slowly the longer they go on, up to a few seconds, and at once after a pause.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from providers.aws.settings import Timings
from providers.bounded import wait_for
from providers.deadline import Deadline
from providers.observation import observer

Found = TypeVar("Found")

_GROWTH = 1.05

Fetch = Callable[[Sequence[str], Deadline], Mapping[str, Found]]
"""Answers for those of the keys that exist, by one call."""


class Batcher(Generic[Found]):
    """Questions of one kind.

    Args:
        fetch: asks EC2 about at most ``most`` keys.
        question: what is asked, for those who count.
    """

    def __init__(self, fetch: Fetch[Found], most: int, timings: Timings, question: str) -> None:
        self._fetch = fetch
        self._most = most
        self._timings = timings
        self._question = question
        self._lock = threading.Lock()
        self._asked: dict[str, list[tuple[Future[Found | None], Deadline]]] = {}
        self._is_running = False
        self._interval = timings.first_poll
        self._began = 0.0
        self._ended = 0.0

    def get(self, key: str, deadline: Deadline) -> Found | None:
        """What EC2 says of ``key`` after this call began; None if it knows none.

        Raises:
            UnavailableError: it could not be asked. DeadlineError: not in time.
        """
        deadline.check()
        future: Future[Found | None] = Future()
        with self._lock:
            self._asked.setdefault(key, []).append((future, deadline))
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="ec2-batch", daemon=True).start()
        return wait_for(future, deadline)

    def _run(self) -> None:
        while True:
            self._pause()
            with self._lock:
                asked, self._asked = self._asked, {}
            keys = list(asked)
            for start in range(0, len(keys), self._most):
                self._answer({key: asked[key] for key in keys[start : start + self._most]})
            self._ended = time.monotonic()
            with self._lock:
                if not self._asked:
                    self._is_running = False
                    return

    def _pause(self) -> None:
        """Until the next call may be made."""
        now = time.monotonic()
        # Since the last answer, not since its question: slow answers are no pause.
        if now - self._ended > self._interval:
            self._interval = self._timings.first_poll
        pause = max(self._interval - (now - self._began), self._timings.gather)
        self._interval = min(self._interval * _GROWTH, self._timings.last_poll)
        threading.Event().wait(pause)
        self._began = time.monotonic()

    def _answer(self, asked: Mapping[str, Sequence[tuple[Future[Found | None], Deadline]]]) -> None:
        waiting = {
            key: left
            for key, askers in asked.items()
            if (left := [(future, until) for future, until in askers if until.remaining()])
        }
        if not waiting:
            return
        everyone = [asker for askers in waiting.values() for asker in askers]
        observer().asked_together(self._question, len(waiting))
        # As patient as the most patient of those who ask; the others leave by themselves.
        last = max((until for _, until in everyone), key=Deadline.remaining)
        try:
            found = self._fetch(list(waiting), last)
        except BaseException as error:
            for future, _ in everyone:
                future.set_exception(error)
            return
        for key, askers in waiting.items():
            for future, _ in askers:
                future.set_result(found.get(key))
