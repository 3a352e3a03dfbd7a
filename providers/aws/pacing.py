"""Sends the calls of one action as fast as EC2's token bucket lets them through, and hardly any faster.

EC2 counts a throttled call against nobody but the caller's time, and every process of the account draws from
the same bucket, so its size and rate can only be learned. Between two throttled calls the bucket went from
empty to empty: the calls that succeeded between them, over the time between them, are its rate.
"""

from __future__ import annotations

import threading
import time

from providers.deadline import Deadline
from providers.errors import UnavailableError
from providers.observation import waiting

_FREE_IN_FLIGHT = 8
_PACED_IN_FLIGHT = 2
_FIRST_INTERVAL = 0.2  # EC2's documented rate of most actions is 5 a second
_ENOUGH = 5
"""Successes that make an interval between two throttled calls a measurement."""
_PATIENCE = 50
"""Successes after which a little more is tried."""
_FORGET_SECONDS = 60.0
_ANSWER_SECONDS = 0.2
"""A call that waited is sent only if so much is left for its answer."""
_LOOK_SECONDS = 0.25  # a caller that goes away is noticed this soon


class Pacer:
    """The calls of one action in one region."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._in_flight = 0
        self._forget()
        self._last_end = 0.0

    def _forget(self) -> None:
        self._limit = _FREE_IN_FLIGHT
        self._interval = 0.0
        self._next = 0.0
        self._emptied: float | None = None
        self._successes = 0
        self._measured = False

    def begin(self, deadline: Deadline) -> float:
        """Wait until a call may be sent; the time to give to :meth:`end`.

        Raises:
            UnavailableError: that is not before the deadline; nothing was sent.
        """
        with waiting("turn"):
            if not self._turn.acquire(timeout=deadline.remaining()):
                raise _too_many()
            try:
                return self._begin(deadline)
            finally:
                self._turn.release()

    def _begin(self, deadline: Deadline) -> float:
        with self._changed:
            if not self._in_flight and time.monotonic() - self._last_end > _FORGET_SECONDS:
                self._forget()
            while True:
                now = time.monotonic()
                wait = max(0.0, self._next - now)
                if not wait and self._in_flight < self._limit:
                    break
                if wait and deadline.remaining() <= wait + _ANSWER_SECONDS:
                    raise _too_many()
                if not deadline.remaining():
                    raise _too_many()
                self._changed.wait(min(wait or _LOOK_SECONDS, _LOOK_SECONDS))
            self._in_flight += 1
            self._next = max(self._next + self._interval, now)
            return now

    def end(self, begun: float, *, throttled: bool) -> None:
        """The call that began at ``begun`` has ended."""
        with self._changed:
            self._in_flight -= 1
            self._last_end = now = time.monotonic()
            if not throttled:
                self._succeeded()
            elif self._emptied is None or begun > self._emptied:
                self._slow_down(now)
            self._changed.notify()

    def _succeeded(self) -> None:
        self._successes += 1
        if not self._measured:
            self._interval /= 1.1
        elif self._successes % _PATIENCE == 0:
            self._interval /= 1.05

    def _slow_down(self, now: float) -> None:
        if self._emptied is not None and self._successes >= _ENOUGH:
            self._interval = (now - self._emptied) / self._successes
            self._measured = True
        elif self._interval:
            self._interval *= 1.5
        else:
            self._interval = _FIRST_INTERVAL
        self._limit = _PACED_IN_FLIGHT
        self._emptied = now
        self._successes = 0
        self._next = now + self._interval


def _too_many() -> UnavailableError:
    return UnavailableError("EC2 takes no more calls of this kind before the deadline; it is tried again")
