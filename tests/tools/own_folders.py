"""Folders of one process. If it is killed, the next one that wants such a folder removes what is left."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Quick, and, unlike what containers run on, a file system in which the layers of an overlay may lie.
MEMORY = Path("/dev/shm")


@contextmanager
def own_folder(prefix: str, parent: Path = MEMORY) -> Iterator[Path]:
    """The folder ``parent/prefix-PID-…``, within the block."""
    for left in left_behind(prefix, parent):
        shutil.rmtree(left, ignore_errors=True)  # another process may be at it, too
    with tempfile.TemporaryDirectory(
        prefix=f"{prefix}-{os.getpid()}-", dir=parent, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def left_behind(prefix: str, parent: Path) -> list[Path]:
    """What is named ``prefix-PID-…`` in ``parent`` while there is no such process any more."""
    found = parent.glob(f"{prefix}-*-*")
    return [one for one in found if not Path("/proc", one.name.rsplit("-", 2)[1]).exists()]
