"""Making a disk larger, and telling the virtual machine that has it."""

from __future__ import annotations

import libvirt

from providers.errors import OutcomeUnknownError
from providers.libvirt.domains import Attachments
from providers.libvirt.failures import has_code
from providers.libvirt.store import StoredObject, disk_size


def grow(connection: libvirt.virConnect, stored: StoredObject, size_bytes: int) -> int:
    """Make the disk at least ``size_bytes`` long; its length then.

    Attached, it grows through its virtual machine, in one step with the device: a disk that has the size has
    told the guest, so a call that was killed leaves nothing to do that its size would hide.

    Raises:
        OutcomeUnknownError: it was deleted, or attached elsewhere, meanwhile.
    """
    if stored.size_bytes >= size_bytes:
        return stored.size_bytes
    uses = Attachments(connection).of(stored)
    if (disk_size(stored.disk) or 0) < size_bytes:  # looked at again, right before: none is made smaller
        if uses:
            for use in uses:
                use.domain.blockResize(use.disk.target, size_bytes, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES)
        else:
            _resize(stored.disk, size_bytes)
    size = disk_size(stored.disk)
    if size is None or size < size_bytes:
        raise OutcomeUnknownError(f"{stored.base} was changed by another call as it was expanded; call again")
    return size


def _resize(disk: libvirt.virStorageVol, size_bytes: int) -> None:
    try:
        disk.resize(size_bytes, 0)
    except libvirt.libvirtError as error:
        # It grew further than this meanwhile, and libvirt makes nothing smaller unless told to.
        if not has_code(error, libvirt.VIR_ERR_INVALID_ARG):
            raise
