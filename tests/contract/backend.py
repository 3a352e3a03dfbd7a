"""What the contract suite needs to know of a provider's backend, beyond the provider interface.

A provider joins the suite by adding its :class:`Backend` to ``tests/contract/backends.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

from providers.interface import BlockVolumeProvider


class Backend(ABC):
    """A place where disks live, seen from behind the provider's back; forked processes share it."""

    provider_class: ClassVar[type[BlockVolumeProvider]]
    label: ClassVar[str] = ""
    """Tells it from another backend of the same provider."""
    cannot: ClassVar[Mapping[str, str]] = {}
    """Tests that it can't run, by the name of the function or its module, and what it lacks for them."""
    races: bool = False
    """Whether several processes make calls at one time, so that one may wait long between two steps."""

    @classmethod
    def test_id(cls) -> str:
        """Its name in the names of tests."""
        return "-".join(filter(None, (cls.provider_class.name, cls.label)))

    @abstractmethod
    def __init__(self, directory: Path) -> None:
        """A new, empty backend; ``directory`` is the test's own."""

    @abstractmethod
    def connect(self) -> BlockVolumeProvider:
        """A provider that knows nothing of earlier ones, as after a restart."""

    @abstractmethod
    def objects(self) -> list[str]:
        """A line for everything that the backend holds, unfinished things and leftovers included, sorted."""

    @abstractmethod
    def attached(self, handle: str) -> AbstractContextManager[None]:
        """Within it, a virtual machine has the volume's disk."""

    @abstractmethod
    def unreachable(self) -> AbstractContextManager[None]:
        """Within it, the backend can't be asked."""

    @abstractmethod
    def watched(self, before_step: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it, ``before_step`` runs before each step by which a provider changes the backend.

        What it raises, the step raises instead of being done.
        """
