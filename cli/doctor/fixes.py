"""What ``--fix`` removes: records and leftovers on this node that provably belong to nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cli.doctor.records import Record, is_abandoned, records
from cli.doctor.stale import why_unused
from cli.scene import Scene
from driver.direct_volumes import WORK_PREFIX


@dataclass(frozen=True)
class Removal:
    """One thing that can be removed. ``remove`` looks again first: True when it did remove it."""

    what: str
    remove: Callable[[], bool]


def removals(scene: Scene) -> list[Removal]:
    """All that can be removed now; empty where there is no direct-volume root."""
    root = scene.paths.direct_volumes
    if not root.is_dir():
        return []
    found = []
    for record in records(scene):
        why = _proof(scene, record)
        if why is not None:

            def remove(record: Record = record) -> bool:
                if _proof(scene, record) is None:
                    return False
                scene.records.remove(record.target)
                return True

            found.append(Removal(f"{record.directory} ({record.name}: {why})", remove))
    if any(one.name.startswith(WORK_PREFIX) and is_abandoned(one, scene.now()) for one in root.iterdir()):

        def clear() -> bool:
            scene.records.clear_leftovers()
            return True

        found.append(Removal(f"what killed node plugins left in {root}", clear))
    return found


def _proof(scene: Scene, record: Record) -> str | None:
    """Why nobody can need the record: its pod is gone, and no PodVM has its disk. None if unsure."""
    gone, unused = record.why_stale(scene.paths), why_unused(scene, record)
    return f"{gone}, and {unused}" if gone and unused else None
