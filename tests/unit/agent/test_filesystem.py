"""ext4 sizes, checks and the mount table, on image files and texts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agent.commands import SystemRunner
from agent.errors import Refused
from agent.filesystem import Filesystems, Mount, ext4_size, mounted_at

MIB = 1 << 20


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "fs.img"
    with path.open("xb") as file:
        file.truncate(64 * MIB)
    Filesystems(SystemRunner()).make(path)
    return path


def test_a_new_filesystem_fills_its_device_and_is_clean(image: Path) -> None:
    assert ext4_size(image) == 64 * MIB
    Filesystems(SystemRunner()).check(image)


@pytest.mark.parametrize("field", ["mtime", "mnt_count"])
def test_a_filesystem_that_was_mounted_once_is_never_made_anew(image: Path, field: str) -> None:
    """Whatever record the host brings back, what a workload may have written to is not formatted."""
    Filesystems(SystemRunner()).make(image)
    subprocess.run(
        ["debugfs", "-w", "-R", f"set_super_value {field} 1", str(image)], check=True, capture_output=True
    )
    before = image.read_bytes()
    with pytest.raises(Refused, match="filesystem-in-use"):
        Filesystems(SystemRunner()).make(image)
    assert image.read_bytes() == before


def test_a_filesystem_that_fills_its_device_is_left_alone(image: Path) -> None:
    before = image.read_bytes()
    Filesystems(SystemRunner()).grow(image, 64 * MIB)
    assert image.read_bytes() == before


def test_a_filesystem_with_errors_that_need_a_decision_is_refused(image: Path) -> None:
    for request in ("clri <2>", "set_super_value state 2"):
        subprocess.run(["debugfs", "-w", "-R", request, str(image)], check=True, capture_output=True)
    with pytest.raises(Refused, match="filesystem-damaged"):
        Filesystems(SystemRunner()).check(image)


def test_what_is_no_ext4_has_no_size(tmp_path: Path) -> None:
    blank = tmp_path / "blank"
    blank.write_bytes(bytes(8192))
    with pytest.raises(Refused, match="filesystem-missing"):
        ext4_size(blank)
    blank.write_bytes(b"")
    with pytest.raises(Refused, match="filesystem-missing"):
        ext4_size(blank)


def test_a_filesystem_beyond_16_tib_is_measured_in_64_bits(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    with huge.open("xb") as file:
        file.truncate(4 * MIB)
    subprocess.run(
        ["mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "64bit,^resize_inode,^has_journal", str(huge)],
        check=True,
    )
    with huge.open("r+b") as file:
        file.seek(1024 + 0x150)
        file.write((2).to_bytes(4, "little"))
    assert ext4_size(huge) == 4 * MIB + (2 << 44)


TABLE = """\
22 28 0:21 / /proc rw,nosuid - proc proc rw
30 28 253:1 / /run/cloud-volumes/vol-0 rw,nosuid shared:2 - ext4 /dev/mapper/caa-vol-0 rw
31 28 0:40 / /mnt/with\\040space rw - tmpfs tmpfs rw
32 30 253:2 / /run/cloud-volumes/vol-0 nosuid,ro - ext4 /dev/mapper/other rw
"""


def test_the_mount_that_is_visible_counts(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    assert mounted_at(Path("/mnt/with space"), table) == Mount(
        "0:40", Path("/mnt/with space"), read_only=False
    )
    assert mounted_at(Path("/run/cloud-volumes/vol-0"), table) == Mount(
        "253:2", Path("/run/cloud-volumes/vol-0"), read_only=True
    )
    assert mounted_at(Path("/run/cloud-volumes/vol-1"), table) is None
