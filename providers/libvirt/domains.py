"""The running virtual machines, as far as disks go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libvirt

from providers.errors import InUseError
from providers.libvirt.documents import DomainDisk, domain_disks
from providers.libvirt.failures import has_code
from providers.libvirt.store import StoredObject


@dataclass(frozen=True)
class Use:
    """A running domain that has a volume."""

    domain: libvirt.virDomain
    domain_name: str
    disk: DomainDisk


def running(connection: libvirt.virConnect) -> Iterator[tuple[libvirt.virDomain, list[DomainDisk]]]:
    """The running (or paused) domains and their disks."""
    for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
        try:
            document = domain.XMLDesc()
        except libvirt.libvirtError as error:
            if has_code(error, libvirt.VIR_ERR_NO_DOMAIN):
                continue  # ended meanwhile
            raise
        yield domain, domain_disks(document)


class Attachments:
    """Which running domain of this host has which disk, as seen at one moment."""

    def __init__(self, connection: libvirt.virConnect) -> None:
        self._uses: dict[str, list[Use]] = {}
        for domain, disks in running(connection):
            name = domain.name()
            for disk in disks:
                for source in disk.sources:
                    self._uses.setdefault(source, []).append(Use(domain, name, disk))

    def of(self, stored: StoredObject) -> list[Use]:
        """The domains that have its disk among theirs."""
        by_name = f"{stored.pool.name}/{stored.disk.name()}"
        return self._uses.get(stored.path) or self._uses.get(by_name, [])


def require_free(connection: libvirt.virConnect, stored: StoredObject) -> None:
    """Return if no running domain has its disk.

    Raises:
        InUseError: one has; the message names it.
    """
    for use in Attachments(connection).of(stored):
        raise InUseError(
            f"the disk is attached to the running virtual machine {use.domain_name!r} as {use.disk.target}; "
            "end that machine, or detach the disk, first"
        )
