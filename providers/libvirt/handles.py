"""Handles of volumes and snapshots: the object's name, and the pool that has it, as ``csi-vol-x@default``."""

from __future__ import annotations

from dataclasses import dataclass

from providers.libvirt.pools import is_location
from providers.names import is_backend_name

VOLUME_PREFIX = "csi-vol-"
SNAPSHOT_PREFIX = "csi-snap-"


@dataclass(frozen=True)
class Handle:
    """Where an object is."""

    base: str
    location: str

    def __str__(self) -> str:
        return f"{self.base}@{self.location}"


def parse(prefix: str, text: str) -> Handle | None:
    """The handle in ``text``; None if it is none of this kind."""
    base, _, location = text.rpartition("@")
    if not (is_backend_name(prefix, base) and is_location(location)):
        return None
    return Handle(base, location)


def is_volume(text: str) -> bool:
    """Whether ``text`` can be a volume's handle."""
    return parse(VOLUME_PREFIX, text) is not None


def is_snapshot(text: str) -> bool:
    """Whether ``text`` can be a snapshot's handle."""
    return parse(SNAPSHOT_PREFIX, text) is not None
