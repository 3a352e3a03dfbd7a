"""One disk, or an image of it: what is on it, and whether that is what an encrypted volume has.

It is opened for reading, each byte is read at most once, and nothing is repaired.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from agent.classification import AREA_BYTES, Kind, classify
from agent.disk_format import (
    HEADER_AREA_BYTES,
    Record,
    State,
    image_in_redo,
    parse_slot,
    slot_of,
)
from agent.luks2 import Header, HeaderError, newest_valid
from cli.inspect.header import HeaderReview, facts, review
from cli.inspect.sample import Sample, take_sample
from cli.inspect.story import Section, Statement, Story, Value, Verdict

#: The largest header has two copies of 4 MiB; a default one ends here, too.
_HEAD_BYTES: Final = 16 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_CONTAINER: Final = "a QCOW2 image"
_WITHOUT_KEY: Final = (
    "Not to be told without the key: whether the header and its records are genuine. The guest checks "
    "that, by the records' HMAC, at every mount"
)
_WITHOUT_RECORD: Final = (
    "Whether the header is genuine, nothing on the disk can tell: no record vouches for it, and a guest that "
    "is told to adopt it believes it"
)


@dataclass(frozen=True)
class Disk:
    """An open disk; ``head`` are its first bytes, read once."""

    descriptor: int
    size: int
    head: bytes

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the disk; those of ``head`` are not read again."""
        if offset + length <= len(self.head):
            return self.head[offset : offset + length]
        return _read(self.descriptor, offset, length)


def inspect_image(path: Path) -> Story:
    """The story of a disk image or block device.

    Raises:
        click.ClickException: it can't be read.
    """
    try:
        with _opened(path) as disk:
            return _story(path, disk)
    except OSError as error:
        raise click.ClickException(f"{path} can't be read: {error.strerror}") from None


def _story(path: Path, disk: Disk) -> Story:
    story = Story("image", str(path))
    kind = classify(disk.head[:AREA_BYTES], disk.size)
    story.sections.append(
        Section("disk", "The disk", {"size, bytes": disk.size, "holds": f"{kind.kind.value}: {kind.detail}"})
    )
    if kind.kind in (Kind.VALID_LUKS2, Kind.DAMAGED_LUKS):
        _tell_luks(story, disk)
    else:
        _tell_other(story, disk, kind.kind, kind.detail)
    return story


def _tell_other(story: Story, disk: Disk, kind: Kind, detail: str) -> None:
    records = _records(disk.head)
    _tell_records(story, records, None, disk)
    if kind is Kind.BLANK:
        story.remarks.append("nothing was written to it yet, as far as its first 4 MiB go")
        story.conclusion = (
            "Blank: no encrypted volume yet. The guest makes one at the first mount, if its policy allows."
        )
    elif kind is Kind.OTHER_DATA and records and all(one.state is State.CLAIMED for one in records.values()):
        story.remarks.append("a guest took it over, and was stopped before its header was whole")
        story.conclusion = "Claimed by a guest, not made yet: the next mount starts again."
    elif detail.startswith(_CONTAINER):
        story.unseen.append(
            "what is in the QCOW2 image; convert it first: qemu-img convert -O raw FILE DISK.raw"
        )
        story.conclusion = "A container of a disk, not the disk: nothing can be said of what is in it."
    else:
        story.alarms.append(f"it holds no LUKS2 header, but {detail}")
        story.conclusion = (
            "NOT ENCRYPTED by this driver: whoever has the disk reads what is on it, unless it is "
            "encrypted by other means."
        )


