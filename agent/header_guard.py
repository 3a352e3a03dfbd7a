"""Deciding, from one read of the header area, which header is genuine; and changing it without a weak moment.

The host owns the disk, so nothing here is decided on a second read: :func:`judge` takes the bytes that were
read once, and the volume is later opened from the image it returns, never from the disk's own header.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.block_device import BlockDevice, all_zero
from agent.classification import Kind, classify
from agent.disk_format import (
    HEADER_AREA_BYTES,
    IMAGE_BYTES,
    REDO_OFFSET,
    SLOT_BYTES,
    SLOT_OFFSETS,
    Record,
    RecordKey,
    SealedRecord,
    State,
    image_in_place,
    image_in_redo,
    parse_slot,
    slot_of,
)
from agent.errors import Refused
from agent.header_area import HeaderArea
from agent.luks2 import HeaderError, newest_valid
from agent.luks2_profile import (
    FORMAT_1,
    AuditedHeader,
    ProfileViolation,
    audit,
    audit_known,
    require_equal_copies,
)


@dataclass(frozen=True)
class GenuineHeader:
    """A header that the holder of the volume key wrote, and that keeps to the profile."""

    image: bytes
    audited: AuditedHeader
    record: Record
    #: The slot (0 or 1) that holds ``record``; the other one may be overwritten.
    slot: int
    #: False when the image stands in the redo area only and must still be put in place.
    in_place: bool
    #: Whether the other slot holds a record in the same state for the same image, so that the loss of
    #: either slot changes nothing.
    backed: bool = True


@dataclass(frozen=True)
class Unformatted:
    """There is no header. Whether the disk is blank is for the blank check, which reads more of it.

    ``claimed``: an initialization of ours was cut short before its header was whole, and left a claim in
    slot 0 and perhaps part of an image in the redo area.
    """

    claimed: bool


def judge(area: HeaderArea, key: RecordKey) -> GenuineHeader | Unformatted:
    """Judge the header area of a disk: as :func:`decide`, which needs all of it.

    Raises:
        Refused: as :func:`decide`.
        Unavailable: the disk returned an error.
    """
    for slot, sealed in _newest_first(area.slots)[:1]:
        if sealed.record.state is not State.CLAIMED and sealed.fits(key, area.image_in_place):
            found = GenuineHeader(
                area.image_in_place, _audit(area.image_in_place), sealed.record, slot, in_place=True
            )
            return _checked(found, area.slots, key, area.device.size)
    return decide(area.whole, key, area.device.size)


def decide(area: bytes, key: RecordKey, device_size: int) -> GenuineHeader | Unformatted:
    """Judge the first ``HEADER_AREA_BYTES`` of a device of ``device_size`` bytes.

    The newest record whose HMAC fits the image in place or the redo image wins.

    Raises:
        Refused: no record fits (``header-not-authenticated``), the header leaves the profile, the record
            contradicts it (``record-mismatch``), or the device shrank (``device-too-small``).
    """
    if len(area) != HEADER_AREA_BYTES:
        raise ValueError(f"a header area is {HEADER_AREA_BYTES} bytes, not {len(area)}")
    if all_zero(area):
        return Unformatted(claimed=False)
    slots = area[SLOT_OFFSETS[0] :]
    images = (image_in_place(area), True), (image_in_redo(area), False)
    for slot, sealed in _newest_first(slots):
        if sealed.record.state is State.CLAIMED:
            if sealed.fits(key, b"") and _only_claim_and_redo(area, slot):
                return Unformatted(claimed=True)
            continue
        for image, in_place in images:
            if sealed.fits(key, image):
                found = GenuineHeader(image, _audit(image), sealed.record, slot, in_place)
                return _checked(found, slots, key, device_size)
    raise Refused(
        "header-not-authenticated",
        f"no record on the disk fits its header under the released key: {_what_is_there(area, device_size)}. "
        "Expected a volume that this agent made with this key; check that the disk and the key id "
        "belong together",
    )


def finish_change(device: BlockDevice, key: RecordKey, header: GenuineHeader) -> GenuineHeader:
    """Finish a change that was cut short: put the redo image in place, make both slots say ``ready``.

    Without the second, a slot that goes bad (or is zeroed by the host) could bring back the record in state
    ``initialising`` that stood in the other one, and the volume would be formatted.
    """
    if not header.in_place:
        device.write(0, header.image)
        device.flush()
        header = replace(header, in_place=True)
    if header.record.state is State.READY and not header.backed:
        header = update_record(device, key, header)
    return header


def replace_header(device: BlockDevice, key: RecordKey, image: bytes, record: Record, slot: int) -> None:
    """Make ``image`` the header and ``record`` its record; a cut at any write leaves one whole header.

    ``slot`` is not the one of the record now in force, and the header in force stands in place. Until the
    record is written that header wins; from then on the redo image does.
    """
    device.write(REDO_OFFSET, image)
    device.flush()
    write_record(device, key, image, record, slot)
    device.write(0, image)
    device.flush()


def write_record(device: BlockDevice, key: RecordKey, image: bytes, record: Record, slot: int) -> None:
    """Write one record and wait until it is durable."""
    device.write(SLOT_OFFSETS[slot], record.seal(key, image))
    device.flush()


def update_record(
    device: BlockDevice,
    key: RecordKey,
    header: GenuineHeader,
    *,
    state: State | None = None,
    minimum_size: int | None = None,
) -> GenuineHeader:
    """Change the record's fields for the header in place.

    Both slots are rewritten, one after the other: when a sector goes bad later, the older record that takes
    over says the same. Above all no record in state ``initialising``, which allows formatting, stays beside
    one in state ``ready``; :func:`finish_change` sees to that when this is cut short.
    """
    record = replace(
        header.record,
        sequence=header.record.sequence + 1,
        state=state or header.record.state,
        minimum_size=header.record.minimum_size if minimum_size is None else minimum_size,
    )
    write_record(device, key, header.image, record, 1 - header.slot)
    record = replace(record, sequence=record.sequence + 1)
    write_record(device, key, header.image, record, header.slot)
    return replace(header, record=record, backed=True)


def _checked(found: GenuineHeader, slots: bytes, key: RecordKey, device_size: int) -> GenuineHeader:
    """``found``, if its record and the device agree with it; and whether the other record backs it."""
    _compare(found.record, found.audited, device_size)
    other = _record_in(slots, 1 - found.slot)
    backed = other is not None and other.record.state is found.record.state and other.fits(key, found.image)
    return replace(found, backed=backed)


def _record_in(slots: bytes, slot: int) -> SealedRecord | None:
    return parse_slot(slots[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES])


def _newest_first(slots: bytes) -> list[tuple[int, SealedRecord]]:
    found = [(slot, sealed) for slot in (0, 1) if (sealed := _record_in(slots, slot)) is not None]
    return sorted(found, key=lambda item: item[1].record.sequence, reverse=True)


def _only_claim_and_redo(area: bytes, slot: int) -> bool:
    """Whether nothing stands in the area but a claim in slot 0 and bytes in the redo area."""
    between = area[REDO_OFFSET + IMAGE_BYTES : SLOT_OFFSETS[0]]
    return slot == 0 and all(map(all_zero, (area[:REDO_OFFSET], between, slot_of(area, 1))))


def _audit(image: bytes) -> AuditedHeader:
    """Audit an image that a record vouches for: one of ours, or one that was adopted."""
    try:
        audited = audit_known(newest_valid(image))
    except HeaderError as error:
        raise Refused("header-invalid", f"the LUKS2 header is not well-formed: {error}") from None
    require_equal_copies(image)
    return audited


def _compare(record: Record, audited: AuditedHeader, device_size: int) -> None:
    expected = (record.luks_uuid, record.data_offset, record.sector_size)
    found = (audited.uuid, audited.data_offset_bytes, audited.sector_size)
    if expected != found:
        raise Refused(
            "record-mismatch",
            f"the record says UUID, data offset, sector size {expected}, the header {found}",
        )
    if device_size < record.minimum_size:
        raise Refused(
            "device-too-small",
            f"the device has {device_size} bytes, but the volume had at least {record.minimum_size}: "
            "this is not the whole disk",
        )


def _what_is_there(area: bytes, device_size: int) -> str:
    """The reason that helps most, from a header nobody vouches for."""
    found = classify(area, device_size)
    if found.kind is not Kind.VALID_LUKS2:
        return f"the disk holds {found.kind.value} ({found.detail})"
    image = image_in_place(area)
    try:
        audit(newest_valid(image), FORMAT_1)
        require_equal_copies(image)
    except HeaderError as error:
        return f"its header is larger than the format's, or not well-formed: {error}"
    except ProfileViolation as violation:
        return str(violation)
    return "its header keeps to the profile, but was made by someone else, with another key or replaced"
