"""A disk that answers each read as it likes, fails, or goes away in the middle (``nbd.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES, REDO_OFFSET, SLOT_OFFSETS
from tests.fakes.luks_headers import forge, null_segment
from tests.guest.pod import KEY, PLAINTEXT, MakeDisk, volume
from tests.guest.sandbox import BUNDLES
from tests.hostile.host import DATA, OTHER, Host, copied, header_area, overwrite
from tests.hostile.nbd import LyingDisk

BLOCK = 4096
#: The blocks that decide: the header image, and the records.
READ = {*range(0, IMAGE_BYTES, BLOCK), *SLOT_OFFSETS}
WRITTEN = b"written after "
FOLDER = f"{BUNDLES}/container/data"


class Serve(Protocol):
    """Attaches an image by way of a server; the guest has looked for partitions on it when this returns."""

    def __call__(self, image: Path, disk_id: str = "disk") -> LyingDisk: ...


@pytest.fixture
def serve(host: Host, tmp_path: Path) -> Iterator[Serve]:
    """Disks that lie, until the end of the test."""
    with ExitStack() as stack:

        def one(image: Path, disk_id: str = "disk") -> LyingDisk:
            disk = stack.enter_context(LyingDisk(image, tmp_path / disk_id))
            device = host.pod.attach(disk.path, disk_id)
            host.pod.sh(f"blockdev --rereadpt {device}")
            return disk

        yield one
        host.removes_all()
        host.pod.clean_up()


def test_header_good_on_the_first_read_and_forged_on_the_second(
    host: Host, ready_copy: Path, serve: Serve
) -> None:
    """Default policy, mode B. Field case I5: never read; it opens from the copy."""
    disk = serve(ready_copy)
    forged = bytearray(header_area(ready_copy))
    image = forge(bytes(forged[:IMAGE_BYTES]), null_segment)
    for start in (0, REDO_OFFSET):
        forged[start : start + IMAGE_BYTES] = image
    seen: set[int] = set()
    second_reads = 0

    def on_read(offset: int, length: int, data: bytes) -> bytes:
        nonlocal second_reads
        answer = bytearray(data)
        for block in range(offset, min(offset + length, HEADER_AREA_BYTES), BLOCK):
            if block in seen:
                second_reads += 1
                answer[block - offset : block - offset + BLOCK] = forged[block : block + BLOCK]
            seen.add(block)
        return bytes(answer)

    disk.on_read = on_read
    host.starts("container")
    assert seen >= READ, "all of it was read"
    assert second_reads == 0, "and no block of it twice"
    assert host.pod.read_file(FOLDER) == PLAINTEXT * 1000
    host.pod.vm.check(["sh", "-c", f"cat >{FOLDER}/more; sync"], stdin=WRITTEN * 10000)
    assert b"aes-xts-plain64" in host.pod.sh("dmsetup table caa-vol-0")
    host.removes_all()
    content = ready_copy.read_bytes()
    assert WRITTEN not in content
    assert PLAINTEXT not in content
    # From now on every read is the forged one, of the redo image too.
    seen.update(range(0, HEADER_AREA_BYTES, BLOCK))
    host.refused("header-not-authenticated")


def test_a_header_swapped_for_the_clear_one_would_show(host: Host, ready_copy: Path) -> None:
    """No agent: opened from the disk itself, plaintext is written. So the test above can fail."""
    overwrite(ready_copy, 0, forge(header_area(ready_copy)[:IMAGE_BYTES], null_segment))
    device = host.pod.attach(ready_copy, "disk")
    host.pod.vm.check(["cryptsetup", "luksOpen", "-d", "-", device, "clear"], stdin=KEY)
    host.pod.sh("mkfs.ext4 -q -F /dev/mapper/clear; mkdir -p /run/clear; mount /dev/mapper/clear /run/clear")
    host.pod.vm.check(["sh", "-c", "cat >/run/clear/file; sync"], stdin=WRITTEN * 10000)
    host.pod.sh("umount /run/clear; dmsetup remove --retry clear")
    assert WRITTEN in ready_copy.read_bytes()


def zeros_for(disk: LyingDisk, looks: int) -> list[int]:
    """The disk reads zero until so many looks, each from its start on, are over, and then as it is.

    Returns a list that grows by one with each look.
    """
    begun: list[int] = []

    def on_read(offset: int, length: int, data: bytes) -> bytes:
        if offset == 0:
            begun.append(len(begun) + 1)
        return bytes(length) if len(begun) <= looks else data

    disk.on_read = on_read
    return begun


def test_zeros_for_seconds_and_then_the_data(host: Host, ready_copy: Path, serve: Serve) -> None:
    """Default policy, mode B. Field case I3: zeros for one or two of the three looks. The real 6 seconds."""
    disks = [serve(ready_copy), serve(copied(ready_copy, "copy"), "other")]
    # The first look of each is the one for a header.
    begun = [zeros_for(disk, looks) for disk, looks in zip(disks, (1 + 1, 1 + 2), strict=True)]
    volumes = {"vol-0": volume("disk"), "vol-1": volume("other", mount_point="/other", lun="1")}
    error = host.refused("not-blank", volumes, mounts=[DATA, OTHER])
    assert error.count("[not-blank]") == 2
    assert begun == [[1, 2, 3], [1, 2, 3, 4]], "the next look saw it"
    assert [disk.log for disk in disks] == [[], []], "not a byte was written"
    host.starts("container", volumes, mounts=[DATA, OTHER])
    for place in ("data", "other"):
        assert host.pod.read_file(f"{BUNDLES}/container/{place}") == PLAINTEXT * 1000


@pytest.mark.parametrize("after", [1, len(READ) * BLOCK])
@pytest.mark.parametrize("how", ["vanishes", "fails"])
def test_device_vanishing_in_the_middle_of_a_mount(
    host: Host, ready_copy: Path, serve: Serve, *, after: int, how: str
) -> None:
    """Default policy, mode B: while the header is read, or after that. The next start finds all of it."""
    disk = serve(ready_copy)
    left = after

    def on_read(_offset: int, length: int, data: bytes) -> bytes:
        nonlocal left
        left -= length
        if left >= 0:
            return data
        if how == "vanishes":
            disk.vanish()
        raise OSError

    disk.on_read = on_read
    # Opening needs no more of the disk than its header; looking for the filesystem does.
    host.refused("device-io", code=14, opened=int(after > 1))
    assert disk.log == []
    host.pod.detach("disk")
    host.pod.attach(ready_copy, "disk")
    host.starts("container")
    assert host.pod.read_file(FOLDER) == PLAINTEXT * 1000


def test_device_vanishing_while_it_is_initialized(host: Host, make_disk: MakeDisk, serve: Serve) -> None:
    """Default policy, mode B: the claim is on the disk, the header not yet.

    How the next start carries on: ``test_power_cut.py``.
    """
    image = make_disk("new", mib=32)
    disk = serve(image)
    disk.before_write = lambda number: disk.vanish() if number == 1 else None
    host.refused("device-io", code=14)
    assert len(disk.log) == 1
    assert any(header_area(image))