def _tell_luks(story: Story, disk: Disk) -> None:
    reviewed = review(disk.head, disk.size)
    story.statements += reviewed.statements
    header = reviewed.header
    story.sections.append(Section("header", "The LUKS2 header", _header_facts(reviewed)))
    records = _records(disk.head)
    _tell_records(story, records, header, disk)
    sample = _tell_sample(story, disk, header)
    redo = _redo_header(disk.head) if records else None
    if redo is not None:
        facts_of_redo: dict[str, Value] = {"uuid": redo.binary.uuid, "sequence": redo.binary.sequence}
        story.sections.append(Section("redo", "Header in the redo area, of the last change", facts_of_redo))
    if isinstance(header, HeaderError) and redo is not None:
        story.remarks.append(
            f"the header in place is damaged ({header.reason}), the one in the redo area is whole"
        )
        story.conclusion = (
            f"A change of the header was cut short, and the next mount finishes it. {_WITHOUT_KEY}."
        )
        return
    if isinstance(header, HeaderError):
        story.alarms.append(f"its LUKS2 header is damaged: {header.reason}")
        story.conclusion = (
            "A damaged LUKS2 volume: docs/recovery.md. Do not run cryptsetup on it, which may change it."
        )
        return
    broken = [one.name for one in reviewed.statements if one.verdict is Verdict.BROKEN]
    if broken:
        story.alarms.append(f"the header breaks {', '.join(broken)}: the guest refuses such a disk")
    if not records:
        story.remarks.append(
            "no record of on-disk format 1: not made by this driver's agent, which opens it only if a "
            "policy says 'adopt'"
        )
    story.conclusion = _conclusion(reviewed, header, sample, records, story)


def _conclusion(
    reviewed: HeaderReview, header: Header, sample: Sample | None, records: dict[int, Record], story: Story
) -> str:
    if story.alarms:
        return "NOT PROVED: see the alarms. Treat what was written to it as readable by the host."
    made_by = (
        "this driver's agent (on-disk format 1)" if records else "others (no record of this driver's agent)"
    )
    segment = header.metadata["segments"]["0"]
    size = next(iter(header.metadata["keyslots"].values()))["key_size"] * 8
    text = (
        f"Encrypted, as far as a disk can show it: LUKS2 made by {made_by}, profile "
        f"{reviewed.profile.name}, every rule holds; {segment['encryption']} with a {size}-bit key "
        f"(AES-{size // 2}) from byte {segment['offset']} to the end"
    )
    if sample is not None:
        text += f"; {sample.random} sampled blocks look random, {sample.zero} are empty, none can be read"
    return f"{text}. {_WITHOUT_KEY if records else _WITHOUT_RECORD}."


# --- parts ------------------------------------------------------------------------------------------------


def _header_facts(reviewed: HeaderReview) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, copy in (("primary copy", reviewed.pair.primary), ("secondary copy", reviewed.pair.secondary)):
        found[name] = (
            f"not valid: {copy.reason}"
            if isinstance(copy, HeaderError)
            else f"valid, sequence {copy.binary.sequence}, at byte {copy.binary.offset}"
        )
    if not isinstance(reviewed.header, HeaderError):
        found["held against"] = f"profile {reviewed.profile.name}"
        found.update(facts(reviewed.header))
    return found


def _records(head: bytes) -> dict[int, Record]:
    """The records of on-disk format 1, by slot."""
    if len(head) < HEADER_AREA_BYTES:
        return {}
    parsed = {slot: parse_slot(slot_of(head, slot)) for slot in (0, 1)}
    return {slot: sealed.record for slot, sealed in parsed.items() if sealed is not None}


