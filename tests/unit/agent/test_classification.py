"""Blank or not: whatever shows on a disk, shows here."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.classification import (
    AREA_BYTES,
    SIGNATURE_OFFSETS,
    SIGNATURES,
    Kind,
    classify,
    signature_extents,
)
from agent.luks2 import SECONDARY_OFFSETS
from tests.fakes import luks_headers as forged

GIB = 1024 * 1024 * 1024
MIB = 1024 * 1024
KIB = 1024


def disk(*pieces: tuple[int, bytes], length: int = AREA_BYTES) -> bytes:
    """A zeroed area with ``pieces`` of (offset, bytes) written into it."""
    area = bytearray(length)
    for offset, data in pieces:
        area[offset : offset + len(data)] = data
    return bytes(area)


def test_zeros_are_blank_only_as_far_as_they_were_read() -> None:
    found = classify(bytes(AREA_BYTES), GIB)
    assert found.kind is Kind.BLANK
    assert "first 4194304 bytes" in found.detail
    assert classify(bytes(MIB), MIB).kind is Kind.BLANK


@pytest.mark.parametrize("length", [0, 1, 4096, AREA_BYTES - 1])
def test_a_short_read_is_unreadable_never_blank(length: int) -> None:
    assert classify(bytes(length), GIB).kind is Kind.UNREADABLE


def test_an_empty_device_is_unreadable() -> None:
    assert classify(b"", 0).kind is Kind.UNREADABLE


def test_a_valid_header() -> None:
    found = classify(disk((0, forged.build_area())), GIB)
    assert found.kind is Kind.VALID_LUKS2
    assert forged.UUID in found.detail


def test_a_header_that_no_profile_allows_is_still_luks() -> None:
    area = forged.forge(forged.build_area(), forged.null_segment)
    assert classify(disk((0, area)), GIB).kind is Kind.VALID_LUKS2


def test_one_damaged_copy_is_damage() -> None:
    """Field case I2."""
    area = forged.build_area()
    for offset, name in ((4096, "primary"), (16384 + 4096, "secondary")):
        found = classify(disk((0, area), (offset, b"x")), GIB)
        assert found.kind is Kind.DAMAGED_LUKS
        assert f"the {name} header is not valid" in found.detail
    assert classify(disk((0, forged.build_copy(forged.metadata()))), GIB).kind is Kind.DAMAGED_LUKS


@pytest.mark.parametrize("offset", [offset for offset in SECONDARY_OFFSETS if offset < AREA_BYTES])
def test_a_lone_secondary_magic_is_damage_at_every_known_offset(offset: int) -> None:
    """Field case I2."""
    found = classify(disk((offset, b"SKUL\xba\xbe\0\2")), GIB)
    assert found.kind is Kind.DAMAGED_LUKS
    assert hex(offset) in found.detail


def test_the_secondary_magic_beyond_the_first_4_mib_is_among_the_places_to_read() -> None:
    """Field case I2."""
    assert any(start <= 0x400000 < start + length for start, length, _ in signature_extents(GIB))


def test_magics_alone_and_luks1() -> None:
    """Field case I2: damage is never blank; LUKS1 is somebody's data."""
    assert classify(disk((0, b"LUKS\xba\xbe\0\2")), GIB).kind is Kind.DAMAGED_LUKS
    assert classify(disk((0, b"LUKS\xba\xbe\0\0")), GIB).kind is Kind.DAMAGED_LUKS
    found = classify(disk((0, b"LUKS\xba\xbe\0\1")), GIB)
    assert (found.kind, found.detail) == (Kind.OTHER_DATA, "a LUKS1 header")


def test_both_binary_headers_gone_is_still_data() -> None:
    """Field case I2."""
    area = disk((0, forged.build_area()), (0, bytes(4096)), (16384, bytes(4096)))
    found = classify(area, GIB)
    assert (found.kind, found.detail) == (Kind.OTHER_DATA, "unknown data from byte 4096 on")


def test_a_header_that_does_not_fit_its_device_is_damage() -> None:
    assert classify(disk((0, forged.build_area()), length=65536), 65536).kind is Kind.DAMAGED_LUKS


def _signatures() -> Iterator[tuple[str, bytes, int]]:
    for signature in SIGNATURES:
        for offset in signature.offsets:
            yield signature.name, signature.magic, offset


