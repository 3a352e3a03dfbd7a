"""Finding a disk: by what identifies it, on a sysfs and a /dev built for the test.

Block nodes can't be made up in a folder, so the folder that plays ``/dev`` holds links to a real one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.annotation import CloudVolume
from agent.devices import DeviceFinder, Disk
from agent.errors import Refused, Unavailable
from tests.unit.agent.fake_clock import FakeClock

ARM_ID = "/subscriptions/0/resourceGroups/g/providers/Microsoft.Compute/disks/csi-vol-a"


class Machine:
    """A sysfs and a /dev in a folder."""

    def __init__(self, root: Path) -> None:
        self.sysfs, self.dev = root / "sys", root / "dev"
        (self.sysfs / "block").mkdir(parents=True)
        self.dev.mkdir()

    def add(self, name: str, *, serial: str | None = None, scsi: str | None = None, nvme: str = "") -> None:
        """Add a whole disk of 1 GiB and 512 bytes."""
        folder = self.sysfs / "block" / name
        folder.mkdir()
        minor = len(list((self.sysfs / "block").iterdir()))
        (folder / "size").write_text(f"{(1 << 21) + 1}\n")
        (folder / "dev").write_text(f"240:{minor}\n")
        os.mknod(self.dev / name, 0o60600, os.makedev(240, minor))
        if serial is not None:
            (folder / "serial").write_text(serial)
        if scsi is not None:
            (self.sysfs / "devices" / scsi).mkdir(parents=True)
            (folder / "device").symlink_to(self.sysfs / "devices" / scsi)
        if nvme:
            (folder / "device").mkdir()
            (folder / "device" / "serial").write_text(f"{nvme}\n")

    def link(self, path: str, name: str) -> None:
        """A link as udev makes them."""
        link = self.dev / "disk" / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.dev / name)

    def find(self, disk_id: str, lun: int | None = 3, clock: FakeClock | None = None) -> Disk:
        volume = CloudVolume(0, "/data", "ext4", lun, disk_id, None, "luks2", "a/b/c")
        return DeviceFinder(clock or FakeClock(), 5.0, self.sysfs, self.dev).find(volume)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def serial(disk_id: str) -> str:
    return CloudVolume(0, "/d", "ext4", None, disk_id, None, "luks2", "a/b/c").serial


def test_a_virtio_disk_is_found_by_its_serial_whatever_its_letter(machine: Machine) -> None:
    machine.add("vda", serial=serial("pvc-1"))
    machine.add("vdb", serial="something else")
    machine.add("vdc")
    disk = machine.find("pvc-1")
    assert disk.path == machine.dev / "vda"
    assert disk.size == 1 << 30, "rounded down to 4096 bytes"
    assert disk.number == "240:1"


def test_two_disks_with_one_serial_are_refused(machine: Machine) -> None:
    machine.add("vda", serial=serial("pvc-1"))
    machine.add("vdb", serial=serial("pvc-1"))
    with pytest.raises(Refused, match=r"device-ambiguous.*vda and vdb"):
        machine.find("pvc-1")


def test_a_disk_that_comes_late_is_seen_within_20_ms(machine: Machine) -> None:
    def come(now: float) -> None:
        if now >= 1001.0 and not (machine.dev / "vdb").exists():
            machine.add("vdb", serial=serial("pvc-1"))

    clock = FakeClock(come)
    assert machine.find("pvc-1", clock=clock).path.name == "vdb"
    assert clock.now - 1001.0 <= 0.04


def test_a_disk_without_node_or_size_is_waited_for(machine: Machine) -> None:
    machine.add("vdb", serial=serial("pvc-1"))
    size = machine.sysfs / "block/vdb/size"
    node = (machine.dev / "vdb").stat().st_rdev
    (machine.dev / "vdb").unlink()
    size.write_text("0\n")

    def grow(now: float) -> None:
        if now >= 1000.1:
            size.write_text("2048\n")
        if now >= 1000.2 and not (machine.dev / "vdb").exists():
            os.mknod(machine.dev / "vdb", 0o60600, node)

    clock = FakeClock(grow)
    assert machine.find("pvc-1", clock=clock).size == 1 << 20
    assert clock.now >= 1000.2


def test_a_node_of_another_device_is_not_taken(machine: Machine) -> None:
    machine.add("vdb", serial=serial("pvc-1"))
    (machine.dev / "vdb").unlink()
    os.mknod(machine.dev / "vdb", 0o60600, os.makedev(240, 77))
    with pytest.raises(Unavailable, match="device-missing"):
        machine.find("pvc-1")


def test_the_wait_is_bounded_and_the_error_says_what_was_missing(machine: Machine) -> None:
    clock = FakeClock()
    with pytest.raises(Unavailable, match=rf"device-missing.*serial {serial('pvc-1')}.*5 s"):
        machine.find("pvc-1", clock=clock)
    assert 1005 <= clock.now < 1005.1


def test_an_ebs_volume_is_found_by_link_or_by_its_nvme_serial(machine: Machine) -> None:
    machine.add("nvme0n1", nvme="vol0000000000000001")
    machine.add("nvme1n1", nvme="vol0123456789abcdef0   ")
    assert machine.find("vol-0123456789abcdef0").path.name == "nvme1n1"
    machine.link("by-id/nvme-Amazon_Elastic_Block_Store_vol0123456789abcdef0", "nvme1n1")
    assert machine.find("vol-0123456789abcdef0").path.name == "nvme1n1"


def test_a_link_that_disagrees_with_the_nvme_serial_is_refused(machine: Machine) -> None:
    machine.add("nvme1n1", nvme="vol0123456789abcdef0")
    machine.add("nvme2n1")
    machine.link("by-id/nvme-Amazon_Elastic_Block_Store_vol0123456789abcdef0", "nvme2n1")
    with pytest.raises(Refused, match="device-ambiguous"):
        machine.find("vol-0123456789abcdef0")


@pytest.mark.parametrize("way", ["azure/data/by-lun/3", "azure/scsi1/lun3", "by-path/acpi-vmbus-1-lun-3"])
def test_an_azure_disk_is_found_by_each_of_its_links(machine: Machine, way: str) -> None:
    machine.add("sda", scsi="0:0:0:3")
    machine.add("sdb", scsi="1:0:0:0")
    machine.add("sdc", scsi="1:0:0:3")
    machine.link(way, "sdc")
    machine.link("by-path/acpi-vmbus-0-lun-3", "sda")
    assert machine.find(ARM_ID).path.name == "sdc"


def test_an_azure_disk_is_found_by_its_scsi_address_but_never_on_the_system_controller(
    machine: Machine,
) -> None:
    machine.add("sda", scsi="0:0:0:3")
    with pytest.raises(Unavailable, match=r"device-missing.*lun 3"):
        machine.find(ARM_ID)
    machine.add("sdb", scsi="3:0:0:3")
    assert machine.find(ARM_ID).path.name == "sdb"
    machine.add("sdc", scsi="4:0:0:3")
    with pytest.raises(Refused, match="device-ambiguous"):
        machine.find(ARM_ID)


def test_an_azure_disk_needs_a_lun(machine: Machine) -> None:
    with pytest.raises(Refused, match="annotation-volume"):
        machine.find(ARM_ID, lun=None)


def test_a_partition_is_not_a_disk(machine: Machine) -> None:
    machine.add("sdb", scsi="1:0:0:3")
    os.mknod(machine.dev / "sdb1", 0o60600, os.makedev(240, 9))
    machine.link("azure/scsi1/lun3", "sdb1")
    with pytest.raises(Refused, match="device-not-whole"):
        machine.find(ARM_ID)
