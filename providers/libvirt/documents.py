"""The XML documents that libvirt takes and gives, built and read by a library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from providers.errors import CorruptStateError


@dataclass(frozen=True)
class DomainDisk:
    """A disk of a domain."""

    target: str
    """Its name in the domain (``vdb``)."""
    serial: str
    alias: str
    sources: frozenset[str]
    """Paths of the files or devices it reads, backing files included; ``pool/volume`` where it says so."""


def volume_xml(name: str, size_bytes: int) -> str:
    """A sparse raw volume."""
    volume = ElementTree.Element("volume")
    ElementTree.SubElement(volume, "name").text = name
    ElementTree.SubElement(volume, "capacity", unit="bytes").text = str(size_bytes)
    ElementTree.SubElement(volume, "allocation", unit="bytes").text = "0"
    target = ElementTree.SubElement(volume, "target")
    ElementTree.SubElement(target, "format", type="raw")
    permissions = ElementTree.SubElement(target, "permissions")
    ElementTree.SubElement(permissions, "mode").text = "0600"
    return _text(volume)


def directory_pool_xml(name: str, path: str) -> str:
    """A pool of the files in one directory."""
    pool = ElementTree.Element("pool", type="dir")
    ElementTree.SubElement(pool, "name").text = name
    ElementTree.SubElement(ElementTree.SubElement(pool, "target"), "path").text = path
    return _text(pool)


def disk_xml(path: str, target: str, serial: str, alias: str, *, iommu: bool) -> str:
    """A raw file as a virtio disk. What the guest flushes reaches the file."""
    disk = ElementTree.Element("disk", type="file", device="disk")
    driver = ElementTree.SubElement(disk, "driver", name="qemu", type="raw", cache="none", discard="unmap")
    if iommu:
        driver.set("iommu", "on")
    ElementTree.SubElement(disk, "source", file=path)
    ElementTree.SubElement(disk, "target", dev=target, bus="virtio")
    ElementTree.SubElement(disk, "serial").text = serial
    ElementTree.SubElement(disk, "alias", name=alias)
    return _text(disk)


def backup_xml(target: str, path: str) -> str:
    """A full copy of one disk of a domain to a raw file that exists."""
    backup = ElementTree.Element("domainbackup", mode="push")
    disks = ElementTree.SubElement(backup, "disks")
    disk = ElementTree.SubElement(disks, "disk", name=target, backup="yes", type="file")
    ElementTree.SubElement(disk, "target", file=path)
    ElementTree.SubElement(disk, "driver", type="raw")
    return _text(backup)


def pool_type_and_path(document: str) -> tuple[str, str]:
    """A pool's type, and the directory of its volumes (empty where it has none)."""
    pool = _parsed(document)
    return pool.get("type", ""), pool.findtext("target/path", "")


def volume_format(document: str) -> str:
    """What libvirt takes the volume's content for; ``raw`` unless it recognized something."""
    found = _parsed(document).find("target/format")
    return "raw" if found is None else found.get("type", "raw")


def domain_disks(document: str) -> list[DomainDisk]:
    """The disks of a domain."""
    return [
        DomainDisk(
            target=_attribute(disk, "target", "dev"),
            serial=disk.findtext("serial", ""),
            alias=_attribute(disk, "alias", "name"),
            sources=frozenset(_sources(disk)),
        )
        for disk in _parsed(document).iterfind("devices/disk")
    ]


def wants_iommu(document: str) -> bool:
    """Whether the domain's own disks go through an IOMMU, as those of some confidential VMs must."""
    return any(driver.get("iommu") == "on" for driver in _parsed(document).iterfind("devices/disk/driver"))


def disk_of(document: str, alias: str) -> str | None:
    """The XML of the disk with that alias, as the domain has it; None if it has none."""
    for disk in _parsed(document).iterfind("devices/disk"):
        if _attribute(disk, "alias", "name") == alias:
            return _text(disk)
    return None


def _sources(disk: ElementTree.Element) -> Iterator[str]:
    for source in disk.iter("source"):
        for attribute in ("file", "dev", "name"):
            if source.get(attribute):
                yield source.get(attribute, "")
        if source.get("volume"):
            yield f"{source.get('pool', '')}/{source.get('volume')}"


def _attribute(disk: ElementTree.Element, child: str, attribute: str) -> str:
    found = disk.find(child)
    return "" if found is None else found.get(attribute, "")


def _parsed(document: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(document)  # noqa: S314 - libvirtd's own, as trusted as its disks
    except ElementTree.ParseError as error:
        raise CorruptStateError(
            f"libvirt gave a document that is not XML ({error}); look at its host"
        ) from error


def _text(element: ElementTree.Element) -> str:
    return ElementTree.tostring(element, encoding="unicode")
