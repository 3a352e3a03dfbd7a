"""Whether the directory can hold volumes, and whether those in it are well."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from providers.interface import Volume, VolumeCondition

_FULL_BYTES = 16 * 1024**2
"""A file system with less than this free is full: its disks are sparse, and writes to them fail."""


def unusable(rooms: Sequence[Path]) -> str | None:
    """Why volumes can't be made in these directories; None if they can."""
    for room in rooms:
        if not room.is_dir():
            return f"{room} is missing; mount the file system that holds it"
        if not os.access(room, os.R_OK | os.W_OK | os.X_OK):
            return f"{room} can't be written to; mount it writable, and give it to the controller's user"
    return None


def conditions(volumes: Sequence[Volume], free_bytes: int) -> Mapping[str, VolumeCondition]:
    """The condition of each of the volumes, by handle."""
    return {volume.handle: _condition(volume, free_bytes) for volume in volumes}


def _condition(volume: Volume, free_bytes: int) -> VolumeCondition:
    if volume.size_bytes < volume.created_size_bytes:
        return VolumeCondition(
            True,
            f"the disk has {volume.size_bytes} bytes, fewer than the {volume.created_size_bytes} it was made "
            "with: it was cut outside of this driver",
        )
    if free_bytes < _FULL_BYTES:
        return VolumeCondition(True, "the file system is full: writes to sparse disks will fail")
    return VolumeCondition(False, "the disk is there, and its file system has room")
