"""The directory behind the example provider (``examples/provider``, ``docs/add-a-provider.md``)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import confidential_csi_example
from confidential_csi_example import ExampleProvider

from tests.contract.backend import Backend
from tests.contract.watched_library import WatchedLibrary

_STEPS = frozenset({"open", "ftruncate", "setxattr", "link", "unlink", "fsync", "flock"})


class ExampleBackend(Backend):
    """An empty directory."""

    provider_class = ExampleProvider

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "disks"
        self.directory.mkdir()

    def connect(self) -> ExampleProvider:
        return ExampleProvider(self.directory)

    def objects(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())

    @contextmanager
    def attached(self, handle: str) -> Iterator[None]:
        with (self.directory / handle).open("rb") as disk:
            fcntl.flock(disk, fcntl.LOCK_SH)
            yield

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        away = self.directory.with_name("unmounted")
        self.directory.rename(away)
        try:
            yield
        finally:
            away.rename(self.directory)

    @contextmanager
    def watched(self, before_step: Callable[[], None]) -> Iterator[None]:
        with (
            mock.patch.object(confidential_csi_example, "os", WatchedLibrary(os, _STEPS, before_step)),
            mock.patch.object(confidential_csi_example, "fcntl", WatchedLibrary(fcntl, _STEPS, before_step)),
        ):
            yield
