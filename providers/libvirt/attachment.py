"""Disks attached to running domains by this driver: by serial, and with an alias that tells whose they are.

The domain's XML is the only record. Disks are attached to the running domain and never to its persistent
definition: cloud-api-adaptor deletes the volume behind each disk that it finds there.
"""

from __future__ import annotations

import hashlib
import string
import time
from collections.abc import Mapping

import libvirt

from providers.deadline import Deadline
from providers.errors import InUseError, UnavailableError
from providers.libvirt.documents import disk_of, disk_xml, domain_disks, wants_iommu
from providers.libvirt.domains import Attachments, running
from providers.libvirt.failures import has_code
from providers.libvirt.store import StoredObject

_POLL_SECONDS = 0.1
_ATTEMPTS = 3


def attached_serials(connection: libvirt.virConnect, owner: str) -> Mapping[str, frozenset[str]]:
    """By domain, the serials of the disks that ``owner`` attached."""
    prefix = _alias_prefix(owner)
    return {
        domain.name(): frozenset(
            disk.alias.removeprefix(prefix) for disk in disks if disk.alias.startswith(prefix)
        )
        for domain, disks in running(connection)
    }


def attach(
    connection: libvirt.virConnect, stored: StoredObject, machine: str, serial: str, owner: str
) -> None:
    """Attach the disk of ``stored``.

    Raises:
        InUseError: something else has it, or has its serial. UnavailableError: there is no such domain.
    """
    alias = _alias_prefix(owner) + serial
    for use in Attachments(connection).of(stored):
        if (use.domain_name, use.disk.alias) == (machine, alias):
            return
        raise InUseError(
            f"the virtual machine {use.domain_name!r} has the disk of {stored.base} already (as "
            f"{use.disk.target}); it can be attached to {machine!r} when that machine is gone"
        )
    domain = _domain(connection, machine)
    if domain is None:
        raise UnavailableError(f"there is no running virtual machine {machine!r}")
    refused: set[str] = set()
    while True:
        document = domain.XMLDesc()
        disks = domain_disks(document)
        if any(disk.serial == serial for disk in disks):
            raise InUseError(f"{machine!r} has another disk with the serial {serial}; look at it")
        target = _free_target({disk.target for disk in disks} | refused)
        xml = disk_xml(stored.path, target, serial, alias, iommu=wants_iommu(document))
        try:
            domain.attachDeviceFlags(xml, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        except libvirt.libvirtError as error:
            # Somebody else took the name between the look and the call.
            if not has_code(error, libvirt.VIR_ERR_XML_ERROR) or len(refused) == _ATTEMPTS:
                raise
            refused.add(target)
        else:
            return


def detach(connection: libvirt.virConnect, machine: str, serial: str, owner: str, deadline: Deadline) -> None:
    """Detach a disk that ``owner`` attached, and wait until the guest let go of it.

    Raises:
        DeadlineError: it did not.
    """
    alias = _alias_prefix(owner) + serial
    is_asked = False
    while True:
        try:
            domain = _domain(connection, machine)
            xml = None if domain is None else disk_of(domain.XMLDesc(), alias)
            if domain is None or xml is None:
                return
            if not is_asked:
                domain.detachDeviceFlags(xml, libvirt.VIR_DOMAIN_AFFECT_LIVE)
                is_asked = True
        except libvirt.libvirtError as error:
            if not has_code(error, *_BEING_DETACHED):
                raise
            is_asked = True  # gone meanwhile, or asked by a call before this one
        deadline.check()
        time.sleep(_POLL_SECONDS)


_BEING_DETACHED = (
    libvirt.VIR_ERR_DEVICE_MISSING,
    libvirt.VIR_ERR_NO_DOMAIN,
    libvirt.VIR_ERR_OPERATION_INVALID,
    libvirt.VIR_ERR_OPERATION_FAILED,
    libvirt.VIR_ERR_INTERNAL_ERROR,
)


def _alias_prefix(owner: str) -> str:
    # libvirt keeps aliases of users' own if they begin with "ua-".
    return f"ua-csi-{hashlib.sha256(owner.encode()).hexdigest()[:12]}-"


def _domain(connection: libvirt.virConnect, name: str) -> libvirt.virDomain | None:
    try:
        domain = connection.lookupByName(name)
    except libvirt.libvirtError as error:
        if has_code(error, libvirt.VIR_ERR_NO_DOMAIN):
            return None
        raise
    return domain if domain.isActive() else None


def _free_target(taken: set[str]) -> str:
    """The guest may call it otherwise; only the serial counts."""
    letters = string.ascii_lowercase
    names = [f"vd{one}" for one in letters] + [f"vd{one}{two}" for one in letters for two in letters]
    return next(name for name in names if name not in taken)
