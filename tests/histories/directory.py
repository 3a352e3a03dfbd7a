"""A directory, and crashes of calls that change it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from providers.local import LocalProvider
from tests.contract.local_backend import LocalBackend
from tests.fakes.crash import Crash
from tests.histories.model import Model
from tests.histories.rig import Rig

_BLOCK_BYTES = 64 * 1024
_MARK_BYTES = 16
_ZEROS = bytes(_BLOCK_BYTES)


class _CrashAt:
    """Crashes before the step of that number, and at every one after it: a dead process does nothing more."""

    def __init__(self, step: int | None) -> None:
        self.has_struck = False
        self._left = step

    def __call__(self) -> None:
        if self._left is not None:
            if self._left == 0:
                self.has_struck = True
                raise Crash
            self._left -= 1


class DirectoryRig(Rig[int]):
    """A directory of the local provider; a fault is the number of the system call that a call crashes at."""

    unit_bytes = 1 << 20

    def __init__(self, directory: Path) -> None:
        self._backend = LocalBackend(directory)
        self._backend.connect()
        self._crash = _CrashAt(None)

    @contextmanager
    def connected(self, fault: int | None) -> Iterator[LocalProvider]:
        provider = self._backend.connect()
        self._crash = _CrashAt(fault)
        with self._backend.watched(self._crash):
            yield provider

    def has_struck(self) -> bool:
        return self._crash.has_struck

    def placed(self, name: str) -> str:
        return name

    def bare(self, handle: str) -> str:
        return handle

    def marks(self, name: str) -> dict[int, int]:
        disk = self._backend.disk(name)
        return _marks(disk if disk.exists() else self._backend.snapshot_disk(name))

    def mark(self, name: str, block: int, mark: int) -> None:
        with self._backend.disk(name).open("r+b") as file:
            file.seek(block * _BLOCK_BYTES)
            file.write(mark.to_bytes(_MARK_BYTES, "big"))

    def check_end(self, model: Model) -> None:
        objects = [f"volumes/{handle}" for handle in model.volumes]
        objects += [f"snapshots/{handle}" for handle in model.snapshots]
        parts = {f"{one}/{file}" for one in objects for file in ("disk.raw", "tags.json")}
        root = self._backend.directory
        found = {str(path.relative_to(root)) for path in root.rglob("*")}
        assert found == {"volumes", "snapshots", *objects, *parts}


def _marks(disk: Path) -> dict[int, int]:
    """The marks on the disk, by block. Whatever else is not zero counts as one, so that it shows."""
    data = disk.read_bytes()
    marks = {}
    for block in range(len(data) // _BLOCK_BYTES):
        content = data[block * _BLOCK_BYTES : (block + 1) * _BLOCK_BYTES]
        if content != _ZEROS:
            assert content[_MARK_BYTES:] == _ZEROS[_MARK_BYTES:]
            marks[block] = int.from_bytes(content[:_MARK_BYTES], "big")
    return marks
