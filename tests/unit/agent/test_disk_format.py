"""The records of on-disk format 1."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.disk_format import SLOT_BYTES, Record, RecordKey, State, parse_slot

KEY = RecordKey(bytes(range(32)))
UUID = "6f1c0a52-8a61-4f0e-9a53-1c7c7a1d2e3f"
RECORD = Record(7, State.READY, UUID, 4 << 20, 4096, 1 << 30)

records = st.builds(
    Record,
    sequence=st.integers(0, 2**64 - 1),
    state=st.sampled_from(State),
    luks_uuid=st.sampled_from(["", UUID]),
    data_offset=st.integers(0, 2**64 - 1),
    sector_size=st.integers(0, 2**32 - 1),
    minimum_size=st.integers(0, 2**64 - 1),
)


@given(record=records, image=st.binary(max_size=64))
def test_a_sealed_record_reads_back_and_fits_its_image(record: Record, image: bytes) -> None:
    slot = record.seal(KEY, image)
    assert len(slot) == SLOT_BYTES
    assert not any(slot[512:]), "a record must fit one 512-byte sector"
    sealed = parse_slot(slot)
    assert sealed is not None
    assert sealed.record == record
    assert sealed.fits(KEY, image)


@given(position=st.integers(0, 127), flip=st.integers(1, 255))
def test_no_changed_byte_of_a_record_still_fits(position: int, flip: int) -> None:
    slot = bytearray(RECORD.seal(KEY, b"image"))
    slot[position] ^= flip
    sealed = parse_slot(bytes(slot))
    assert sealed is None or not sealed.fits(KEY, b"image")


def test_another_image_or_another_key_does_not_fit() -> None:
    sealed = parse_slot(RECORD.seal(KEY, b"image"))
    assert sealed is not None
    assert not sealed.fits(KEY, b"imagf")
    assert not sealed.fits(RecordKey(bytes(32)), b"image")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_record(noise: bytes) -> None:
    assert parse_slot(noise.ljust(SLOT_BYTES, b"\0")) is None


def test_the_layout_does_not_change() -> None:
    """A disk written by the first release must open for ever: this is its record, byte for byte."""
    assert RECORD.seal(KEY, b"image")[:128].hex() == (
        "4343534952454300"
        "00000001"
        "0000000000000007"
        "72656164790000000000000000000000" + UUID.encode().hex().ljust(80, "0") + "0000000000400000"
        "00001000"
        "0000000040000000" + "35b4c01fd2f8f2dd86ff1995f93cd3890f97805588a3f1280926b806400a8cc3"
    )


def test_a_key_is_not_shown() -> None:
    released = b"correct horse battery staple 1234"
    assert released.decode() not in repr(RecordKey(released))
