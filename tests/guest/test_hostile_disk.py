"""What a host can put on, or in place of, a disk: refused, and not a byte of it changed."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.disk_format import (
    HEADER_AREA_BYTES,
    IMAGE_BYTES,
    REDO_OFFSET,
    SLOT_BYTES,
    SLOT_OFFSETS,
    RecordKey,
    State,
)
from agent.header_guard import GenuineHeader, decide
from tests.fakes.luks_headers import Metadata, forge, null_keyslots, null_segment
from tests.guest.pod import KEY, KEY_ID, MIB, OTHER_KEY_ID, PLAINTEXT, MakeDisk, Pod
from tests.lab.cdh import Fault


def digest(image: Path) -> str:
    return hashlib.sha256(image.read_bytes()).hexdigest()


def overwrite(image: Path, offset: int, data: bytes) -> None:
    with image.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def luks_format(image: Path, *extra: str) -> None:
    """What somebody else's cryptsetup does, on the host."""
    subprocess.run(
        [
            *("cryptsetup", "luksFormat", "--batch-mode", "--type", "luks2", "--key-file", "-"),
            *("--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--hash", "sha256"),
            *("--luks2-metadata-size", "16k", "--luks2-keyslots-size", "1m", "--offset", "8192"),
            *("--sector-size", "4096", "--key-size", "512", *extra, str(image)),
        ],
        input=KEY,
        check=True,
        capture_output=True,
    )


def refuse_unchanged(pod: Pod, image: Path, rule: str, **changes: str) -> str:
    """Mount must fail by ``rule`` and leave the disk as it is; the error."""
    before = digest(image)
    opens = len(pod.cdh.calls("SecureMount"))
    pod.attach(image, "hostile")
    outcome = pod.mount_one("hostile", **changes)
    outcome.refused(rule)
    assert len(pod.cdh.calls("SecureMount")) == opens, "it must not even be opened"
    assert pod.leftovers() == ""
    assert digest(image) == before
    return outcome.stderr


@pytest.mark.parametrize("edit", [null_segment, null_keyslots])
def test_a_header_forged_before_the_first_read_is_refused(
    pod: Pod, ready_copy: Path, edit: Callable[[Metadata], None]
) -> None:
    """Field case I4, CVE-2025-59054 and CVE-2025-58356: null ciphers, with good checksums."""
    area = ready_copy.read_bytes()[:HEADER_AREA_BYTES]
    forged = forge(area[:IMAGE_BYTES], edit)
    overwrite(ready_copy, 0, forged)
    overwrite(ready_copy, REDO_OFFSET, forged)
    error = refuse_unchanged(pod, ready_copy, "header-not-authenticated")
    assert "-cipher]" in error, "the reason is named"


def test_a_header_forged_in_place_only_is_replaced_by_the_genuine_one(pod: Pod, ready_copy: Path) -> None:
    """As after a power cut: the redo image authenticates, so the forged one is not used."""
    genuine = ready_copy.read_bytes()[:IMAGE_BYTES]
    overwrite(ready_copy, 0, forge(genuine, null_segment))
    pod.attach(ready_copy, "hostile")
    pod.mount_one("hostile").result()
    assert pod.read_file() == PLAINTEXT * 1000
    assert b"aes-xts-plain64" in pod.sh("dmsetup table caa-vol-0")
    assert ready_copy.read_bytes()[:IMAGE_BYTES] == genuine


def test_an_older_record_that_allows_formatting_does_not_get_a_used_volume_formatted(
    pod: Pod, ready_copy: Path
) -> None:
    """The host kept slot 1 from the initialization, and brings it back in place of both records."""
    area = ready_copy.read_bytes()[:HEADER_AREA_BYTES]
    key = RecordKey(KEY)
    genuine = decide(area, key, ready_copy.stat().st_size)
    assert isinstance(genuine, GenuineHeader)
    older = replace(genuine.record, sequence=2, state=State.INITIALISING)
    overwrite(ready_copy, SLOT_OFFSETS[0], bytes(SLOT_BYTES))
    overwrite(ready_copy, SLOT_OFFSETS[1], older.seal(key, genuine.image))
    before = digest(ready_copy)
    pod.attach(ready_copy, "hostile")
    pod.mount_one("hostile").refused("filesystem-in-use")
    assert pod.leftovers() == ""
    assert digest(ready_copy) == before


