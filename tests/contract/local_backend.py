"""The directory behind the local provider."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from providers.local import LocalProvider, copying, image_locks, provider, room
from tests.contract.backend import Backend
from tests.contract.watched_library import WatchedLibrary

_FILE_STEPS = (
    "open",
    "mkdir",
    "rename",
    "unlink",
    "rmdir",
    "ftruncate",
    "pwrite",
    "write",
    "fsync",
    "fdatasync",
)
_LOCK_STEPS = "flock", "fcntl", "ioctl"
_STEPS = frozenset((*_FILE_STEPS, *_LOCK_STEPS))


class LocalBackend(Backend):
    """A directory with the local provider's rooms."""

    provider_class = LocalProvider

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "store"
        self.directory.mkdir()

    def connect(self) -> LocalProvider:
        return LocalProvider(self.directory)

    def objects(self) -> list[str]:
        rooms = (self.directory / room for room in (provider.VOLUMES, provider.SNAPSHOTS))
        return sorted(str(entry.relative_to(self.directory)) for room in rooms for entry in room.iterdir())

    def disk(self, handle: str) -> Path:
        """Where the volume's bytes are."""
        return self.directory / provider.VOLUMES / handle / room.DISK

    def snapshot_disk(self, handle: str) -> Path:
        """Where the snapshot's bytes are."""
        return self.directory / provider.SNAPSHOTS / handle / room.DISK

    @contextmanager
    def attached(self, handle: str) -> Iterator[None]:
        with qemu_holding(self.disk(handle)):
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
        with contextlib.ExitStack() as patches:
            for module in (copying, image_locks, provider, room):
                for library in (os, fcntl):
                    if getattr(module, library.__name__, None) is library:
                        watched = WatchedLibrary(library, _STEPS, before_step)
                        patches.enter_context(mock.patch.object(module, library.__name__, watched))
            yield


_HOLDER = """
import fcntl, os, struct, sys
disk = os.open(sys.argv[1], os.O_RDWR)
for byte in (100, 101, 201):  # as QEMU does for a virtio disk that is written to
    fcntl.fcntl(disk, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_RDLCK, 0, byte, 1, 0))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def qemu_holding(disk: Path) -> Iterator[None]:
    """Another process holds ``disk`` by the locks that QEMU takes."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(disk)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            yield
        finally:
            holder.stdin.close()
            holder.wait()
