"""Power cut between any two writes of an initialization, a header change or a record update, then replay.

Headers are made, changed and opened by the real cryptsetup. Field cases I3 (the crash part) and I5.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.commands import SystemRunner
from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES, SLOT_BYTES, SLOT_OFFSETS, RecordKey, State
from agent.header_area import HeaderArea
from agent.header_guard import (
    GenuineHeader,
    Unformatted,
    decide,
    finish_change,
    replace_header,
    update_record,
)
from agent.initialization import initialize, obtain_header
from agent.policy import VolumeRules
from tests.unit.agent.fake_clock import FakeClock
from tests.unit.agent.power_cut import PowerCutDisk, PowerCutError, areas_between_block_writes, key_opens

KEY = bytes(range(100, 132))
NEW_KEY = bytes(range(200, 232))
SIZE = 64 << 20
RUNNER = SystemRunner()

seeds = st.integers(0, 2**32)
#: The share of unflushed sectors that reached the medium: none, all, or some of them.
shares = st.sampled_from([0.0, 1.0]) | st.floats(0.01, 0.99)


def obtain(disk: PowerCutDisk, key: bytes = KEY) -> GenuineHeader:
    return obtain_header(HeaderArea(disk), key, RUNNER, FakeClock(), VolumeRules())


def steps_of(action: Callable[[PowerCutDisk], object], area: bytes) -> int:
    disk = PowerCutDisk(SIZE, area)
    action(disk)
    return disk.steps


def cut(
    action: Callable[[PowerCutDisk], object], area: bytes, step: int, seed: int, share: float
) -> PowerCutDisk:
    """The disk after ``action`` was cut before its ``step``-th write or flush."""
    disk = PowerCutDisk(SIZE, area)
    disk.cut_at = step
    with pytest.raises(PowerCutError):
        action(disk)
    return disk.power_returns(seed, share)


@pytest.fixture(scope="module")
def ready_area() -> bytes:
    disk = PowerCutDisk(SIZE)
    update_record(disk, RecordKey(KEY), obtain(disk), state=State.READY)
    return bytes(disk.medium)


@pytest.fixture(scope="module")
def rotated_image(ready_area: bytes, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The same volume with NEW_KEY in a second keyslot: a real change of about 130 blocks."""
    folder = tmp_path_factory.mktemp("rotate")
    (folder / "new").write_bytes(NEW_KEY)
    image = folder / "header.img"
    image.write_bytes(ready_area.ljust(2 * HEADER_AREA_BYTES, b"\0"))
    subprocess.run(
        [
            *("cryptsetup", "luksAddKey", "--batch-mode", "--hash", "sha256"),
            *("--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"),
            *("--key-file", "-", str(image), str(folder / "new")),
        ],
        input=KEY,
        check=True,
        capture_output=True,
    )
    return image.read_bytes()[:IMAGE_BYTES]


def initialize_disk(disk: PowerCutDisk) -> None:
    initialize(disk, KEY, RUNNER)


def finish(disk: PowerCutDisk) -> None:
    """What the volume does after mkfs."""
    update_record(disk, RecordKey(KEY), obtain(disk), state=State.READY)


def grow(disk: PowerCutDisk) -> None:
    update_record(disk, RecordKey(KEY), obtain(disk), minimum_size=SIZE)


def test_an_initialization_writes_what_the_format_says(tmp_path: Path) -> None:
    """Field case I1: the disk itself gets a header that opens."""
    disk = PowerCutDisk(SIZE)
    header = obtain(disk)
    assert header.record.state is State.INITIALISING
    assert header.record.minimum_size == SIZE
    assert header.record.luks_uuid == header.audited.uuid
    assert key_opens(bytes(disk.medium), KEY, tmp_path)
    assert not key_opens(bytes(disk.medium), NEW_KEY, tmp_path)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=seeds, share=shares)
