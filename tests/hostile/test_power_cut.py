"""The power goes at every block that a real guest writes while it initializes, rotates and grows a volume.

For each of these cuts, the agent's own code decides on the host what the next open does with the header, with
the real cryptsetup. For some cuts in each phase, and the last one, a real guest then mounts the disk.
Default policy, plain ``mount``; for the rotation a policy that names the previous key.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from agent.commands import SystemRunner
from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES
from agent.header_area import HeaderArea
from agent.header_guard import GenuineHeader
from agent.initialization import obtain_header
from agent.keys import ReleasedKey
from agent.policy import VolumeRules
from agent.rotation import KeyedHeaders
from tests.guest.pod import KEY, KEY_ID, MIB, PLAINTEXT, SOURCE, MakeDisk, Pod, volume
from tests.guest.policy import Guest
from tests.hostile.host import header_area
from tests.hostile.nbd import LyingDisk
from tests.hostile.power_cut import LONG, Recording, one_after_the_other, phase, samples
from tests.unit.agent.fake_clock import FakeClock
from tests.unit.agent.power_cut import PowerCutDisk, key_opens

NEW_KEY = bytes(range(200, 232))
PREVIOUS = "default/key/previous"
AT_ONCE = 6


def mount_each(pod: Pod, images: Sequence[Path], content: Iterable[bytes | None]) -> None:
    """Mount each of the disks in the guest and compare what is in ``file``; None: write it."""
    expected = dict(zip(images, content, strict=True))
    for start in range(0, len(images), AT_ONCE):
        batch = dict(enumerate(images[start : start + AT_ONCE]))
        for index, image in batch.items():
            pod.attach(image, f"cut-{index}")
        pod.mount(
            {
                f"vol-{index}": volume(f"cut-{index}", mount_point=f"/data-{index}", lun=str(index))
                for index in batch
            },
            timeout=400.0,
        ).result()
        for index, image in batch.items():
            folder = f"/run/cloud-volumes/vol-{index}"
            known = expected[image]
            if known is None:
                pod.write_file(folder)
            assert pod.read_file(folder) == (known or PLAINTEXT * 1000), image.name
        pod.unmount_all().result()
        for index, image in batch.items():
            pod.detach(f"cut-{index}")
            assert PLAINTEXT not in image.read_bytes()
            image.unlink()


@pytest.mark.usefixtures("hasty")
def test_power_cut_at_every_block_of_initialize(pod: Pod, make_disk: MakeDisk, tmp_path: Path) -> None:
    """It starts again, or goes on with the header that is there; it formats only until it was ready."""
    image = make_disk("new", mib=32)
    before = Path(shutil.copyfile(image, tmp_path / "before.raw"))
    with LyingDisk(image, tmp_path / "nbd") as disk:
        pod.attach(disk.path, "disk")
        pod.mount_one("disk").result()
        pod.write_file()
        recording = Recording(before, disk.log)
        pod.clean_up()
    final = header_area(image)[:IMAGE_BYTES]
    assert key_opens(header_area(image), KEY, tmp_path)

    phases: list[str] = []
    for cut in recording.cuts():
        name, found = phase(cut.area, recording.size, KEY) if cut.header_changed else (phases[-1], None)
        phases.append(name)
        assert found is None or found.image == final, "a header that is whole is kept"
    assert one_after_the_other(phases) == [
        "blank",
        "claimed",
        "formatting, in redo, grown",
        "formatting, in place, grown",
        "ready, in place, one record, grown",
        "ready, in place, grown",
    ]
    assert len(phases) > 600, "two header images, and a filesystem"
    outside = next(
        number for number, block in enumerate(recording.blocks) if block.offset >= HEADER_AREA_BYTES
    )
    assert phases[outside] == "formatting, in place, grown", "the header stands before the filesystem begins"

    chosen = samples(phases)
    images = [recording.disk_after(number, tmp_path / f"cut-{number}.raw") for number in chosen]
    for number, cut_image in zip(chosen, images, strict=True):
        again = obtain(header_area(cut_image), recording.size)
        # An interrupted claim starts again, with a header of its own.
        assert (again.image == final) == (phases[number] != "claimed")
        assert again.in_place
    content = [PLAINTEXT * 1000 if number == len(recording.blocks) else None for number in chosen]
    mount_each(pod, images, content)


def obtain(area: bytes, size: int) -> GenuineHeader:
    """What the agent makes of a header at the next start."""
    disk = PowerCutDisk(size, area)
    return obtain_header(HeaderArea(disk), KEY, SystemRunner(), FakeClock(), VolumeRules())


class PreviousKey:
    """Has the previous key, and nothing else."""

    def get_resource(self, uri: str) -> bytes:
        assert uri == f"kbs:///{PREVIOUS}"
        return KEY


def obtain_rotated(area: bytes, size: int) -> GenuineHeader:
    """What the agent makes of a header at the next start, under the policy of the rotation."""
    headers = KeyedHeaders(PreviousKey(), SystemRunner(), FakeClock())
    rules = VolumeRules(key_id=KEY_ID, previous_key_id=PREVIOUS)
    keyed = headers.obtain(PowerCutDisk(size, area), ReleasedKey(KEY_ID, NEW_KEY), rules)
    assert keyed.key.value == NEW_KEY
    return keyed.header


@pytest.fixture
def rotating(guest: Guest) -> Iterator[Guest]:
    """A policy that names the previous key, which holds the old value; the current one is new."""
    places = ["/data", *(f"/data-{index}" for index in range(AT_ONCE))]
    rules = f'key = "{KEY_ID}"\nprevious-key = "{PREVIOUS}"\n'
    guest.measure("version = 1\n" + "".join(f'[volumes."{place}"]\n{rules}' for place in places))
    guest.pod.kbs.put(PREVIOUS, KEY)
    guest.pod.kbs.put(KEY_ID, NEW_KEY)
    yield guest
    guest.pod.kbs.put(KEY_ID, KEY)
    guest.pod.kbs.remove(PREVIOUS)


def test_power_cut_at_every_block_of_rotate(rotating: Guest, ready_copy: Path, tmp_path: Path) -> None:
    """The header in force is the old one under the old key, or the new one under the new key, and whole."""
    pod = rotating.pod
    before = Path(shutil.copyfile(ready_copy, tmp_path / "before.raw"))
    with LyingDisk(ready_copy, tmp_path / "nbd") as disk:
        pod.attach(disk.path, "disk")
        pod.mount_one("disk").result()
        recording = Recording(before, disk.log)
        pod.clean_up()
    old, new = header_area(before), header_area(ready_copy)
    opens = [key_opens(area, key, tmp_path) for area in (old, new) for key in (KEY, NEW_KEY)]
    assert opens == [True, False, False, True]

    phases: list[str] = []
    for cut in recording.cuts():
        if not cut.header_changed:
            phases.append(phases[-1])
            continue
        name, found = phase(cut.area, recording.size, NEW_KEY)
        if found is not None:
            assert found.image == new[:IMAGE_BYTES]
            phases.append(f"new: {name}")
            continue
        name, found = phase(cut.area, recording.size, KEY)
        assert found is not None
        assert (found.image, found.in_place) == (old[:IMAGE_BYTES], True)
        phases.append(f"old: {name}")
    assert one_after_the_other(phases) == [
        "old: ready, in place, grown",
        "new: ready, in redo, one record, grown",
        "new: ready, in place, one record, grown",
        "new: ready, in place, grown",
    ]
    assert len(phases) > 500, "the image is written twice"

    chosen = samples(phases)
    images = [recording.disk_after(number, tmp_path / f"cut-{number}.raw") for number in chosen]
    for number, image in zip(chosen, images, strict=True):
        again = obtain_rotated(header_area(image), recording.size).image
        assert (again == new[:IMAGE_BYTES]) or phases[number].startswith("old")
        whole = again.ljust(HEADER_AREA_BYTES, b"\0")
        assert [key_opens(whole, key, tmp_path) for key in (KEY, NEW_KEY)] == [False, True]
    mount_each(pod, images, [PLAINTEXT * 1000] * len(images))


def test_power_cut_at_every_block_of_grow(pod: Pod, ready_copy: Path, tmp_path: Path) -> None:
    """While mounted: the header stays, its record says the old or the new size, no data is lost."""
    small, large = 64 * MIB, 160 * MIB
    with ready_copy.open("r+b") as file:
        file.truncate(large)
    with LyingDisk(ready_copy, tmp_path / "nbd") as disk:
        device = pod.attach(disk.path, "disk")
        pod.vm.call("tests.hostile.inside:mount_smaller", device=device, size=small, key_id=KEY_ID)
        # Without it the kernel zeroes inode tables whenever it likes, also after the last step of the growth.
        pod.sh(f"mount -o remount,noinit_itable {SOURCE}; sync")
        before = Path(shutil.copyfile(ready_copy, tmp_path / "before.raw"))
        start = len(disk.log)
        pod.vm.call("tests.hostile.inside:grow", device=device, size=large, key_id=KEY_ID, timeout=240.0)
        recording = Recording(before, disk.log[start:])
        blocks, block_bytes = map(int, pod.sh(f"stat -f -c '%b %S' {SOURCE}").split())
        assert blocks * block_bytes > 140 * MIB
        pod.vm.call("tests.hostile.inside:unmount_grown", key_id=KEY_ID)
        pod.clean_up()

    image = header_area(before)[:IMAGE_BYTES]
    phases: list[str] = []
    for cut in recording.cuts():
        name, found = phase(cut.area, large, KEY) if cut.header_changed else (phases[-1], None)
        phases.append(name)
        assert found is None or found.image == image
    assert one_after_the_other(phases) == ["ready, in place", "ready, in place, grown"]
    last = recording.blocks[-2:]
    assert all(block.offset < HEADER_AREA_BYTES for block in last), "the filesystem has grown before"
    assert len(phases) > LONG

    chosen = samples(phases, parts=4)
    images = [recording.disk_after(number, tmp_path / f"cut-{number}.raw") for number in chosen]
    for cut_image in images:
        again = obtain(header_area(cut_image), large)
        assert again.record.minimum_size in (small, large)
    mount_each(pod, images, [PLAINTEXT * 1000] * len(images))
