"""Which of several objects of one name is meant: the nearest to whoever names it.

Directories hold the same names again and again, in overlays and examples. Of the same file an object is
nearer than of the same directory, and that than one of a directory above.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from pathlib import PurePath
from typing import Generic, TypeVar

Found = TypeVar("Found")


class NearestObject(Generic[Found]):
    """Objects by name and file."""

    def __init__(self) -> None:
        self._first: dict[tuple[Hashable, str], Found] = {}

    def add(self, name: Hashable, file: str, found: Found) -> None:
        """Of two with one name in one file, the first counts."""
        for place in _places(file):
            self._first.setdefault((name, place), found)

    def find(self, name: Hashable, near: str) -> Found | None:
        """The object of that name that is nearest to the file ``near``."""
        for place in _places(near):
            found = self._first.get((name, place))
            if found is not None:
                return found
        return None


@functools.lru_cache(maxsize=4096)
def _places(file: str) -> tuple[str, ...]:
    """The file, its directory and those above; all files have the last in common."""
    return (f"file {file}", *map(str, PurePath(file).parents), "anywhere")
