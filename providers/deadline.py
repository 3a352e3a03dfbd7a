"""How long a call may still take: handed from the RPC down to every wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from providers.errors import DeadlineError


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Deadline:
    """A point in monotonic time (seconds, as ``time.monotonic``) after which the caller stops waiting."""

    expires_at: float
    cancelled: Callable[[], bool] = _never

    @classmethod
    def after(cls, seconds: float, cancelled: Callable[[], bool] = _never) -> Deadline:
        """A deadline ``seconds`` from now; ``cancelled`` tells whether the caller has gone away."""
        return cls(time.monotonic() + seconds, cancelled)

    def remaining(self) -> float:
        """Seconds left; 0.0 when none are, or when the caller has gone away."""
        if self.cancelled():
            return 0.0
        return max(0.0, self.expires_at - time.monotonic())

    def check(self) -> None:
        """Return while time is left.

        Raises:
            DeadlineError: none is left; the object of the call may be half-made, and a replay continues.
        """
        if self.remaining() == 0.0:
            raise DeadlineError("the call's deadline passed before the work was done; it continues on retry")
