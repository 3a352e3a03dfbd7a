"""A clock whose seconds pass only when somebody sleeps."""

from __future__ import annotations

from collections.abc import Callable


class FakeClock:
    """Counts the seconds slept; ``on_sleep`` may change the world meanwhile."""

    def __init__(self, on_sleep: Callable[[float], None] | None = None) -> None:
        self.now = 1000.0
        self._on_sleep = on_sleep

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds
        if self._on_sleep is not None:
            self._on_sleep(self.now)
