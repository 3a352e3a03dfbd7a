"""Power cut between any two writes of a key rotation, then replay, with the real cryptsetup."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.disk_format import IMAGE_BYTES, RecordKey, State
from agent.header_guard import GenuineHeader, update_record
from agent.initialization import initialize
from agent.policy import Format
from tests.unit.agent.power_cut import PowerCutDisk, PowerCutError, areas_between_block_writes, key_opens
from tests.unit.agent.rotation_support import (
    NEW,
    NEWEST,
    OLD,
    ROTATES,
    RUNNER,
    SIZE,
    broker,
    obtain,
    refusal,
    rests_under_new,
    rotated_disk,
    verdict,
    volume_key,
    volume_under_old,
    vouches,
    with_current_only,
)

seeds = st.integers(0, 2**32)

shares = st.sampled_from([0.0, 1.0]) | st.floats(0.01, 0.99)


@pytest.fixture
def ready() -> bytes:
    """A volume under OLD."""
    return volume_under_old()


@pytest.fixture
def rotation() -> PowerCutDisk:
    """The disk after a rotation, with all its writes."""
    return rotated_disk()


def cut_rotation(area: bytes, step: int, share: float) -> bytes:
    disk = PowerCutDisk(SIZE, area)
    disk.cut_at = step
    with pytest.raises(PowerCutError):
        obtain(disk)
    return bytes(disk.power_returns(1, share).medium)


def test_at_no_block_of_a_rotation_does_neither_key_or_do_both_open(
    ready: bytes, rotation: PowerCutDisk, tmp_path: Path
) -> None:
    """Every single block, in order. Up to the record the old key's header is whole, then the new one's."""
    new_image = bytes(rotation.medium)[:IMAGE_BYTES]
    seen: list[bool] = []
    last_old = b""
    for area in areas_between_block_writes(ready, rotation.writes):
        new = verdict(area, NEW)
        if new is None:
            old = verdict(area, OLD)
            assert isinstance(old, GenuineHeader)
            assert (old.image, old.in_place) == (ready[:IMAGE_BYTES], True)
            last_old = area
        else:
            assert isinstance(new, GenuineHeader)
            assert new.image == new_image
            if len(seen) % 60 == 0:
                rests_under_new(bytes(with_current_only(area).medium), ready, tmp_path)
        seen.append(new is not None)
    assert len(seen) > 250, "a header with another keyslot changes many blocks, twice"
    assert seen == sorted(seen), "once the new key's header is in force it stays so"
    assert 100 < seen.index(True) < len(seen) - 100
    disk = PowerCutDisk(SIZE, last_old)
    obtain(disk)
    rests_under_new(bytes(disk.medium), ready, tmp_path)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), seed=seeds, share=shares, twice=st.booleans())
def test_a_rotation_cut_anywhere_is_completed_by_the_next_mount(
    data: st.DataObject,
    *,
    seed: int,
    share: float,
    twice: bool,
    ready: bytes,
    rotation: PowerCutDisk,
    tmp_path: Path,
) -> None:
    """Blocks are lost out of order here, and the next mount may be cut, too."""
    area = ready
    for _ in range(2 if twice else 1):
        disk = PowerCutDisk(SIZE, area)
        disk.cut_at = data.draw(st.integers(0, rotation.steps - 1))
        # The second time there may be less to do.
        with suppress(PowerCutError):
            obtain(disk)
        area = bytes(disk.power_returns(seed, share).medium)
        assert vouches(area, OLD) or vouches(area, NEW)
    disk = PowerCutDisk(SIZE, area)
    obtain(disk)
    rests_under_new(bytes(disk.medium), ready, tmp_path)


@pytest.mark.parametrize("step", [1, 3, 5, 9])
def test_a_cut_rotation_can_be_taken_back_or_led_on(ready: bytes, step: int, tmp_path: Path) -> None:
    """The operator changes the values in the key broker before the next mount."""
    area = cut_rotation(ready, step, 0.5)
    back = PowerCutDisk(SIZE, area)
    obtain(back, OLD, broker(NEW))
    assert not vouches(bytes(back.medium), NEW)
    assert volume_key(bytes(back.medium), OLD, tmp_path) == volume_key(ready, OLD, tmp_path)
    if vouches(area, NEW):
        on = PowerCutDisk(SIZE, area)
        obtain(on, NEWEST, broker(NEW))
        for gone in (OLD, NEW):
            assert not vouches(bytes(on.medium), gone)
            assert not key_opens(bytes(on.medium), gone, tmp_path)
        assert volume_key(bytes(on.medium), NEWEST, tmp_path) == volume_key(ready, OLD, tmp_path)


operations = st.lists(
    st.sampled_from(["upload", "take back", "mount"])
    | st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.3, 1.0])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(operations=operations, seed=seeds)
def test_an_operator_and_a_host_that_cuts_the_power_never_lose_a_volume(
    operations: list[str | tuple[int, float]], *, seed: int, ready: bytes, tmp_path: Path
) -> None:
    """The operator keeps to the one rule: no other new value before a mount has ended well."""
    values = iter(bytes([number]) * 32 for number in range(10))
    current, previous, settled = OLD, next(values), True
    area = ready
    for operation in operations:
        disk = PowerCutDisk(SIZE, area)
        if operation == "upload" and settled:
            current, previous, settled = next(values), current, False
        elif operation == "take back":
            current, previous, settled = previous, current, False
        elif operation == "mount":
            obtain(disk, current, broker(previous))
            settled = True
        elif isinstance(operation, tuple):
            disk.cut_at, share = operation
            with suppress(PowerCutError):
                obtain(disk, current, broker(previous))
            disk = disk.power_returns(seed, share)
        area = bytes(disk.medium)
        assert vouches(area, current) or vouches(area, previous)
    disk = PowerCutDisk(SIZE, area)
    obtain(disk, current, broker(previous))
    after = bytes(disk.medium)
    assert not vouches(after, previous)
    assert not key_opens(after, previous, tmp_path)
    assert volume_key(after, current, tmp_path) == volume_key(ready, OLD, tmp_path)


def test_a_header_change_under_the_old_key_that_was_cut_is_rotated_from_the_redo_image(
    ready: bytes, tmp_path: Path
) -> None:
    torn = bytes(8192) + ready[8192:]
    steps = PowerCutDisk(SIZE, torn)
    obtain(steps)
    rests_under_new(bytes(steps.medium), ready, tmp_path)
    for step in (0, 1, 3, 5):
        disk = PowerCutDisk(SIZE, cut_rotation(torn, step, 0.5))
        obtain(disk)
        rests_under_new(bytes(disk.medium), ready, tmp_path)


def cut_initialization(step: int) -> bytes:
    disk = PowerCutDisk(SIZE)
    disk.cut_at = step
    with pytest.raises(PowerCutError):
        initialize(disk, OLD, RUNNER)
    return bytes(disk.power_returns(1, 1.0).medium)


def test_an_initialization_that_was_cut_is_carried_on_under_the_new_key(tmp_path: Path) -> None:
    for step in (2, 3, 5, 7):
        area = cut_initialization(step)
        before = verdict(area, OLD)
        assert before is not None
        disk = PowerCutDisk(SIZE, area)
        keyed = obtain(disk)
        assert (keyed.key.value, keyed.header.record.state) == (NEW, State.INITIALISING)
        assert key_opens(bytes(disk.medium), NEW, tmp_path)
        assert not key_opens(bytes(disk.medium), OLD, tmp_path)
        update_record(disk, RecordKey(NEW), keyed.header, state=State.READY)
        assert not vouches(bytes(disk.medium), OLD)
        assert with_current_only(bytes(disk.medium)).steps == 0
        forbidden = refusal(PowerCutDisk(SIZE, area), rules=replace(ROTATES, format=Format.NEVER))
        assert forbidden.rule == "format-forbidden"