def test_an_initialization_cut_anywhere_is_taken_up_again(
    data: st.DataObject, seed: int, share: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    blank = bytes(HEADER_AREA_BYTES)
    step = data.draw(st.integers(0, steps_of(initialize_disk, blank) - 1))
    disk = cut(initialize_disk, blank, step, seed, share)
    found = decide(bytes(disk.medium), RecordKey(KEY), SIZE)
    header = obtain(disk)
    assert header.record.state is State.INITIALISING
    assert bytes(disk.medium)[:IMAGE_BYTES] == header.image
    assert key_opens(bytes(disk.medium), KEY, tmp_path_factory.getbasetemp())
    if isinstance(found, GenuineHeader):
        assert found.image == header.image, "a whole header was thrown away"


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=seeds, share=shares, twice=st.booleans())
def test_a_cut_while_recording_that_the_filesystem_is_there_loses_nothing(
    data: st.DataObject, seed: int, share: float, twice: bool
) -> None:
    disk = PowerCutDisk(SIZE)
    before = obtain(disk)
    area = bytes(disk.medium)
    for _ in range(2 if twice else 1):
        step = data.draw(st.integers(0, steps_of(finish, area) - 1))
        area = bytes(cut(finish, area, step, seed, share).medium)
        found = decide(area, RecordKey(KEY), SIZE)
        assert isinstance(found, GenuineHeader)
        assert found.image == before.image
        assert found.record.state in (State.INITIALISING, State.READY)


def stays_ready_without_either_slot(area: bytes) -> bool:
    """Whether the loss of one record slot, whichever, leaves the other in state ``ready``."""
    states = []
    for slot in SLOT_OFFSETS:
        damaged = bytearray(area)
        damaged[slot : slot + SLOT_BYTES] = bytes(SLOT_BYTES)
        found = decide(bytes(damaged), RecordKey(KEY), SIZE)
        assert isinstance(found, GenuineHeader)
        states.append(found.record.state)
    return states == [State.READY, State.READY]


def test_no_record_that_allows_formatting_outlives_the_first_that_does_not(ready_area: bytes) -> None:
    """A sector that goes bad must not bring back the state in which mkfs runs."""
    assert stays_ready_without_either_slot(ready_area)


@pytest.mark.parametrize("lost", [0.0, 0.5, 1.0])
def test_a_record_that_allows_formatting_is_gone_after_the_next_open(lost: float) -> None:
    """The power goes between the two records in state ``ready``, at any write."""
    disk = PowerCutDisk(SIZE)
    obtain(disk)
    area = bytes(disk.medium)
    seen_unbacked = False
    for step in range(steps_of(finish, area)):
        opened = cut(finish, area, step, 1, lost)
        found = decide(bytes(opened.medium), RecordKey(KEY), SIZE)
        assert isinstance(found, GenuineHeader)
        if found.record.state is State.READY:
            seen_unbacked |= not found.backed
            obtain(opened)
            assert stays_ready_without_either_slot(bytes(opened.medium))
    assert seen_unbacked


def test_a_volume_that_needs_no_repair_is_opened_without_a_write(ready_area: bytes) -> None:
    assert steps_of(obtain, ready_area) == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=seeds, share=shares)