def test_every_signature_is_named_at_each_of_its_places() -> None:
    for name, magic, offset in _signatures():
        found = classify(disk((offset, magic), length=MIB), MIB)
        assert found.kind is Kind.OTHER_DATA
        assert found.detail == f"{name} (signature at byte {offset})"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["mkfs.ext4", "-q"], "an ext2, ext3 or ext4 file system"),
        (["mkfs.ext2", "-q", "-b", "1024"], "an ext2, ext3 or ext4 file system"),
        (["mkfs.xfs", "-q"], "an XFS file system"),
        (["mkswap", "--quiet"], "swap space"),
    ],
)
def test_what_the_real_tools_write_is_recognized(command: list[str], name: str, tmp_path: Path) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(GIB)
    image.chmod(0o600)
    subprocess.run([*command, str(image)], check=True, capture_output=True, timeout=60)
    with image.open("rb") as file:
        found = classify(file.read(AREA_BYTES), GIB)
    assert found.kind is Kind.OTHER_DATA
    assert found.detail.startswith(name)


@pytest.mark.parametrize(
    "command",
    [
        ["mkfs.ext4", "-q"],
        ["mkfs.ext4", "-q", "-b", "2048"],
        ["mkfs.ext2", "-q", "-b", "1024"],
        ["mkfs.xfs", "-q"],
    ],
)
@pytest.mark.parametrize("size", [512 * MIB, GIB, 5 * GIB + 12345 * 4096])
def test_a_file_system_with_its_start_and_end_wiped_shows_in_the_signature_regions(
    command: list[str], size: int, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run([*command, str(image)], check=True, capture_output=True, timeout=60)
    with image.open("r+b") as file:
        file.write(bytes(AREA_BYTES))
        file.seek(size - AREA_BYTES)
        file.write(bytes(AREA_BYTES))
        magic = b"XFSB" if "xfs" in command[0] else b"\x53\xef"
        place = 0 if "xfs" in command[0] else 56
        shown = []
        for start, length, name in signature_extents(size):
            file.seek(start)
            data = file.read(length)
            if data[place : place + len(magic)] == magic:
                shown.append(name)
    assert shown


def test_the_places_near_the_end_for_a_device_of_an_odd_size() -> None:
    """The formulas of the formats' own documents, spelled out for 1 GiB and 5,120 bytes."""
    size = GIB + 5120
    extents = {name: (start, length) for start, length, name in signature_extents(size)}
    assert extents["GPT backup header (512-byte sectors)"] == (size - 512, 512)
    assert extents["GPT backup header (4096-byte sectors)"] == (size - 4096, 4096)
    assert extents["Linux RAID superblock 0.90"] == (GIB - 64 * KIB, 4096)
    # 16 sectors before the end, rounded down to 8 sectors.
    assert extents["Linux RAID superblock 1.0"] == (GIB - 4096, 4096)
    assert extents["ZFS label 2"] == (GIB - 512 * KIB, 256 * KIB)
    assert extents["ZFS label 3"] == (GIB - 256 * KIB, 256 * KIB)
    assert extents["Btrfs second superblock"] == (64 * MIB, 4096)
    assert "Btrfs third superblock" not in extents


@given(size=st.integers(min_value=0, max_value=2**50))
def test_signature_regions_lie_on_the_device(size: int) -> None:
    extents = signature_extents(size)
    assert list(extents) == sorted(extents)
    assert len(extents) <= len(SIGNATURE_OFFSETS)
    for start, length, name in extents:
        assert 0 <= start < start + length <= size, name


@settings(max_examples=200, deadline=None)
@given(
    length=st.integers(min_value=1, max_value=70_000),
    pieces=st.lists(st.tuples(st.integers(0, 70_000), st.binary(min_size=1, max_size=64)), max_size=4),
)
def test_only_zeros_are_blank(length: int, pieces: list[tuple[int, bytes]]) -> None:
    area = disk(*pieces, length=70_064)[:length]
    found = classify(area, length)
    assert (found.kind is Kind.BLANK) == (not any(area))
    assert found.kind is not Kind.UNREADABLE


def test_a_single_bit_anywhere_is_data() -> None:
    for offset in (0, 1, 511, 4095, 65536, 2 * MIB + 1, AREA_BYTES - 1):
        for bit in (0, 7):
            assert classify(disk((offset, bytes([1 << bit]))), GIB).kind is Kind.OTHER_DATA
