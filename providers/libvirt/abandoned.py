"""Finds what attempts to make or delete an object have left when their process died, and removes it.

An attempt that is alive looks the same as one that was abandoned, but not for long: its parts change, or
libvirt refuses to remove them because it is writing to them. So parts are removed once they have been seen
unchanged for a while. Whoever is wronged by that finds its object missing, and its caller calls again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from providers.deadline import Deadline
from providers.libvirt.parts import Parts, parts_by_object
from providers.libvirt.store import Store

_POLL_SECONDS = 0.02

_Object = tuple[str, str]
"""Pool and name."""


class Abandoned:
    """What this process has seen lying about. Thread-safe.

    Args:
        patience: seconds after which parts that do not change count as abandoned.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._seen: dict[_Object, tuple[Parts, float]] = {}
        self._making: set[_Object] = set()
        self._is_first = True

    @contextmanager
    def making(self, store: Store, base: str, deadline: Deadline) -> Iterator[None]:
        """Within it, this call alone in this process makes the object, and its parts are not abandoned.

        Raises:
            DeadlineError: another call, or one that its caller gave up, still makes it.
        """
        one = (store.pool.name, base)
        while not self._begin(one):
            deadline.check()
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            with self._lock:
                self._making.remove(one)

    def _begin(self, one: _Object) -> bool:
        with self._lock:
            if one in self._making:
                return False
            self._making.add(one)
            return True

    def clear(self, stores: Iterable[Store], deadline: Deadline) -> None:
        """Remove what has lain about long enough. The first call of a process waits until all has."""
        with self._lock:
            is_first, self._is_first = self._is_first, False
        for store in stores:
            give_up = time.monotonic() + 2 * self._patience
            while self._clear(store) and is_first and time.monotonic() < give_up:
                deadline.check()
                time.sleep(min(_POLL_SECONDS, self._patience))

    def _clear(self, store: Store) -> bool:
        """One look; whether something lies about that may be abandoned."""
        suspicious = {
            (store.pool.name, base): parts
            for base, parts in parts_by_object(store.pool.names(), store.prefix).items()
            if not parts.is_whole(has_go_disks=store.of_volumes)
        }
        is_left = False
        for (_, base), is_due in self._judged(store, suspicious).items():
            if not is_due:
                is_left = True
            else:
                store.clear(base)
        return is_left

    def _judged(self, store: Store, suspicious: Mapping[_Object, Parts]) -> dict[_Object, bool]:
        """The objects that nobody of this process works on, and whether they are due to be cleared."""
        now = time.monotonic()
        with self._lock:
            for one in [one for one in self._seen if one[0] == store.pool.name]:
                if one[1].startswith(store.prefix) and one not in suspicious:
                    del self._seen[one]
            judged = {}
            for one, parts in suspicious.items():
                if one in self._making:
                    continue
                if one not in self._seen or self._seen[one][0] != parts:
                    self._seen[one] = (parts, now)
                judged[one] = now - self._seen[one][1] >= self._patience
            return judged
