"""Random bytes are told from readable ones, without a false alarm."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
from pathlib import Path

import pytest

from cli.inspect.sample import BLOCK_BYTES, Sample, take_sample

MIB = 2**20


def _sample(data: bytes, start: int = 0) -> Sample:
    return take_sample(lambda offset, length: data[offset : offset + length], start, len(data))


def test_random_bytes_look_random_and_zeros_are_empty() -> None:
    sample = _sample(random.Random(1).randbytes(2 * MIB) + bytes(2 * MIB))
    assert sample.random == 342
    assert sample.zero == 170
    assert not sample.is_readable
    assert 7.94 < sample.entropy < 7.97


def test_no_alarm_on_thousands_of_random_blocks() -> None:
    for round_number in range(12):
        data = random.Random(round_number).randbytes(256 * BLOCK_BYTES)
        assert not _sample(data).is_readable


def test_sectors_that_were_never_written_do_not_make_a_block_readable() -> None:
    rng = random.Random(3)
    blocks = [rng.randbytes(512 * count).ljust(BLOCK_BYTES, b"\0") for count in range(1, 9)] * 20
    assert not _sample(b"".join(blocks)).is_readable


@pytest.mark.parametrize(
    "block",
    [
        b"a line of text\n" * 300,
        bytes(range(256)) * 16,  # even, but no accident
        os.urandom(2048) + b"\xff" * 2048,
        gzip.compress(b"text") + b"x" * 4000,
    ],
    ids=["text", "a counter", "half random", "mostly one byte"],
)
def test_readable_blocks_are_found_and_placed(block: bytes) -> None:
    data = bytearray(random.Random(4).randbytes(MIB))
    data[8 * BLOCK_BYTES : 9 * BLOCK_BYTES] = block[:BLOCK_BYTES]
    assert _sample(bytes(data)).structured == (8 * BLOCK_BYTES,)


def test_a_file_system_is_named(tmp_path: Path) -> None:
    image = tmp_path / "ext4.raw"
    with image.open("xb") as file:
        file.truncate(16 * MIB)
    subprocess.run(["/sbin/mkfs.ext4", "-q", image], check=True)
    sample = _sample(bytes(4 * MIB) + image.read_bytes(), start=4 * MIB)
    assert "an ext2, ext3 or ext4 file system" in sample.signatures
    assert sample.is_readable


def test_an_empty_area_says_nothing() -> None:
    assert _sample(b"") == Sample(0, 0, 0, (), (), 0.0)
