"""On-disk format 1: where things stand in the first 4 MiB, and the record that authenticates the header.

::

    0          LUKS2 header image in place: two copies of 16 KiB metadata, then 1 MiB of keyslots
    2 MiB      redo image: where a new header image is written before it replaces the one in place
    4 MiB-8K   record slot 0 (4 KiB; the record fits its first 512 bytes, so a disk writes it whole or not)
    4 MiB-4K   record slot 1
    4 MiB      encrypted data

A LUKS2 header carries checksums, not authentication, and a host can write a header of its own. So a record
holds an HMAC-SHA256 over its fields and one header image, keyed from the released volume key, which the
host lacks. The full description, with the argument for each step of a change, is in
``docs/disk-format.md``. The cloud disk's id is not bound: a clone carries the record with it.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from agent.block_device import BLOCK_BYTES
from agent.hkdf import hkdf_sha256

HEADER_AREA_BYTES = 4 * 1024 * 1024
METADATA_BYTES = 16 * 1024
KEYSLOTS_BYTES = 1024 * 1024
IMAGE_BYTES = 2 * METADATA_BYTES + KEYSLOTS_BYTES
REDO_OFFSET = 2 * 1024 * 1024
SLOT_BYTES = BLOCK_BYTES
SLOT_OFFSETS = (HEADER_AREA_BYTES - 2 * SLOT_BYTES, HEADER_AREA_BYTES - SLOT_BYTES)
ENCRYPTION_SECTOR_BYTES = 4096
VOLUME_KEY_BYTES = 64
#: The header area and an ext4 worth having.
MINIMUM_DEVICE_BYTES = 32 * 1024 * 1024

_MAGIC = b"CCSIREC\0"
_FORMAT = 1
_FIELDS = struct.Struct(">8sIQ16s40sQIQ")
_MAC_BYTES = 32
_RECORD_BYTES = _FIELDS.size + _MAC_BYTES
_KEY_INFO = b"confidential-csi disk format 1 record"


class State(StrEnum):
    """How far the disk is. The words are what stands on the disk."""

    #: A blank disk was taken over; the redo area may be half-written. Authenticates an empty image.
    CLAIMED = "claimed"
    #: The header is whole; there is no filesystem yet, and nothing worth keeping behind the header.
    INITIALISING = "initialising"
    #: There is a filesystem: nothing ever formats this disk again.
    READY = "ready"


class RecordKey:
    """The HMAC key of the records of one volume. Derived, held in memory only, never shown by ``repr``."""

    __slots__ = ("_begun", "_image", "_key")

    def __init__(self, released_key: bytes) -> None:
        self._key = hkdf_sha256(released_key, info=_KEY_INFO)
        self._image = b""
        self._begun = hmac.new(self._key, digestmod="sha256")

    def mac(self, fields: bytes, image: bytes) -> bytes:
        """HMAC-SHA256 over the header ``image`` and the record's fixed-length ``fields``.

        The image comes first, so that it is hashed once for both records: a mount waits for it.
        """
        if image is not self._image:
            self._image, self._begun = image, hmac.new(self._key, image, "sha256")
        code = self._begun.copy()
        code.update(fields)
        return code.digest()


@dataclass(frozen=True)
class Record:
    """What the disk should be. Sizes and offsets are bytes."""

    sequence: int
    state: State
    luks_uuid: str
    data_offset: int
    sector_size: int
    #: The device was at least this large once, so a smaller one is not the whole volume.
    minimum_size: int

    @classmethod
    def claim(cls) -> Self:
        """The first record of a disk: it says only that the redo area is ours to write."""
        return cls(1, State.CLAIMED, "", 0, 0, 0)

    def seal(self, key: RecordKey, image: bytes) -> bytes:
        """The 4 KiB slot that holds this record and authenticates ``image``."""
        fields = self._fields()
        return (fields + key.mac(fields, image)).ljust(SLOT_BYTES, b"\0")

    def _fields(self) -> bytes:
        return _FIELDS.pack(
            _MAGIC,
            _FORMAT,
            self.sequence,
            self.state.encode("ascii"),
            self.luks_uuid.encode("ascii"),
            self.data_offset,
            self.sector_size,
            self.minimum_size,
        )


@dataclass(frozen=True)
class SealedRecord:
    """A record as found on a disk: worth nothing until ``fits`` has returned True."""

    record: Record
    fields: bytes
    mac: bytes

    def fits(self, key: RecordKey, image: bytes) -> bool:
        """Whether the holder of the volume key wrote this record for ``image``."""
        return hmac.compare_digest(self.mac, key.mac(self.fields, image))


def parse_slot(slot: bytes) -> SealedRecord | None:
    """The record in a slot of ``SLOT_BYTES``; None when there is none of this format in it."""
    fields = slot[: _FIELDS.size]
    magic, version, sequence, state, luks_uuid, data_offset, sector_size, minimum = _FIELDS.unpack(fields)
    if magic != _MAGIC or version != _FORMAT:
        return None
    try:
        record = Record(
            sequence,
            State(state.rstrip(b"\0").decode("ascii")),
            luks_uuid.rstrip(b"\0").decode("ascii"),
            data_offset,
            sector_size,
            minimum,
        )
    except ValueError:
        return None
    return SealedRecord(record, fields, slot[_FIELDS.size : _RECORD_BYTES])


def slot_of(area: bytes, slot: int) -> bytes:
    """Slot 0 or 1 of a header area."""
    return area[SLOT_OFFSETS[slot] : SLOT_OFFSETS[slot] + SLOT_BYTES]


def image_in_place(area: bytes) -> bytes:
    """The header image that cryptsetup would use."""
    return area[:IMAGE_BYTES]


def image_in_redo(area: bytes) -> bytes:
    """The header image that was to replace the one in place."""
    return area[REDO_OFFSET : REDO_OFFSET + IMAGE_BYTES]
