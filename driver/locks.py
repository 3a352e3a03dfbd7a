"""One operation at a time on one object, within this process.

Across processes nothing is locked: creation is idempotent at the provider.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from driver.errors import AbortedError


class InFlight:
    """The keys of the objects being worked on. Thread-safe; never waits."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._mutex = threading.Lock()

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Claim ``key`` for the duration of the block.

        Raises:
            AbortedError: another call holds it.
        """
        with self._mutex:
            if key in self._keys:
                raise AbortedError(f"another operation on {key[:160]!r} is in progress; call again later")
            self._keys.add(key)
        try:
            yield
        finally:
            with self._mutex:
                self._keys.remove(key)
