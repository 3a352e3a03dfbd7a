"""What libvirt says about the health of disks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libvirt

from providers.errors import VolumeNotFoundError
from providers.interface import Volume, VolumeCondition
from providers.libvirt.domains import Attachments
from providers.libvirt.failures import has_code
from providers.libvirt.rooms import Rooms
from providers.libvirt.store import StoredObject

_FULL_BYTES = 16 * 1024**2
"""A pool with less than this free is full: its disks are sparse, and writes to them fail."""


def conditions(rooms: Rooms, volumes: Sequence[Volume]) -> Mapping[str, VolumeCondition]:
    """By handle; one that is gone is left out."""
    found = {}
    attachments = Attachments(rooms.connection)
    for volume in volumes:
        try:
            stored = rooms.volume(volume.handle)
        except VolumeNotFoundError:
            continue
        found[volume.handle] = _condition(attachments, volume, stored)
    return found


def _condition(attachments: Attachments, volume: Volume, stored: StoredObject) -> VolumeCondition:
    for use in attachments.of(stored):
        error = _disk_error(use.domain, use.disk.target)
        if error == libvirt.VIR_DOMAIN_DISK_ERROR_NO_SPACE:
            return VolumeCondition(True, f"{use.domain_name}: a write failed for lack of space in the pool")
        if error:
            return VolumeCondition(True, f"{use.domain_name}: QEMU reports an I/O error of the disk")
    if stored.size_bytes < volume.created_size_bytes:
        return VolumeCondition(
            True,
            f"the disk has {stored.size_bytes} bytes, fewer than the {volume.created_size_bytes} it was made "
            "with: it was cut outside of this driver",
        )
    if stored.pool.available_bytes() < _FULL_BYTES:
        return VolumeCondition(
            True, f"the pool {stored.pool.name!r} is full: writes to sparse disks will fail"
        )
    return VolumeCondition(False, f"in pool {stored.pool.name!r}, no error reported")


def _disk_error(domain: libvirt.virDomain, target: str) -> int:
    try:
        return int(domain.diskErrors().get(target, libvirt.VIR_DOMAIN_DISK_ERROR_NONE))
    except libvirt.libvirtError as error:
        if has_code(
            error, libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_OPERATION_INVALID
        ):
            return int(libvirt.VIR_DOMAIN_DISK_ERROR_NONE)
        raise
