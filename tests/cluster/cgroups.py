"""A place for a worker's containers among the machine's control groups, of version 1 or 2."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.cluster.api import until
from tests.tools.own_folders import left_behind

_UNIFIED = Path("/sys/fs/cgroup")


@contextmanager
def own_group() -> Iterator[str]:
    """The path of a group of this process, below which a container runtime makes others.

    All are removed at the end; their processes must have ended by then. Those of processes that were killed
    are removed first.
    """
    for hierarchy in _hierarchies():
        for left in left_behind("worker", hierarchy):
            _removed(left)
    _make_room(_UNIFIED)
    name = f"worker-{os.getpid()}-{uuid.uuid4().hex}"
    yield f"/{name}"
    for hierarchy in _hierarchies():
        group = hierarchy / name
        until(partial(_removed, group), what=f"{group} is gone")


def _make_room(root: Path) -> None:
    """In a container with groups of version 2, move what runs there to a group of its own.

    A group that has processes can't have limited groups below it, unless it is the machine's own root.
    """
    if not (root / "cgroup.type").exists():  # it is that root, or of version 1
        return
    (root / "init").mkdir(exist_ok=True)
    for process in (root / "cgroup.procs").read_text().split():
        with suppress(OSError):  # it ended
            (root / "init" / "cgroup.procs").write_text(process)
    controllers = (root / "cgroup.controllers").read_text().split()
    (root / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def _hierarchies() -> Iterator[Path]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            yield Path(place)


def _removed(group: Path) -> bool:
    """Remove it and those below; a group can be busy for a moment after its last process ended."""
    if not group.exists():
        return True
    try:
        for below in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            below.rmdir()
        group.rmdir()
    except OSError:
        return False
    return True
