"""This provider's names for its objects: ``<disk name>@<label of the resource group>``, at most 100 bytes.

For instance ``csi-vol-pvc-1@disks~01234567``. The name is the one that Azure has; a disk that no driver
made can be named too, in a PersistentVolume that a person writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from providers.azure.places import Place, is_label
from providers.names import MAXIMUM_LENGTH, backend_name, is_backend_name

VOLUME_PREFIX = "csi-vol-"
SNAPSHOT_PREFIX = "csi-snap-"

_MAXIMUM_HANDLE = 100

#: Azure's rule for disks and snapshots.
_RESOURCE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,78}[A-Za-z0-9_])?", re.ASCII)
#: What the Go driver can have made: it cuts, so a name may end with any of its characters.
_GO_NAME = re.compile(r"csi-(?:vol|snap)-[A-Za-z0-9_.-]{1,72}", re.ASCII)
_GO_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True)
class Handle:
    """A parsed handle."""

    name: str
    """Of the disk or snapshot in Azure."""
    label: str
    """Of the resource group."""

    def __str__(self) -> str:
        return f"{self.name}@{self.label}"


def handle(name: str, place: Place) -> Handle:
    """The one handle of the disk or snapshot of that name there."""
    return Handle(name, place.label(_MAXIMUM_HANDLE - len(name) - 1))


def volume_name(name: str) -> str:
    """The disk of the volume with the CSI name ``name``."""
    return backend_name(VOLUME_PREFIX, name)


def snapshot_name(name: str) -> str:
    """The snapshot resource of the snapshot with the CSI name ``name``."""
    return backend_name(SNAPSHOT_PREFIX, name)


def go_name(prefix: str, name: str) -> str:
    """What the older Go driver called it. Different CSI names can share one, so tags must be looked at."""
    return (prefix + _GO_UNFIT.sub("-", name))[:MAXIMUM_LENGTH]


def is_hashed(prefix: str, resource_name: str) -> bool:
    """Whether a CSI name that did not fit is behind this name; the Go driver called its disk otherwise."""
    return is_backend_name(prefix, resource_name) and "_" in resource_name


def names_volume(resource_name: str) -> bool:
    """Whether a driver of this kind gives this name to disks, so that tags must confirm whose it is."""
    return resource_name.lower().startswith(VOLUME_PREFIX)


def volume(text: str) -> Handle | None:
    """The volume handle in ``text``; None if it can't be one."""
    return _parsed(text)


def snapshot(text: str) -> Handle | None:
    """The snapshot handle in ``text``; None if this provider can't have made it."""
    handle = _parsed(text)
    return handle if handle is not None and handle.name.startswith(SNAPSHOT_PREFIX) else None


def _parsed(text: str) -> Handle | None:
    name, _, label = text.partition("@")
    if len(text) > _MAXIMUM_HANDLE or len(name) > MAXIMUM_LENGTH or not is_label(label):
        return None
    if not (_RESOURCE_NAME.fullmatch(name) or _GO_NAME.fullmatch(name)):
        return None
    return Handle(name, label)