def test_a_header_change_cut_anywhere_leaves_the_old_or_the_new_header_whole(
    data: st.DataObject,
    *,
    seed: int,
    share: float,
    ready_area: bytes,
    rotated_image: bytes,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def change(disk: PowerCutDisk) -> None:
        now = obtain(disk)
        record = replace(now.record, sequence=now.record.sequence + 1)
        replace_header(disk, RecordKey(KEY), rotated_image, record, 1 - now.slot)

    step = data.draw(st.integers(0, steps_of(change, ready_area) - 1))
    disk = cut(change, ready_area, step, seed, share)
    found = obtain(disk)
    assert found.image in (ready_area[:IMAGE_BYTES], rotated_image)
    area = bytes(disk.medium)
    assert area[:IMAGE_BYTES] == found.image
    folder = tmp_path_factory.getbasetemp()
    assert key_opens(area, KEY, folder)
    assert key_opens(area, NEW_KEY, folder) == (found.image == rotated_image)
    change(disk)
    assert obtain(disk).image == rotated_image


def test_at_no_block_of_a_header_change_is_there_anything_but_a_whole_header(
    ready_area: bytes, rotated_image: bytes
) -> None:
    """Every single block, in order; the random cuts above lose blocks out of order."""
    disk = PowerCutDisk(SIZE, ready_area)
    now = obtain(disk)
    record = replace(now.record, sequence=now.record.sequence + 1)
    replace_header(disk, RecordKey(KEY), rotated_image, record, 1 - now.slot)
    cuts = 0
    seen = []
    for area in areas_between_block_writes(ready_area, disk.writes):
        found = decide(area, RecordKey(KEY), SIZE)
        assert isinstance(found, GenuineHeader)
        assert found.image in (now.image, rotated_image)
        seen.append(found.image == rotated_image)
        cuts += 1
    assert cuts > 120, "a new keyslot changes many blocks, twice"
    assert seen == sorted(seen), "once the new header is in force it stays so"
    assert seen[-1]


def test_at_no_block_of_an_initialization_is_there_anything_but_a_claim_or_a_whole_header() -> None:
    disk = PowerCutDisk(SIZE)
    header = initialize(disk, KEY, RUNNER)
    found = [
        decide(area, RecordKey(KEY), SIZE)
        for area in areas_between_block_writes(bytes(HEADER_AREA_BYTES), disk.writes)
    ]
    whole = [isinstance(one, GenuineHeader) for one in found]
    assert whole == sorted(whole)
    first_whole = whole.index(True)
    assert found[:2] == [Unformatted(claimed=False), Unformatted(claimed=True)]
    assert set(found[1:first_whole]) == {Unformatted(claimed=True)}
    assert {one.image for one in found if isinstance(one, GenuineHeader)} == {header.image}
    assert len(found) > 500


@settings(max_examples=60, deadline=None)
@given(data=st.data(), first=seeds, second=seeds, share=shares)
def test_a_cut_recovery_can_be_recovered(
    data: st.DataObject, *, first: int, second: int, share: float, ready_area: bytes, rotated_image: bytes
) -> None:
    """The second cut hits the copying of the redo image itself."""

    def change(disk: PowerCutDisk) -> None:
        now = obtain(disk)
        record = replace(now.record, sequence=now.record.sequence + 1)
        replace_header(disk, RecordKey(KEY), rotated_image, record, 1 - now.slot)

    last_writes = steps_of(change, ready_area) - 2
    area = bytes(cut(change, ready_area, last_writes, first, share).medium)
    recovery = steps_of(obtain, area)
    if recovery:
        step = data.draw(st.integers(0, recovery - 1))
        area = bytes(cut(obtain, area, step, second, share).medium)
    assert obtain(PowerCutDisk(SIZE, area)).image == rotated_image


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=seeds, share=shares)
def test_a_cut_while_raising_the_minimum_size_leaves_the_old_or_the_new(
    data: st.DataObject, seed: int, share: float
) -> None:
    small = PowerCutDisk(SIZE // 2)
    update_record(small, RecordKey(KEY), obtain(small), state=State.READY)
    area = bytes(small.medium)
    step = data.draw(st.integers(0, steps_of(grow, area) - 1))
    disk = cut(grow, area, step, seed, share)
    found = obtain(disk)
    assert found.record.minimum_size in (SIZE // 2, SIZE)
    assert found.record.state is State.READY
    grow(disk)
    assert obtain(disk).record.minimum_size == SIZE


def test_a_header_in_the_redo_area_only_is_put_in_place(ready_area: bytes) -> None:
    disk = PowerCutDisk(SIZE, bytes(4096) + ready_area[4096:])
    found = decide(bytes(disk.medium), RecordKey(KEY), SIZE)
    assert isinstance(found, GenuineHeader)
    assert not found.in_place
    assert finish_change(disk, RecordKey(KEY), found).in_place
    assert bytes(disk.medium)[:IMAGE_BYTES] == ready_area[:IMAGE_BYTES]


def test_a_claim_counts_only_on_a_disk_that_is_otherwise_blank() -> None:
    disk = PowerCutDisk(SIZE)
    disk.cut_at = 3
    with pytest.raises(PowerCutError):
        initialize_disk(disk)
    area = bytes(disk.power_returns(1, 0.5).medium)
    assert decide(area, RecordKey(KEY), SIZE) == Unformatted(claimed=True)