def test_a_whole_header_around_a_known_volume_key_is_refused(
    pod: Pod, ready_copy: Path, tmp_path: Path
) -> None:
    """Field case I4: it keeps to the profile, and even the released key opens it; the records are genuine."""
    records = ready_copy.read_bytes()[SLOT_OFFSETS[0] : HEADER_AREA_BYTES]
    (tmp_path / "known").write_bytes(bytes(range(64)))
    luks_format(ready_copy, "--volume-key-file", str(tmp_path / "known"))
    overwrite(ready_copy, SLOT_OFFSETS[0], records)
    error = refuse_unchanged(pod, ready_copy, "header-not-authenticated")
    assert "made by someone else" in error


def test_a_header_forged_after_the_read_is_never_read(pod: Pod, ready_copy: Path) -> None:
    """Field case I5: the disk's header is forged just before the data hub opens the volume."""
    pod.attach(ready_copy, "hostile")
    forged = forge(ready_copy.read_bytes()[:IMAGE_BYTES], null_segment)
    pod.vm.call(
        "tests.guest.inside.hostile:mount_with_header_swapped_before_open",
        disk_id="hostile",
        key_id=KEY_ID,
        image=forged.hex(),
        timeout=120,
    )
    assert pod.read_file() == PLAINTEXT * 1000
    pod.vm.check(["sh", "-c", "cat >/run/cloud-volumes/vol-0/more; sync"], stdin=b"written after " * 10000)
    assert b"aes-xts-plain64" in pod.sh("dmsetup table caa-vol-0")
    pod.unmount_all().result()
    content = ready_copy.read_bytes()
    assert content.startswith(forged), "the disk's own header was forged"
    assert b"written after" not in content
    assert PLAINTEXT not in content


def test_a_header_swapped_for_the_clear_one_would_show(pod: Pod, ready_copy: Path) -> None:
    """The test above can fail: with the same header, opened from the disk itself, plaintext is written."""
    overwrite(ready_copy, 0, forge(ready_copy.read_bytes()[:IMAGE_BYTES], null_segment))
    pod.attach(ready_copy, "hostile")
    device = pod.vm.call("tests.guest.inside.agent:disk_path", disk_id="hostile")
    pod.vm.check(["cryptsetup", "luksOpen", "-d", "-", device, "clear"], stdin=KEY)
    pod.sh("mkfs.ext4 -q -F /dev/mapper/clear; mkdir -p /run/clear; mount /dev/mapper/clear /run/clear")
    pod.vm.check(["sh", "-c", "cat >/run/clear/file; sync"], stdin=b"written after " * 10000)
    pod.sh("umount /run/clear; dmsetup remove --retry clear")
    assert b"written after" in ready_copy.read_bytes()


def test_a_disk_that_first_reads_zeros_is_not_formatted(
    pod: Pod, ready_copy: Path, make_disk: MakeDisk
) -> None:
    """Field case I3: zeros for two of the three looks, then yesterday's data. The real 6 seconds."""
    late = make_disk("late")
    pod.attach(ready_copy, "source")
    pod.attach(late, "late")
    error = pod.vm.call(
        "tests.guest.inside.hostile:mount_while_data_arrives",
        disk_id="late",
        key_id=KEY_ID,
        source_id="source",
        timeout=120,
    )
    assert error.startswith("[not-blank]")
    assert late.read_bytes() == ready_copy.read_bytes()
    pod.detach("source")
    pod.mount_one("late").result()
    assert pod.read_file() == PLAINTEXT * 1000


