"""``confidential-csi attach-libvirt`` as a process, with a real PodVM: attach, grow, copy, detach."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import libvirt
import pytest

from driver.direct_volumes import DirectVolumes, directory_name
from driver.mountinfo import MountInfo
from providers.deadline import Deadline
from providers.interface import VolumeRequest
from providers.libvirt import LibvirtProvider
from providers.serial import disk_serial
from tests.lab.caa import Caa
from tests.lab.hypervisor import Hypervisor
from tests.lab.podvm import PodVm
from tests.tools.driver_process import attaching

MIB = 1024**2
SANDBOX = "a77ac4ed" + "0" * 56
TARGET = "/var/lib/kubelet/pods/2c8b/volumes/kubernetes.io~csi/{}/mount"
_SECONDS = 120.0


@pytest.fixture
def podvm(hypervisor: Hypervisor) -> Iterator[PodVm]:
    running = hypervisor.boot(Caa.podvm_name("ledger", SANDBOX))
    yield running
    running.destroy()


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm") as name:
        (Path(name) / "direct-volumes").mkdir()
        yield Path(name)


def sizes(vm: PodVm) -> dict[str, int]:
    """By serial: the sizes of the disks that the guest sees, in bytes."""
    script = """
for disk in /sys/block/vd*; do
    serial=$(cat $disk/serial) && size=$(cat $disk/size) && [ -n "$serial" ] && echo "$serial $size"
done 2>/dev/null
true  # a disk that leaves while it is read is none
"""
    lines = vm.check(["sh", "-c", script]).decode().splitlines()
    return {serial: int(size) * 512 for serial, size in (line.split() for line in lines)}


def write(vm: PodVm, serial: str, data: bytes) -> None:
    """Write to the start of a disk, in the guest."""
    script = f"d=$(grep -l {serial} /sys/block/vd*/serial | cut -d/ -f4); dd of=/dev/$d conv=fsync,notrunc"
    vm.check(["sh", "-ec", script], stdin=data)


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def publish(records: DirectVolumes, name: str, disk_id: str) -> None:
    """As the node plugin and then Kata's runtime do."""
    target = TARGET.format(name)
    records.write(target, MountInfo(disk_id, "ext4", {"cloud-provider": "libvirt"}))
    (records.root / directory_name(target) / SANDBOX).touch()


def test_a_podvm_has_the_disks_that_are_published_to_its_pod(
    hypervisor: Hypervisor, podvm: PodVm, folder: Path, tmp_path: Path
) -> None:
    """Also a disk that the older Go driver made, found by its path (contracts 10)."""
    pool = tmp_path / "pool"
    pool.mkdir()
    hypervisor.make_pool("attach", pool)
    go_disk = pool / "csi-vol-pvc-old.raw"
    with go_disk.open("wb") as file:
        file.truncate(8 * MIB)
    provider = LibvirtProvider(lambda: libvirt.open(hypervisor.uri), "attach")
    deadline = Deadline.after(300)
    volume = provider.create_volume(VolumeRequest("pvc-1", 16 * MIB, None, "ext4"), deadline)
    records = DirectVolumes(folder / "direct-volumes")
    new, old = disk_serial(volume.disk_id), disk_serial(str(go_disk))

    with _attacher(hypervisor, folder):
        publish(records, "new", volume.disk_id)
        publish(records, "old", str(go_disk))
        until(lambda: sizes(podvm) == {new: 16 * MIB, old: 8 * MIB})
    # libvirt notes an attachment after the guest saw it, and a detachment too.
    until(lambda: provider.get_volume_info(volume.handle, deadline).attached_to == podvm.name)

    assert provider.expand_volume(volume.handle, 24 * MIB, deadline) == 24 * MIB
    until(lambda: sizes(podvm) == {new: 24 * MIB, old: 8 * MIB})

    write(podvm, new, b"while it runs")
    snapshot = provider.create_snapshot("snap-1", volume.handle, deadline)
    (copy,) = pool.glob("csi-snap-snap-1~*.raw")
    assert copy.read_bytes() == b"while it runs" + bytes(24 * MIB - 13)
    provider.delete_snapshot(snapshot.handle, deadline)

    records.remove(TARGET.format("new"))
    with _attacher(hypervisor, folder):  # another process, which knows nothing of the first
        until(lambda: sizes(podvm) == {old: 8 * MIB})
    until(lambda: provider.get_volume_info(volume.handle, deadline).attached_to == "")
    provider.delete_volume(volume.handle, deadline)


@contextmanager
def _attacher(hypervisor: Hypervisor, folder: Path) -> Iterator[None]:
    options = ("--node-id", "worker-1", "--direct-volumes-root", str(folder / "direct-volumes"))
    settings = {"LIBVIRT_URI": hypervisor.uri, "LIBVIRT_POOL": "attach"}
    with attaching(folder, *options, "--interval", "0.1", env=settings) as process:
        yield
        process.kill()
