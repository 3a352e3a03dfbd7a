"""Copies: the same bytes, the same holes, within the deadline, and of one point in time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.deadline import Deadline
from providers.errors import DeadlineError, InUseError
from providers.local import copying
from providers.local.copying import copy_disk
from tests.contract.local_backend import qemu_holding

MIB = 1024**2
BLOCK = 4096


@contextmanager
def opened(*paths: Path) -> Iterator[list[int]]:
    with ExitStack() as stack:
        descriptors = []
        for path in paths:
            descriptors.append(os.open(path, os.O_RDWR | os.O_CREAT))
            stack.callback(os.close, descriptors[-1])
        yield descriptors


def copy(source: Path, target: Path, deadline: Deadline | None = None) -> None:
    with opened(source, target) as (source_descriptor, target_descriptor):
        copy_disk(source_descriptor, target_descriptor, deadline or Deadline.after(60))


def disk(path: Path, size: int, data: dict[int, bytes]) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
        for offset, content in data.items():
            file.seek(offset)
            file.write(content)
    return path


LAYOUTS = st.dictionaries(st.integers(0, 255), st.binary(min_size=1, max_size=BLOCK), max_size=12)


@settings(deadline=None, max_examples=60)
@given(LAYOUTS, st.sampled_from([BLOCK, 3 * BLOCK, 64 * BLOCK]))
def test_a_copy_has_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, layout: dict[int, bytes], chunk: int
) -> None:
    directory = tmp_path_factory.mktemp("copy")
    source = disk(directory / "a", MIB + BLOCK, {block * BLOCK: data for block, data in layout.items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "_CHUNK_BYTES", chunk)
        patch.setattr(copying, "_SYNC_BYTES", 2 * chunk)
        copy(source, directory / "b")
    assert (directory / "b").read_bytes() == source.read_bytes()


def test_holes_stay_holes(tmp_path: Path) -> None:
    source = disk(tmp_path / "a", 8 * 1024**3, {0: b"begin", 5 * 1024**3: b"middle"})
    copy(source, tmp_path / "b")
    copied = (tmp_path / "b").stat()
    assert copied.st_size == 8 * 1024**3
    assert copied.st_blocks * 512 <= MIB
    with (tmp_path / "b").open("rb") as file:
        assert file.read(5) == b"begin"
        file.seek(5 * 1024**3)
        assert file.read(6) == b"middle"


def test_a_copy_ends_at_the_deadline(tmp_path: Path) -> None:
    """Field case B3."""
    source = disk(tmp_path / "a", 64 * MIB, {0: os.urandom(12 * MIB)})
    checks = iter([False, False, True])
    with pytest.raises(DeadlineError):
        copy(source, tmp_path / "b", Deadline.after(60, lambda: next(checks)))
    copied = (tmp_path / "b").stat().st_blocks * 512
    assert MIB <= copied < 12 * MIB


def test_a_disk_that_a_machine_writes_to_is_not_copied_block_by_block(tmp_path: Path) -> None:
    source = disk(tmp_path / "a", MIB, {0: b"x"})
    with qemu_holding(source), pytest.raises(InUseError):
        copy(source, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b""
    copy(source, tmp_path / "b")


def test_a_reflink_shares_the_blocks_and_needs_no_pause(reflink_directory: Path) -> None:
    """Even while a machine has the disk: the file system takes all of it at one moment."""
    data = os.urandom(32 * MIB)
    source = disk(reflink_directory / "a", 40 * MIB, {0: data})
    with source.open("rb") as file:
        os.fsync(file.fileno())
    free = os.statvfs(reflink_directory).f_bavail
    with qemu_holding(source):
        copy(source, reflink_directory / "b")
    used = (free - os.statvfs(reflink_directory).f_bavail) * os.statvfs(reflink_directory).f_frsize
    assert used < MIB
    assert (reflink_directory / "b").read_bytes() == source.read_bytes()
    with source.open("r+b") as file:
        file.write(b"changed")
    assert (reflink_directory / "b").read_bytes()[: 32 * MIB] == data
