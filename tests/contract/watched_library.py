"""A module whose functions tell when they are about to change something."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


class WatchedLibrary:
    """``library``, whose functions named in ``steps`` call ``before_step`` first."""

    def __init__(self, library: ModuleType, steps: frozenset[str], before_step: Callable[[], None]) -> None:
        self._library = library
        self._steps = steps
        self._before_step = before_step

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._library, name)
        if name not in self._steps:
            return attribute

        def step(*arguments: Any, **keywords: Any) -> Any:
            self._before_step()
            return attribute(*arguments, **keywords)

        return step
