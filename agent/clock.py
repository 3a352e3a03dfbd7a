"""Time as the agent waits in it: a seam, so that tests need not sit through real seconds."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds, and a way to let them pass."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
