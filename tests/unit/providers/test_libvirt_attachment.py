"""Disks attached to running domains by serial, on a real libvirtd; the domains are paused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import libvirt
import pytest

from providers.deadline import Deadline
from providers.errors import DeadlineError, InUseError, UnavailableError, VolumeNotFoundError
from providers.interface import VolumeRequest
from providers.libvirt import LibvirtProvider
from providers.libvirt.documents import DomainDisk, domain_disks, wants_iommu
from providers.serial import disk_serial
from tests.contract.libvirt_backend import POOL, LibvirtBackend, running_with
from tests.lab.caa import serial_of

MIB = 1024**2


def soon() -> Deadline:
    return Deadline.after(60)


@pytest.fixture
def backend(tmp_path: Path) -> LibvirtBackend:
    return LibvirtBackend(tmp_path)


@pytest.fixture
def provider(backend: LibvirtBackend) -> LibvirtProvider:
    return backend.connect()


@pytest.fixture
def machine(backend: LibvirtBackend, tmp_path: Path) -> Iterator[libvirt.virDomain]:
    root = tmp_path / "root.raw"
    root.write_bytes(bytes(MIB))
    with running_with(backend.uri, root) as domain:
        yield domain


def disks_of(machine: libvirt.virDomain) -> list[DomainDisk]:
    return [disk for disk in domain_disks(machine.XMLDesc()) if disk.serial]


def test_an_attached_disk_has_the_serial_that_the_guest_looks_for(
    backend: LibvirtBackend, provider: LibvirtProvider, machine: libvirt.virDomain
) -> None:
    """contracts 2."""
    disk_id = provider.create_volume(VolumeRequest("pvc-1", MIB, None, "ext4"), soon()).disk_id
    for _ in range(2):  # a replay finds it attached
        provider.attach_disk(disk_id, machine.name(), "node-1", soon())
        (disk,) = disks_of(machine)
        assert disk.serial == serial_of(disk_id) == disk_serial(disk_id)
        assert disk.sources == {str(backend.disk(disk_id))}
    assert backend.connect().attached_serials("node-1", soon())[machine.name()] == {disk.serial}
    # Nothing of it is in the definition: cloud-api-adaptor deletes the volumes that it finds there.
    assert not machine.isPersistent()


def test_nodes_leave_each_others_disks_alone(provider: LibvirtProvider, machine: libvirt.virDomain) -> None:
    disk_id = provider.create_volume(VolumeRequest("pvc-1", MIB, None, "ext4"), soon()).disk_id
    provider.attach_disk(disk_id, machine.name(), "node-1", soon())
    assert provider.attached_serials("node-2", soon()) == {machine.name(): frozenset()}
    provider.detach_disk(disk_serial(disk_id), machine.name(), "node-2", soon())
    assert len(disks_of(machine)) == 1
    with pytest.raises(InUseError, match=machine.name()):
        provider.attach_disk(disk_id, machine.name(), "node-2", soon())


def test_a_disk_goes_to_one_machine(
    backend: LibvirtBackend, provider: LibvirtProvider, machine: libvirt.virDomain
) -> None:
    volume = provider.create_volume(VolumeRequest("pvc-1", MIB, None, "ext4"), soon())
    with running_with(backend.uri, backend.disk(volume.handle)), pytest.raises(InUseError, match="holder"):
        provider.attach_disk(volume.disk_id, machine.name(), "node-1", soon())
    provider.attach_disk(volume.disk_id, machine.name(), "node-1", soon())
    with pytest.raises(InUseError):
        provider.delete_volume(volume.handle, soon())


def test_two_disks_never_share_a_serial(
    provider: LibvirtProvider, machine: libvirt.virDomain, tmp_path: Path
) -> None:
    """contracts 2: the guest would refuse both."""
    disk_id = provider.create_volume(VolumeRequest("pvc-1", MIB, None, "ext4"), soon()).disk_id
    foreign = tmp_path / "foreign.raw"
    foreign.write_bytes(bytes(MIB))
    machine.attachDeviceFlags(
        f"<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{foreign}'/>"
        f"<target dev='vdx' bus='virtio'/><serial>{disk_serial(disk_id)}</serial></disk>",
        libvirt.VIR_DOMAIN_AFFECT_LIVE,
    )
    with pytest.raises(InUseError, match="serial"):
        provider.attach_disk(disk_id, machine.name(), "node-1", soon())


def test_a_disk_of_the_go_driver_is_attached_by_its_path(
    backend: LibvirtBackend, provider: LibvirtProvider, machine: libvirt.virDomain
) -> None:
    """contracts 10: its PersistentVolumes name the file."""
    disk = backend.directory / "csi-vol-pvc-7.raw"
    disk.write_bytes(bytes(MIB))
    provider.list_volumes(0, "", soon())  # libvirt has seen the file since
    provider.attach_disk(str(disk), machine.name(), "node-1", soon())
    (attached,) = disks_of(machine)
    assert attached.serial == disk_serial(str(disk))


def test_nothing_but_volumes_is_ever_attached(
    backend: LibvirtBackend, provider: LibvirtProvider, machine: libvirt.virDomain, tmp_path: Path
) -> None:
    """Field case C9: a disk id is text from outside."""
    (backend.directory / "other.raw").write_bytes(bytes(MIB))
    (tmp_path / "csi-vol-x.raw").write_bytes(bytes(MIB))
    provider.list_volumes(0, "", soon())
    for disk_id in (
        "",
        "/etc/passwd",
        str(backend.directory / "other.raw"),
        str(tmp_path / "csi-vol-x.raw"),
        "csi-vol-../x@contract",
        f"other@{POOL}",
        "x" * 5000,
        "/dev/vda\0",
    ):
        with pytest.raises(VolumeNotFoundError):
            provider.attach_disk(disk_id, machine.name(), "node-1", soon())
    assert disks_of(machine) == []


def test_a_machine_that_is_gone(provider: LibvirtProvider) -> None:
    disk_id = provider.create_volume(VolumeRequest("pvc-1", MIB, None, "ext4"), soon()).disk_id
    with pytest.raises(UnavailableError, match="no-such"):
        provider.attach_disk(disk_id, "no-such", "node-1", soon())
    provider.detach_disk(disk_serial(disk_id), "no-such", "node-1", soon())


def test_a_guest_that_does_not_let_go_is_waited_for_no_longer_than_the_deadline(
    provider: LibvirtProvider, machine: libvirt.virDomain
) -> None:
    """It is paused, so it can't."""
    disk_id = provider.create_volume(VolumeRequest("pvc-1", MIB, None, "ext4"), soon()).disk_id
    provider.attach_disk(disk_id, machine.name(), "node-1", soon())
    for _ in range(2):
        with pytest.raises(DeadlineError):
            provider.detach_disk(disk_serial(disk_id), machine.name(), "node-1", Deadline.after(0.4))


def test_what_a_domain_says_of_its_disks() -> None:
    document = """
<domain><devices>
  <disk type='volume'><driver iommu='on'/><source pool='p' volume='v'/><target dev='vda'/></disk>
  <disk type='block'><source dev='/dev/x'/><target dev='vdb'/><serial>s</serial><alias name='ua-1'/></disk>
  <disk type='file'><source file='/a'/><backingStore type='file'><source file='/b'/></backingStore></disk>
</devices></domain>"""
    assert [disk.sources for disk in domain_disks(document)] == [{"p/v"}, {"/dev/x"}, {"/a", "/b"}]
    assert domain_disks(document)[1] == DomainDisk("vdb", "s", "ua-1", frozenset({"/dev/x"}))
    assert wants_iommu(document)
