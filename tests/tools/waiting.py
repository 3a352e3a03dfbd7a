"""Waiting for a condition with a generous limit."""

from __future__ import annotations

import time
from collections.abc import Callable

_GIVE_UP_SECONDS = 120.0
_POLL_SECONDS = 0.05


def eventually(holds: Callable[[], bool]) -> None:
    """Return once ``holds``.

    Raises:
        AssertionError: it does not after a long while.
    """
    give_up = time.monotonic() + _GIVE_UP_SECONDS
    while not holds():
        assert time.monotonic() < give_up, "it does not happen"
        time.sleep(_POLL_SECONDS)
