"""Work that goes on beside the RPCs, so that none of them waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_LOG = logging.getLogger(__name__)

#: Seconds after work that failed in a way that nobody planned.
_AFTER_A_BUG_SECONDS = 300.0


def repeat(name: str, work: Callable[[], float], first_after: float) -> None:
    """Run ``work`` again and again in a thread of its own, which never keeps the process from ending.

    Args:
        name: of the thread, and in the log.
        work: returns the seconds until its next run.
        first_after: seconds until its first one.
    """

    def run() -> None:
        pause = threading.Event()
        seconds = first_after
        while True:
            pause.wait(seconds)
            try:
                seconds = work()
            except Exception:
                _LOG.exception("%s failed", name)
                seconds = _AFTER_A_BUG_SECONDS

    threading.Thread(target=run, name=name, daemon=True).start()
