"""A copy of a disk in use, made by the virtual machine's own QEMU: as the disk is when the copy begins."""

from __future__ import annotations

import time

import libvirt

from providers.errors import InUseError, UnavailableError
from providers.libvirt.documents import backup_xml
from providers.libvirt.domains import Use
from providers.libvirt.failures import has_code

_POLL_SECONDS = 0.2


def back_up(use: Use, target_path: str) -> None:
    """Fill the raw file at ``target_path``, which is as long as the disk, and wait until that is done.

    Raises:
        InUseError: this hypervisor makes no such copies. UnavailableError: it failed, or the machine ended.
    """
    try:
        use.domain.backupBegin(
            backup_xml(use.disk.target, target_path), None, libvirt.VIR_DOMAIN_BACKUP_BEGIN_REUSE_EXTERNAL
        )
        while use.domain.jobInfo()[0] != libvirt.VIR_DOMAIN_JOB_NONE:
            time.sleep(_POLL_SECONDS)
        outcome = use.domain.jobStats(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED)
    except libvirt.libvirtError as error:
        if has_code(error, libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_OPERATION_UNSUPPORTED):
            raise InUseError(
                f"the virtual machine {use.domain_name!r} has the disk, and its hypervisor can't copy a disk "
                "in use; detach it first, or use a pool on a file system with reflinks (XFS, Btrfs)"
            ) from error
        raise
    if outcome.get("operation") != libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP or not outcome.get("success"):
        raise UnavailableError(f"{use.domain_name!r} could not copy its disk to the end; call again")
