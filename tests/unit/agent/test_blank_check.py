"""Only a disk that is blank may be initialized."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.blank_check import CLAIM_REGIONS, require_blank
from agent.classification import signature_extents
from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES, REDO_OFFSET, SLOT_OFFSETS
from agent.errors import Refused, Unavailable
from tests.unit.agent.fake_clock import FakeClock

SIZE = 512 << 20


class SparseDisk:
    """All zero but for a few bytes; notes what is read."""

    def __init__(self, size: int = SIZE, *stray: int) -> None:
        self.size = size
        self.stray = set(stray)
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, length: int) -> bytes:
        assert offset % 4096 == 0
        assert length % 4096 == 0
        assert offset + length <= self.size
        self.reads.append((offset, length))
        data = bytearray(length)
        for position in self.stray:
            if offset <= position < offset + length:
                data[position - offset] = 1
        return bytes(data)

    def write(self, offset: int, data: bytes) -> None:
        raise AssertionError(f"the blank check writes {len(data)} bytes at {offset}")

    def flush(self) -> None:
        raise AssertionError("the blank check flushes")


def test_a_blank_disk_passes_after_three_looks_in_six_seconds() -> None:
    disk, clock = SparseDisk(), FakeClock()
    start = clock.now
    require_blank(disk, clock, claimed=False)
    assert clock.now - start == 6
    assert disk.reads.count((0, HEADER_AREA_BYTES)) == 3
    assert disk.reads.count((SIZE - (4 << 20), 4 << 20)) == 3


@given(size=st.integers((32 << 20) // 4096, (1 << 46) // 4096))
def test_what_is_read_does_not_grow_with_the_disk(size: int) -> None:
    disk = SparseDisk(size * 4096)
    require_blank(disk, FakeClock(), claimed=False)
    assert sum(length for _, length in disk.reads) < 3 * (16 << 20)
    beyond = [offset for offset, length in disk.reads if length == 4096 and offset >= HEADER_AREA_BYTES]
    assert len(beyond) >= 3 * 64


def test_the_random_blocks_differ_from_look_to_look() -> None:
    disk = SparseDisk(1 << 40)
    require_blank(disk, FakeClock(), claimed=False)
    assert len({offset for offset, length in disk.reads if length == 4096}) > 180


@given(st.data())
def test_a_single_byte_at_either_end_or_at_a_known_mark_is_found(data: st.DataObject) -> None:
    marks = [(offset, length) for offset, length, _ in signature_extents(SIZE)]
    start, length = data.draw(st.sampled_from([(0, 4 << 20), (SIZE - (4 << 20), 4 << 20), *marks]))
    position = data.draw(st.integers(start, start + length - 1))
    with pytest.raises(Refused, match="not-blank"):
        require_blank(SparseDisk(SIZE, position), FakeClock(), claimed=False)


@pytest.mark.parametrize("seconds", [0.0, 2.9, 3.0, 6.0])
def test_data_that_appears_during_the_check_is_found(seconds: float) -> None:
    """Field case I3: zeros at first, then the real data."""
    disk = SparseDisk()
    start = 1000.0

    def appear(now: float) -> None:
        if now - start >= seconds:
            disk.stray.add(0x8000)

    clock = FakeClock(appear)
    appear(clock.now)
    with pytest.raises(Refused, match="not-blank"):
        require_blank(disk, clock, claimed=False)


@pytest.mark.parametrize("position", [REDO_OFFSET, REDO_OFFSET + IMAGE_BYTES - 1, SLOT_OFFSETS[0] + 100])
def test_only_what_a_claim_leaves_is_left_out(position: int) -> None:
    require_blank(SparseDisk(SIZE, position), FakeClock(), claimed=True)
    with pytest.raises(Refused, match="not-blank"):
        require_blank(SparseDisk(SIZE, position), FakeClock(), claimed=False)


@pytest.mark.parametrize(
    "position",
    [0, REDO_OFFSET - 1, REDO_OFFSET + IMAGE_BYTES, SLOT_OFFSETS[0] - 1, SLOT_OFFSETS[1], SIZE - 1],
)
def test_a_claim_does_not_excuse_anything_else(position: int) -> None:
    assert len(CLAIM_REGIONS) == 2
    with pytest.raises(Refused, match="not-blank"):
        require_blank(SparseDisk(SIZE, position), FakeClock(), claimed=True)


def test_a_disk_that_cannot_be_read_is_not_blank() -> None:
    class Broken(SparseDisk):
        def read(self, offset: int, length: int) -> bytes:
            raise Unavailable("device-io", f"{length} bytes at {offset} can't be read")

    with pytest.raises(Unavailable):
        require_blank(Broken(), FakeClock(), claimed=False)