def _tell_records(
    story: Story, records: dict[int, Record], header: Header | HeaderError | None, disk: Disk
) -> None:
    for slot in (0, 1):
        record = records.get(slot)
        if record is None:
            continue
        story.sections.append(
            Section(
                f"record {slot}",
                f"Record in slot {slot} (on-disk format 1)",
                {
                    "state": record.state.value,
                    "sequence": record.sequence,
                    "luks uuid": record.luks_uuid,
                    "data offset, bytes": record.data_offset,
                    "sector size, bytes": record.sector_size,
                    "minimum size of the disk, bytes": record.minimum_size,
                },
            )
        )
    if not records or header is None or isinstance(header, HeaderError):
        return
    newest = max(records.values(), key=lambda one: one.sequence)
    story.statements.append(_record_fits(newest, header))
    large_enough = disk.size >= newest.minimum_size
    story.statements.append(
        Statement(
            "device-too-small",
            "the disk is as large as it was",
            Verdict.HOLDS if large_enough else Verdict.BROKEN,
            "" if large_enough else f"it has {disk.size} bytes, and had {newest.minimum_size}",
        )
    )
    story.statements.append(
        Statement(
            "header-not-authenticated", "a record's HMAC fits the header", Verdict.UNKNOWN, "it takes the key"
        )
    )
    if newest.state is not State.READY:
        story.remarks.append(
            f"state {newest.state.value}: the guest has not finished making it; the next mount does"
        )
    elif {one.state for one in records.values()} != {State.READY} or len(records) < 2:
        story.remarks.append("only one record says ready; the next mount writes the other")
    for one in story.statements:
        if one.name in ("record-mismatch", "device-too-small") and one.verdict is Verdict.BROKEN:
            story.alarms.append(f"{one.name}: {one.found}")


def _record_fits(record: Record, header: Header) -> Statement:
    segment = header.metadata["segments"].get("0", {})
    said = {
        "UUID": record.luks_uuid,
        "data offset": str(record.data_offset),
        "sector size": str(record.sector_size),
    }
    found = {
        "UUID": header.binary.uuid,
        "data offset": str(segment.get("offset")),
        "sector size": str(segment.get("sector_size")),
    }
    differs = [
        f"{name} is {found[name]}, the record says {said[name]}" for name in said if said[name] != found[name]
    ]
    if record.state is State.CLAIMED:
        return Statement(
            "record-mismatch", "the record fits the header", Verdict.UNKNOWN, "a claim names no header"
        )
    return Statement(
        "record-mismatch",
        "the record names the header's UUID, data offset and sector size",
        Verdict.BROKEN if differs else Verdict.HOLDS,
        "; ".join(differs),
    )


def _redo_header(head: bytes) -> Header | None:
    """The header in the redo area of on-disk format 1, if a whole one stands there."""
    try:
        return newest_valid(image_in_redo(head)) if len(head) >= HEADER_AREA_BYTES else None
    except HeaderError:
        return None


def _tell_sample(story: Story, disk: Disk, header: Header | HeaderError) -> Sample | None:
    start = HEADER_AREA_BYTES if isinstance(header, HeaderError) else _data_offset(header)
    if start is None or start >= disk.size:
        story.unseen.append("the data area: the header does not say where it is")
        return None
    sample = take_sample(disk.read, start, disk.size)
    story.sections.append(
        Section(
            "sample",
            "Sample of the data area",
            {
                "from byte": start,
                "blocks of 4096 bytes": sample.blocks,
                "never written (zero)": sample.zero,
                "like random bytes": sample.random,
                "readable": len(sample.structured),
                "known formats": list(sample.signatures),
                "mean entropy, bits a byte": f"{sample.entropy:.3f}",
            },
        )
    )
    if sample.is_readable:
        what = f" ({', '.join(sample.signatures)})" if sample.signatures else ""
        where = f", the first at byte {sample.structured[0]}" if sample.structured else ""
        story.alarms.append(f"the data area can be read without a key{what}{where}")
    elif not sample.random:
        story.remarks.append("no sampled block was ever written, so the sample says nothing")
    return sample


def _data_offset(header: Header) -> int | None:
    offset = header.metadata["segments"].get("0", {}).get("offset")
    return int(offset) // 4096 * 4096 if isinstance(offset, str) and offset.isdecimal() else None


# --- reading ----------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path) -> Iterator[Disk]:
    # Not to wait for the other end, if it should be a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            raise OSError(None, "neither a file nor a block device")
        size = os.lseek(descriptor, 0, os.SEEK_END)
        yield Disk(descriptor, size, _read(descriptor, 0, min(size, _HEAD_BYTES)))
    finally:
        os.close(descriptor)


def _read(descriptor: int, offset: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.pread(descriptor, min(length, _CHUNK_BYTES), offset)
        if not part:
            raise OSError(None, f"it ends at byte {offset}, before its end")
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return b"".join(parts)
