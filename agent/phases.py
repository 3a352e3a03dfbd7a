"""How long the parts of a volume's last mount took, for ``status --json``.

Kept beside the volume's lock file, in the VM's memory, as long as the volume is there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from agent.clock import Clock
from agent.volume_lock import STATE_ROOT


class Phase(Enum):
    """A part of a mount."""

    DETECT = "detect"
    """Until the disk is there."""
    KEY = "key"
    """Until the key broker has released the key."""
    CHECK = "check"
    """Reading and judging what is on the disk; making its header, if it is new; rotating its key."""
    OPEN = "open"
    """Until the data hub has opened the volume, and the mapping is verified."""
    MOUNT = "mount"
    """Making or checking the file system, and mounting it."""
    GROW = "grow"
    """Letting the file system fill the disk."""


class Phases:
    """The phases of one mount."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[Phase, float] = {}

    @contextmanager
    def of(self, phase: Phase) -> Iterator[None]:
        """Around a part of ``phase``; its parts add up."""
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + self._clock.monotonic() - began

    def keep(self, name: str) -> None:
        """Note them for the volume ``name``, whose lock the caller holds."""
        found = {phase.value: round(self._seconds[phase], 3) for phase in Phase if phase in self._seconds}
        try:
            _file(name).write_text(json.dumps(found))
        except OSError:  # figures for people: no reason not to mount
            forget(name)


def forget(name: str) -> None:
    """Drop what was noted for the volume ``name``."""
    _file(name).unlink(missing_ok=True)


def last_mount(name: str) -> Mapping[str, float]:
    """Seconds of each phase of the last mount of the volume ``name``; empty if nothing was noted."""
    try:
        noted = json.loads(_file(name).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(noted, dict):
        return {}
    known = {phase.value for phase in Phase}
    return {
        key: float(value)
        for key, value in noted.items()
        if key in known and isinstance(value, (int, float)) and math.isfinite(value)
    }


def _file(name: str) -> Path:
    return STATE_ROOT / f"{name}.phases.json"
