"""Which header is genuine, decided from one read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.commands import SystemRunner
from agent.disk_format import (
    HEADER_AREA_BYTES,
    IMAGE_BYTES,
    REDO_OFFSET,
    SLOT_OFFSETS,
    Record,
    RecordKey,
    State,
)
from agent.errors import Refused
from agent.header_area import HeaderArea
from agent.header_guard import GenuineHeader, Unformatted, decide, update_record
from agent.initialization import initialize, obtain_header
from agent.policy import VolumeRules
from tests.fakes.luks_headers import Metadata, forge, null_keyslots, null_segment
from tests.unit.agent.fake_clock import FakeClock
from tests.unit.agent.power_cut import PowerCutDisk

KEY = bytes(range(32))
SIZE = 64 << 20
RUNNER = SystemRunner()


@pytest.fixture(scope="module")
def ready() -> bytes:
    disk = PowerCutDisk(SIZE)
    update_record(disk, RecordKey(KEY), initialize(disk, KEY, RUNNER), state=State.READY)
    return bytes(disk.medium)


def judge(area: bytes, key: bytes = KEY, size: int = SIZE) -> GenuineHeader | Unformatted:
    return decide(area, RecordKey(key), size)


def with_image(area: bytes, image: bytes) -> bytes:
    """Both header images replaced, the records kept."""
    redo_end = REDO_OFFSET + IMAGE_BYTES
    return image + area[IMAGE_BYTES:REDO_OFFSET] + image + area[redo_end:]


def sealed(area: bytes, image: bytes, edit: Callable[[Record], Record] = lambda record: record) -> bytes:
    """A record for ``image`` by somebody who holds the key, after ``edit`` of what it should say."""
    found = judge(area)
    assert isinstance(found, GenuineHeader)
    record = edit(replace(found.record, sequence=99))
    return with_image(area, image)[: SLOT_OFFSETS[1]] + record.seal(RecordKey(KEY), image)


def test_a_genuine_header_is_found_with_its_facts(ready: bytes) -> None:
    found = judge(ready)
    assert isinstance(found, GenuineHeader)
    assert found.in_place
    assert found.record.state is State.READY
    assert (found.audited.cipher, found.audited.sector_size) == ("aes-xts-plain64", 4096)


@pytest.mark.parametrize("edit", [null_segment, null_keyslots])
def test_a_forged_header_is_refused_and_the_reason_named(
    ready: bytes, edit: Callable[[Metadata], None]
) -> None:
    """Field case I4."""
    with pytest.raises(Refused, match=r"header-not-authenticated.*-cipher\]"):
        judge(with_image(ready, forge(ready[:IMAGE_BYTES], edit)))


def test_even_an_authenticated_header_must_keep_to_the_profile(ready: bytes) -> None:
    with pytest.raises(Refused, match="header-segment-cipher"):
        judge(sealed(ready, forge(ready[:IMAGE_BYTES], null_segment)))


def test_even_an_authenticated_header_must_have_equal_copies(ready: bytes) -> None:
    damaged = ready[:0x4000] + bytes(4096) + ready[0x5000:IMAGE_BYTES]
    with pytest.raises(Refused, match="header-copies"):
        judge(sealed(ready, damaged))


@pytest.mark.parametrize(
    "edit",
    [
        lambda record: replace(record, luks_uuid="6f1c7c0e-3f0a-4d5e-9a57-0c8a5a0d9b11"),
        lambda record: replace(record, data_offset=1),
        lambda record: replace(record, sector_size=512),
    ],
)
def test_a_record_that_contradicts_its_header_is_refused(
    ready: bytes, edit: Callable[[Record], Record]
) -> None:
    with pytest.raises(Refused, match="record-mismatch"):
        judge(sealed(ready, ready[:IMAGE_BYTES], edit))


def test_a_device_that_shrank_is_refused(ready: bytes) -> None:
    judge(ready, size=SIZE + 4096)
    with pytest.raises(Refused, match="device-too-small"):
        judge(ready, size=SIZE - 4096)


def test_another_key_finds_nothing_genuine(ready: bytes) -> None:
    with pytest.raises(Refused, match="header-not-authenticated"):
        judge(ready, key=bytes(32))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_changed_byte_of_the_image_is_accepted(ready: bytes, data: st.DataObject) -> None:
    """Every byte of metadata and keyslots is authenticated."""
    position = data.draw(st.integers(0, IMAGE_BYTES - 1))
    image = bytearray(ready[:IMAGE_BYTES])
    image[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Refused, match="header-not-authenticated"):
        judge(with_image(ready, bytes(image)))
    # In place only: the redo image takes over.
    found = judge(bytes(image) + ready[IMAGE_BYTES:])
    assert isinstance(found, GenuineHeader)
    assert found.image == ready[:IMAGE_BYTES]


@settings(max_examples=100, deadline=None)
@given(noise=st.binary(min_size=1, max_size=600), position=st.integers(0, HEADER_AREA_BYTES - 600))
def test_noise_is_never_taken_for_a_header_or_a_blank_disk(noise: bytes, position: int) -> None:
    area = bytearray(HEADER_AREA_BYTES)
    area[position : position + len(noise)] = noise
    if any(noise):
        with pytest.raises(Refused, match="header-not-authenticated"):
            judge(bytes(area))
    else:
        assert judge(bytes(area)) == Unformatted(claimed=False)


@pytest.mark.parametrize("extra", [0, REDO_OFFSET - 1, REDO_OFFSET + IMAGE_BYTES, SLOT_OFFSETS[1]])
def test_a_claim_beside_other_data_does_not_count(extra: int) -> None:
    area = bytearray(HEADER_AREA_BYTES)
    area[SLOT_OFFSETS[0] : SLOT_OFFSETS[1]] = Record.claim().seal(RecordKey(KEY), b"")
    area[REDO_OFFSET] = 1
    assert judge(bytes(area)) == Unformatted(claimed=True)
    with pytest.raises(Refused, match="header-not-authenticated"):
        judge(bytes(area), key=bytes(32))
    area[extra] = 1
    with pytest.raises(Refused, match="header-not-authenticated"):
        judge(bytes(area))


@pytest.mark.parametrize("key", [KEY, KEY[::-1]], ids=["its own key", "another key"])
def test_no_byte_of_the_header_area_is_read_twice(ready: bytes, key: bytes) -> None:
    """Field case I5: good on the first read, null cipher on the second; there is no second."""
    read: list[range] = []

    class Changing(PowerCutDisk):
        def read(self, offset: int, length: int) -> bytes:
            data = super().read(offset, length)
            read.append(range(offset, offset + length))
            forged = forge(ready[:IMAGE_BYTES], null_segment)
            self.medium[: len(data)] = with_image(ready, forged)[: len(data)]
            return data

    disk = Changing(SIZE, ready)
    if key == KEY:
        header = obtain_header(HeaderArea(disk), key, RUNNER, FakeClock(), VolumeRules())
        assert header.image == ready[:IMAGE_BYTES]
    else:
        with pytest.raises(Refused, match="header-not-authenticated"):
            obtain_header(HeaderArea(disk), key, RUNNER, FakeClock(), VolumeRules())
    ordered = sorted(read, key=lambda part: part.start)
    assert all(one.stop <= following.start for one, following in itertools.pairwise(ordered))
    assert disk.steps == 0, "opening a disk that is as it should be writes nothing"


@pytest.mark.parametrize("size", [4096, 4 << 20, (32 << 20) - 4096])
def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(size: int) -> None:
    class Small(PowerCutDisk):
        def write(self, offset: int, data: bytes) -> None:
            raise AssertionError(f"{len(data)} bytes written at {offset}")

    with pytest.raises(Refused, match="device-too-small"):
        obtain_header(HeaderArea(Small(size)), KEY, RUNNER, FakeClock(), VolumeRules())
