"""The LUKS2 header: both copies, their checksums, and which of them cryptsetup would use.

On-disk format as in cryptsetup's "LUKS2 On-Disk Format Specification" 1.1. Nothing here writes, and nothing
here trusts: a header that parses is well-formed, not genuine. :mod:`agent.luks2_profile` decides what it may
say, and the record of on-disk format 1 whether its author held the key.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from agent.luks2_metadata import (
    BINARY_HEADER_BYTES,
    METADATA_SIZES,
    HeaderError,
    decode,
    keyslots_area_bytes,
    show,
    validate,
)

__all__ = [
    "BINARY_HEADER_BYTES",
    "CHECKSUM_FIELD_BYTES",
    "CHECKSUM_OFFSET",
    "PRIMARY_MAGIC",
    "SECONDARY_MAGIC",
    "SECONDARY_OFFSETS",
    "BinaryHeader",
    "Header",
    "HeaderError",
    "HeaderPair",
    "newest_valid",
    "parse_copy",
    "parse_pair",
]

PRIMARY_MAGIC: Final = b"LUKS\xba\xbe"
SECONDARY_MAGIC: Final = b"SKUL\xba\xbe"
SECONDARY_OFFSETS: Final = METADATA_SIZES
"""Where the second copy can be: it follows the first, whose size is one of these."""

CHECKSUM_OFFSET: Final = 448
CHECKSUM_FIELD_BYTES: Final = 64
_CHECKSUM_HASHES = frozenset({"sha1", "sha224", "sha256", "sha384", "sha512"})

# magic, version, header size, sequence, label, checksum algorithm, salt, UUID, subsystem, header offset
_FIELDS = struct.Struct(">6sHQQ48s32s64s40s48sQ")


@dataclass(frozen=True, slots=True)
class BinaryHeader:
    """The fixed fields of one copy, big-endian on disk.

    ``offset`` is where the copy was read, ``header_offset`` where it says it is (equal in a valid header);
    ``header_size_bytes`` counts the 4096 bytes of binary header and the JSON area. Strings end at their
    first NUL byte; bytes that are not UTF-8 show as U+FFFD.
    """

    offset: int
    version: int
    header_size_bytes: int
    sequence: int
    label: str
    checksum_algorithm: str
    salt: bytes
    uuid: str
    subsystem: str
    header_offset: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """One valid copy: well-formed, with a matching checksum, and accepted by cryptsetup's own rules.

    ``metadata`` is the decoded JSON. ``duplicate_members`` are the names written twice in one object of it
    (the last one is in ``metadata``). ``raw`` holds the bytes of the copy, JSON area included.
    """

    binary: BinaryHeader
    metadata: Mapping[str, Any]
    duplicate_members: tuple[str, ...]
    raw: bytes

    @property
    def image_bytes(self) -> int:
        """Length of both metadata copies and the keyslots area behind them."""
        return 2 * self.binary.header_size_bytes + keyslots_area_bytes(self.metadata)


@dataclass(frozen=True, slots=True)
class HeaderPair:
    """What stands in the place of each copy: a header, or why there is none."""

    primary: Header | HeaderError
    secondary: Header | HeaderError


def parse_copy(area: bytes, offset: int) -> Header:
    """Parse the copy at ``offset`` of ``area`` (0: primary, else secondary). Raises HeaderError.

    ``area`` holds the device from its first byte on; it must reach to the end of the copy.
    """
    binary = _checked_binary(area, offset)
    return _checked_metadata(area, binary)


def parse_pair(area: bytes) -> HeaderPair:
    """Parse both copies, never failing as a whole.

    The secondary copy is the one right behind the primary if that has a good checksum (even when its JSON
    is not accepted); else the first of the known offsets with a good checksum, as cryptsetup searches.
    """
    try:
        first = _checked_binary(area, 0)
    except HeaderError as error:
        return HeaderPair(primary=error, secondary=_search_secondary(area))
    primary = _parsed(area, first)
    return HeaderPair(primary, secondary=_copy_or_error(area, first.header_size_bytes, primary))


def newest_valid(area: bytes, device_bytes: int | None = None) -> Header:
    """The copy cryptsetup would use: the valid one, or of two the one with the higher sequence number.

    With ``device_bytes``, a header whose metadata and keyslots do not fit the device is refused, as
    cryptsetup does. Raises HeaderError if neither copy is valid.
    """
    version = int.from_bytes(area[6:8], "big")
    if area.startswith(PRIMARY_MAGIC) and version not in (0, 2):
        # cryptsetup chooses the format by this field alone, before it looks for a second copy.
        raise HeaderError(f"LUKS version {version}, not 2")
    pair = parse_pair(area)
    first, second = pair.primary, pair.secondary
    if isinstance(first, HeaderError) and isinstance(second, HeaderError):
        raise HeaderError(f"no valid LUKS2 header: primary: {first.reason}; secondary: {second.reason}")
    if isinstance(first, HeaderError):
        chosen = second
    elif isinstance(second, HeaderError) or first.binary.sequence >= second.binary.sequence:
        chosen = first
    else:
        chosen = second
    if isinstance(chosen, HeaderError):
        raise chosen
    if device_bytes is not None and chosen.image_bytes > device_bytes:
        raise HeaderError(f"the header takes {chosen.image_bytes} bytes, the device has {device_bytes}")
    return chosen


def _search_secondary(area: bytes) -> Header | HeaderError:
    reason = HeaderError("no secondary copy at any known offset")
    for offset in SECONDARY_OFFSETS:
        try:
            binary = _checked_binary(area, offset)
        except HeaderError as error:
            # The most telling reason: one from a place that has the magic.
            if area[offset : offset + 6] == SECONDARY_MAGIC:
                reason = error
            continue
        return _parsed(area, binary)
    return reason


def _copy_or_error(area: bytes, offset: int, other: Header | HeaderError) -> Header | HeaderError:
    try:
        binary = _checked_binary(area, offset)
    except HeaderError as error:
        return error
    raw = _raw(area, binary)
    if isinstance(other, Header) and raw[BINARY_HEADER_BYTES:] == other.raw[BINARY_HEADER_BYTES:]:
        # The same JSON area, as in every header at rest: what was found in it holds for both.
        return replace(other, binary=binary, raw=raw)
    return _parsed(area, binary)


def _parsed(area: bytes, binary: BinaryHeader) -> Header | HeaderError:
    try:
        return _checked_metadata(area, binary)
    except HeaderError as error:
        return error


def _checked_binary(area: bytes, offset: int) -> BinaryHeader:
    """Fields and checksum of the copy at ``offset``."""
    if offset < 0 or len(area) < offset + BINARY_HEADER_BYTES:
        raise HeaderError(f"{len(area)} bytes hold no header copy at offset {offset}")
    magic, version, size, sequence, label, algorithm, salt, uuid, subsystem, header_offset = (
        _FIELDS.unpack_from(area, offset)
    )
    if magic != (SECONDARY_MAGIC if offset else PRIMARY_MAGIC):
        raise HeaderError(f"no LUKS2 magic at offset {offset}")
    if version != 2:
        raise HeaderError(f"LUKS version {version}, not 2")
    if header_offset != offset:
        raise HeaderError(f"the copy at offset {offset} says it is at {header_offset}")
    if not METADATA_SIZES[0] <= size <= METADATA_SIZES[-1]:
        raise HeaderError(f"{size} is not a LUKS2 metadata size")
    if offset and size != offset:
        raise HeaderError(f"the secondary copy at {offset} says it is {size} bytes long")
    if len(area) < offset + size:
        raise HeaderError(f"the copy at {offset} is {size} bytes long and reaches beyond what was read")
    checksum_algorithm = _string(algorithm)
    if checksum_algorithm not in _CHECKSUM_HASHES:
        raise HeaderError(f"unknown checksum algorithm {show(checksum_algorithm)}")
    checksum = area[offset + CHECKSUM_OFFSET : offset + CHECKSUM_OFFSET + CHECKSUM_FIELD_BYTES]
    digest = hashlib.new(checksum_algorithm, usedforsecurity=False)
    view = memoryview(area)
    digest.update(view[offset : offset + CHECKSUM_OFFSET])
    digest.update(bytes(CHECKSUM_FIELD_BYTES))
    digest.update(view[offset + CHECKSUM_OFFSET + CHECKSUM_FIELD_BYTES : offset + size])
    # cryptsetup compares only as many bytes as the hash has; the rest of the field is not covered.
    if digest.digest() != checksum[: digest.digest_size]:
        raise HeaderError(f"the checksum of the copy at offset {offset} does not match")
    return BinaryHeader(
        offset=offset,
        version=version,
        header_size_bytes=size,
        sequence=sequence,
        label=_string(label),
        checksum_algorithm=checksum_algorithm,
        salt=salt,
        uuid=_string(uuid),
        subsystem=_string(subsystem),
        header_offset=header_offset,
        checksum=checksum,
    )


def _checked_metadata(area: bytes, binary: BinaryHeader) -> Header:
    raw = _raw(area, binary)
    metadata, duplicates = decode(raw[BINARY_HEADER_BYTES:])
    validate(metadata, len(raw) - BINARY_HEADER_BYTES)
    return Header(binary=binary, metadata=metadata, duplicate_members=duplicates, raw=raw)


def _raw(area: bytes, binary: BinaryHeader) -> bytes:
    return area[binary.offset : binary.offset + binary.header_size_bytes]


def _string(field: bytes) -> str:
    # cryptsetup puts a NUL into the last byte of each string before using it.
    return field[:-1].split(b"\0", 1)[0].decode("utf-8", "replace")
