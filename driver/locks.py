"""One call at a time on one object; the others are told to try again (CSI: ABORTED)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from driver.errors import Aborted


class InFlight:
    """The objects that calls of this process are working on."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held: set[str] = set()

    @contextmanager
    def hold(self, *keys: str) -> Iterator[None]:
        """Hold all of ``keys`` or none; never waits.

        Raises:
            Aborted: another call holds one of them.
        """
        wanted = set(keys)
        with self._mutex:
            busy = wanted & self._held
            if busy:
                raise Aborted(f"another call is working on {min(busy)!r}; try again when it has ended")
            self._held |= wanted
        try:
            yield
        finally:
            with self._mutex:
                self._held -= wanted