@pytest.mark.parametrize("zeroed", [[0], [0, 16384]])
def test_a_damaged_luks_disk_of_others_is_not_taken_for_new(
    pod: Pod, make_disk: MakeDisk, zeroed: list[int]
) -> None:
    """Field case I2."""
    image = make_disk("damaged", mib=32)
    luks_format(image)
    for offset in zeroed:
        overwrite(image, offset, bytes(4096))
    error = refuse_unchanged(pod, image, "header-not-authenticated")
    assert ("damaged LUKS" if zeroed == [0] else "other data") in error


def test_a_luks_disk_without_our_record_is_not_adopted(pod: Pod, make_disk: MakeDisk) -> None:
    image = make_disk("foreign", mib=32)
    luks_format(image)
    refuse_unchanged(pod, image, "header-not-authenticated")


@pytest.mark.parametrize("offset", [1 * MIB, 32 * MIB - 4096])
def test_a_disk_with_a_single_stray_byte_is_not_initialized(
    pod: Pod, make_disk: MakeDisk, offset: int
) -> None:
    image = make_disk("stray", mib=32)
    overwrite(image, offset, b"x")
    refuse_unchanged(pod, image, "header-not-authenticated" if offset < HEADER_AREA_BYTES else "not-blank")


def test_another_key_does_not_open_it(pod: Pod, ready_copy: Path) -> None:
    """The host changed key_id in the annotation."""
    refuse_unchanged(pod, ready_copy, "header-not-authenticated", key_id=OTHER_KEY_ID)


@pytest.mark.parametrize("fault", ["denied", "missing", "hang", "absent"])
@pytest.mark.parametrize("first_boot", [True, False])
def test_without_its_key_a_volume_is_not_touched(
    pod: Pod, ready_copy: Path, make_disk: MakeDisk, *, fault: str, first_boot: bool
) -> None:
    """Field case J3: fail closed, no random key, no retry storm; the error names the key id, not the key."""
    image = make_disk("blank", mib=32) if first_boot else ready_copy
    before = digest(image)
    pod.attach(image, "disk")
    requests = len(pod.kbs.requests)
    key_id = "default/key/none" if fault == "missing" else KEY_ID
    rule = "data-hub-failed"
    if fault == "denied":
        pod.kbs.denied.add(KEY_ID)
    elif fault == "hang":
        pod.cdh.set_fault("GetResource", "hang")
        rule = "data-hub-timeout"
    elif fault == "absent":
        pod.cdh.stop()
        rule = "data-hub-unavailable"
    try:
        outcome = pod.agent(
            *("--cdh-timeout", "1", "mount", "--annotation", "-"),
            stdin=pod.annotation("disk", key_id=key_id),
        )
    finally:
        if fault == "absent":
            pod.cdh.start()
    outcome.refused(rule, code=4)
    assert key_id in outcome.stderr
    assert KEY.hex() not in outcome.stderr
    assert len(pod.kbs.requests) - requests == (1 if fault in ("denied", "missing") else 0)
    assert pod.leftovers() == ""
    assert digest(image) == before


@pytest.mark.parametrize("fault", ["refuse", "hang", "die-after", "late"])
def test_when_the_data_hub_fails_to_open_nothing_stays_behind(
    pod: Pod, ready_copy: Path, fault: Fault
) -> None:
    """Field case J3; ``die-after`` and ``late``: the mapping came up, but no answer did."""
    pod.attach(ready_copy, "disk")
    before = digest(ready_copy)
    pod.cdh.set_fault("SecureMount", fault, seconds=2.0)
    outcome = pod.agent(*("--cdh-timeout", "1", "mount", "--annotation", "-"), stdin=pod.annotation("disk"))
    assert outcome.code == 4, outcome
    assert pod.leftovers() == ""
    assert digest(ready_copy) == before
    if fault == "die-after":
        pod.cdh.start()
    pod.cdh.set_fault("SecureMount", "none")
    pod.mount_one("disk").result()
    assert pod.read_file() == PLAINTEXT * 1000
