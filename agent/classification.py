"""What is on a disk, judged by its first bytes: LUKS2, something else, or nothing that shows.

Only a disk that is blank all over may be initialized, so every doubt counts as data: a damaged LUKS header,
a signature anybody might know, a single bit that is not zero. ``BLANK`` here means "as far as the bytes
go"; the caller reads the rest of the evidence, :func:`signature_extents` among it, more than once.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agent.luks2 import (
    PRIMARY_MAGIC,
    SECONDARY_MAGIC,
    SECONDARY_OFFSETS,
    HeaderError,
    newest_valid,
    parse_pair,
)

AREA_BYTES: Final = 4 * 1024 * 1024
"""How many bytes from the start of the device :func:`classify` wants (or the whole of a smaller device)."""

EXT_FILE_SYSTEM: Final = "an ext2, ext3 or ext4 file system"
"""How the details of a classification begin for one."""

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_GIB: Final = 1024 * 1024 * 1024


class Kind(enum.Enum):
    """What a disk holds."""

    VALID_LUKS2 = "valid LUKS2"
    """Both header copies are valid (which is not to say equal, allowed or genuine)."""
    DAMAGED_LUKS = "damaged LUKS"
    """A LUKS magic is there, and at least one of the header copies is not valid."""
    OTHER_DATA = "other data"
    BLANK = "blank"
    """Every byte that was read is zero."""
    UNREADABLE = "unreadable"
    """Fewer bytes could be read than the device has."""


@dataclass(frozen=True, slots=True)
class Classification:
    """A kind, and in ``detail`` what made it so, fit for an error message."""

    kind: Kind
    detail: str


def classify(area: bytes, device_size: int) -> Classification:
    """Classify a device of ``device_size`` bytes by its first 4 MiB (all of it, if it is smaller)."""
    if not area or len(area) < min(device_size, AREA_BYTES):
        return Classification(Kind.UNREADABLE, f"only {len(area)} of {device_size} bytes could be read")
    if area.startswith(PRIMARY_MAGIC + b"\x00\x01"):
        return Classification(Kind.OTHER_DATA, "a LUKS1 header")
    magics = [offset for offset in SECONDARY_OFFSETS if area.startswith(SECONDARY_MAGIC, offset)]
    if area.startswith(PRIMARY_MAGIC):
        magics.insert(0, 0)
    if magics:
        return _classify_luks(area, device_size, magics)
    for signature in SIGNATURES:
        for offset in signature.offsets:
            if area.startswith(signature.magic, offset):
                return Classification(Kind.OTHER_DATA, f"{signature.name} (signature at byte {offset})")
    if area.count(0) != len(area):
        first = len(area) - len(area.lstrip(b"\0"))
        return Classification(Kind.OTHER_DATA, f"unknown data from byte {first} on")
    return Classification(Kind.BLANK, f"the first {len(area)} bytes are zero")


def _classify_luks(area: bytes, device_size: int, magics: list[int]) -> Classification:
    where = ", ".join(hex(offset) for offset in magics)
    pair = parse_pair(area)
    for name, copy in (("primary", pair.primary), ("secondary", pair.secondary)):
        if isinstance(copy, HeaderError):
            return Classification(
                Kind.DAMAGED_LUKS, f"LUKS magic at {where}, but the {name} header is not valid: {copy.reason}"
            )
    try:
        header = newest_valid(area, device_size)
    except HeaderError as error:
        return Classification(Kind.DAMAGED_LUKS, f"LUKS magic at {where}: {error.reason}")
    return Classification(Kind.VALID_LUKS2, f"LUKS2, UUID {header.binary.uuid!a}")


# --- signatures at the start ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Signature:
    """Bytes by which a format shows itself, at fixed byte offsets from the start of the device."""

    name: str
    magic: bytes
    offsets: tuple[int, ...]


SIGNATURES: Final[tuple[Signature, ...]] = (
    Signature("a GPT partition table", b"EFI PART", (512, 4096)),
    Signature("an LVM2 physical volume", b"LABELONE", (0, 512, 1024, 1536)),
    Signature("a Linux RAID member (metadata 1.1 or 1.2)", b"\xfc\x4e\x2b\xa9", (0, 4096)),
    Signature(EXT_FILE_SYSTEM, b"\x53\xef", (0x438,)),
    Signature("an XFS file system", b"XFSB", (0,)),
    Signature("a Btrfs file system", b"_BHRfS_M", (0x10040,)),
    Signature("swap space", b"SWAPSPACE2", tuple(size - 10 for size in (4096, 8192, 16384, 32768, 65536))),
    Signature("swap space", b"SWAP-SPACE", tuple(size - 10 for size in (4096, 8192, 16384, 32768, 65536))),
    Signature(
        "a ZFS pool member",
        b"\x0c\xb1\xba\x00\x00\x00\x00\x00",
        tuple(label + 128 * _KIB + slot * _KIB for label in (0, 256 * _KIB) for slot in range(128)),
    ),
    Signature(
        "a ZFS pool member",
        b"\x00\x00\x00\x00\x00\xba\xb1\x0c",
        tuple(label + 128 * _KIB + slot * _KIB for label in (0, 256 * _KIB) for slot in range(128)),
    ),
    Signature("a bcache device", bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81"), (4096 + 24,)),
    Signature("a bcachefs file system", bytes.fromhex("c68573f666ce90a9d96a60cf803df7ef"), (4096 + 24,)),
    Signature("an NTFS file system", b"NTFS    ", (3,)),
    Signature("an exFAT file system", b"EXFAT   ", (3,)),
    Signature("a BitLocker volume", b"-FVE-FS-", (3,)),
    Signature("a FAT file system", b"FAT12   ", (54,)),
    Signature("a FAT file system", b"FAT16   ", (54,)),
    Signature("a FAT file system", b"FAT32   ", (82,)),
    Signature("an ISO 9660 file system", b"CD001", (0x8001,)),
    Signature("a UDF file system", b"BEA01", (0x8001,)),
    Signature("an F2FS file system", b"\x10\x20\xf5\xf2", (1024,)),
    Signature("an EROFS file system", b"\xe2\xe1\xf5\xe0", (1024,)),
    Signature("an HFS+ file system", b"H+", (1024,)),
    Signature("an APFS container", b"NXSB", (32,)),
    Signature("a SquashFS file system", b"hsqs", (0,)),
    Signature("a JFS file system", b"JFS1", (0x8000,)),
    Signature("a ReiserFS file system", b"ReIsEr", (0x2034, 0x10034)),
    Signature("a NILFS2 file system", b"\x34\x34", (1030,)),
    Signature("a GFS2 file system", b"\x01\x16\x19\x70", (0x10000,)),
    Signature("an OCFS2 file system", b"OCFSV2", (0x400, 0x800, 0x1000, 0x2000, 0x4000)),
    Signature("a dm-verity hash device", b"verity\0\0", (0,)),
    Signature("a dm-integrity device", b"integrt\0", (0,)),
    Signature("a VDO device", b"dmvdo001", (0,)),
    Signature("a Stratis member", b"!Stra0tis\x86\xff\x02^\x41rh", (516, 4612)),
    Signature("a Ceph BlueStore device", b"bluestore block device", (0,)),
    Signature("a QCOW2 image", b"QFI\xfb", (0,)),
    # Last: boot sectors of file systems end with the same two bytes.
    Signature("an MBR partition table or boot sector", b"\x55\xaa", (510,)),
)
"""Known formats, by what libblkid and the kernel look for."""


# --- signatures elsewhere -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SignatureRegion:
    """Where, on a device of a given size, a format keeps something that survives a wiped start.

    ``locate`` maps the device's size in bytes to the byte offset of ``length`` bytes; it may point outside
    the device, where there is nothing to read.
    """

    name: str
    locate: Callable[[int], int]
    length: int = 4096


def _fixed(offset: int) -> Callable[[int], int]:
    return lambda _size: offset


def _before_end(distance: int) -> Callable[[int], int]:
    return lambda size: size - distance


def _raid_0_90(size: int) -> int:
    return size // (64 * _KIB) * (64 * _KIB) - 64 * _KIB


def _raid_1_0(size: int) -> int:
    return (size // 512 - 16) // 8 * 8 * 512


def _zfs_label(number_from_end: int) -> Callable[[int], int]:
    return lambda size: size // (256 * _KIB) * (256 * _KIB) - number_from_end * 256 * _KIB


def _xfs_group(number: int) -> Callable[[int], int]:
    # mkfs.xfs makes four allocation groups of a whole number of 4096-byte blocks unless told otherwise.
    return lambda size: (size // 4096 + 3) // 4 * 4096 * number


SIGNATURE_OFFSETS: Final[tuple[SignatureRegion, ...]] = (
    SignatureRegion("GPT backup header (512-byte sectors)", _before_end(512), 512),
    SignatureRegion("GPT backup header (4096-byte sectors)", _before_end(4096)),
    SignatureRegion("GPT backup table", _before_end(33 * 512), 32 * 512),
    SignatureRegion("Linux RAID superblock 0.90", _raid_0_90),
    SignatureRegion("Linux RAID superblock 1.0", _raid_1_0),
    SignatureRegion("firmware RAID metadata", _before_end(64 * _KIB), 64 * _KIB),
    SignatureRegion("ZFS label 2", _zfs_label(2), 256 * _KIB),
    SignatureRegion("ZFS label 3", _zfs_label(1), 256 * _KIB),
    SignatureRegion("NTFS backup boot sector", _before_end(512), 512),
    SignatureRegion("NILFS2 second superblock", lambda size: (size // 4096 - 1) * 4096),
    SignatureRegion("DRBD metadata", lambda size: size // 4096 * 4096 - 4096),
    SignatureRegion("ext4 backup superblock (1 KiB blocks)", _fixed(8193 * _KIB)),
    SignatureRegion("ext4 backup superblock (2 KiB blocks)", _fixed(32 * _MIB)),
    SignatureRegion("ext4 backup superblock (4 KiB blocks)", _fixed(128 * _MIB)),
    SignatureRegion("ext4 third backup superblock (4 KiB blocks)", _fixed(3 * 128 * _MIB)),
    SignatureRegion("Btrfs second superblock", _fixed(64 * _MIB)),
    SignatureRegion("Btrfs third superblock", _fixed(256 * _GIB)),
    SignatureRegion("XFS allocation group 1", _xfs_group(1)),
    SignatureRegion("XFS allocation group 2", _xfs_group(2)),
    SignatureRegion("XFS allocation group 3", _xfs_group(3)),
    SignatureRegion("LUKS2 secondary header of the largest size", _fixed(SECONDARY_OFFSETS[-1])),
    SignatureRegion("end of a default LUKS2 header, start of its data", _fixed(16 * _MIB)),
)
"""Regions to read besides the start of a device before calling it blank."""


def signature_extents(device_size: int) -> tuple[tuple[int, int, str], ...]:
    """The regions of :data:`SIGNATURE_OFFSETS` on a device of that size, as (offset, length, name).

    Bytes; sorted by offset; cut at the end of the device; regions wholly outside it are left out.
    """
    extents = []
    for region in SIGNATURE_OFFSETS:
        offset = region.locate(device_size)
        start, end = max(offset, 0), min(offset + region.length, device_size)
        if start < end:
            extents.append((start, end - start, region.name))
    return tuple(sorted(extents))
