"""LUKS2 headers made and forged by hand, with good checksums: what a hostile disk owner can write.

Independent of the agent's own parser, so that the two can't be wrong together.
"""

import base64
import copy
import hashlib
import json
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Metadata = dict[str, Any]

BINARY_BYTES = 4096
METADATA_BYTES = 16 * 1024
KEYSLOT_AREA_BYTES = 252 * 1024
DATA_OFFSET = 4 * 1024 * 1024
UUID = "6f1c7c0e-3f0a-4d5e-9a57-0c8a5a0d9b11"
MAGICS = {False: b"LUKS\xba\xbe", True: b"SKUL\xba\xbe"}

SIZE_FIELD = 8
SEQUENCE_FIELD = 16
LABEL_FIELD = 24
CHECKSUM_ALGORITHM_FIELD = 72
SALT_FIELD = 104
UUID_FIELD = 168
SUBSYSTEM_FIELD = 208
OFFSET_FIELD = 256
CHECKSUM_FIELD = 448


def fixed_bytes(name: str, length: int) -> bytes:
    """The same bytes for the same name, for salts that tests can rely on."""
    return hashlib.shake_256(name.encode()).digest(length)


def encoded(name: str, length: int = 32) -> str:
    return base64.b64encode(fixed_bytes(name, length)).decode()


def keyslot(number: int = 0, **changes: Any) -> Metadata:
    """A keyslot of on-disk format 1, its area the ``number``-th in the keyslots area."""
    return {
        "type": "luks2",
        "key_size": 64,
        "af": {"type": "luks1", "stripes": 4000, "hash": "sha256"},
        "area": {
            "type": "raw",
            "offset": str(2 * METADATA_BYTES + number * KEYSLOT_AREA_BYTES),
            "size": str(KEYSLOT_AREA_BYTES),
            "encryption": "aes-xts-plain64",
            "key_size": 64,
        },
        "kdf": {"type": "pbkdf2", "hash": "sha256", "iterations": 1000, "salt": encoded(f"kdf {number}")},
        **changes,
    }


def metadata(keyslots: int = 1) -> Metadata:
    """Metadata as cryptsetup writes it for on-disk format 1 (the key material is missing)."""
    return {
        "keyslots": {str(number): keyslot(number) for number in range(keyslots)},
        "tokens": {},
        "segments": {
            "0": {
                "type": "crypt",
                "offset": str(DATA_OFFSET),
                "size": "dynamic",
                "iv_tweak": "0",
                "encryption": "aes-xts-plain64",
                "sector_size": 4096,
            }
        },
        "digests": {
            "0": {
                "type": "pbkdf2",
                "keyslots": [str(number) for number in range(keyslots)],
                "segments": ["0"],
                "hash": "sha256",
                "iterations": 1000,
                "salt": encoded("digest salt"),
                "digest": encoded("digest"),
            }
        },
        "config": {"json_size": str(METADATA_BYTES - BINARY_BYTES), "keyslots_size": str(1024 * 1024)},
    }


def json_text(document: object) -> bytes:
    """JSON as cryptsetup writes it: no blanks."""
    return json.dumps(document, separators=(",", ":")).encode("utf-8", "surrogatepass")


def build_copy(
    document: Metadata | bytes,
    *,
    secondary: bool = False,
    size: int = METADATA_BYTES,
    sequence: int = 3,
    label: bytes = b"",
    subsystem: bytes = b"",
    uuid: bytes = UUID.encode(),
    checksum: str = "sha256",
) -> bytes:
    """One copy with a good checksum. ``document`` may be any bytes that fit the JSON area."""
    text = document if isinstance(document, bytes) else json_text(document)
    header = struct.pack(
        ">6sHQQ48s32s64s40s48sQ",
        MAGICS[secondary],
        2,
        size,
        sequence,
        label,
        checksum.encode(),
        fixed_bytes("secondary" if secondary else "primary", 64),
        uuid,
        subsystem,
        size if secondary else 0,
    )
    whole = bytearray(header.ljust(BINARY_BYTES, b"\0") + text.ljust(size - BINARY_BYTES, b"\0"))
    if len(whole) != size:
        raise ValueError(f"{len(text)} bytes of JSON do not fit a metadata size of {size}")
    reseal(whole, 0, size, checksum)
    return bytes(whole)


def build_area(document: Metadata | bytes | None = None, **fields: Any) -> bytes:
    """Both copies, one after the other: the first bytes of a device."""
    document = metadata() if document is None else document
    return build_copy(document, **fields) + build_copy(document, secondary=True, **fields)


def reseal(area: bytearray, offset: int = 0, size: int = METADATA_BYTES, checksum: str = "sha256") -> None:
    """Recompute the checksum of the copy at ``offset``, as an attacker would."""
    field = slice(offset + CHECKSUM_FIELD, offset + CHECKSUM_FIELD + 64)
    area[field] = bytes(64)
    area[field] = hashlib.new(checksum, area[offset : offset + size]).digest().ljust(64, b"\0")


def copy_size(area: bytes) -> int:
    """The metadata size that the primary binary header gives, in bytes."""
    size: int = struct.unpack_from(">Q", area, SIZE_FIELD)[0]
    return size


def read_metadata(area: bytes, offset: int = 0) -> Metadata:
    """The JSON of the copy at ``offset``."""
    text = area[offset + BINARY_BYTES : offset + copy_size(area)].split(b"\0", 1)[0]
    document: Metadata = json.loads(text)
    return document


def with_json(area: bytes, document: Metadata | bytes, copies: Iterable[int] = (0, 1)) -> bytes:
    """``area`` with the JSON of the given copies (0: primary, 1: secondary) replaced and resealed."""
    size = copy_size(area)
    text = document if isinstance(document, bytes) else json_text(document)
    if len(text) > size - BINARY_BYTES:
        raise ValueError(f"{len(text)} bytes of JSON do not fit a metadata size of {size}")
    changed = bytearray(area)
    for number in copies:
        start = number * size
        changed[start + BINARY_BYTES : start + size] = text.ljust(size - BINARY_BYTES, b"\0")
        reseal(changed, start, size)
    return bytes(changed)


def with_field(area: bytes, field: int, value: bytes, copies: Iterable[int] = (0, 1)) -> bytes:
    """``area`` with bytes of the binary header replaced at offset ``field``, and resealed."""
    size = copy_size(area)
    changed = bytearray(area)
    for number in copies:
        start = number * size
        changed[start + field : start + field + len(value)] = value
        reseal(changed, start, size)
    return bytes(changed)


def forge(area: bytes, edit: Callable[[Metadata], object], copies: Iterable[int] = (0, 1)) -> bytes:
    """``area`` with its metadata edited in place by ``edit``, checksums recomputed."""
    document = copy.deepcopy(read_metadata(area))
    edit(document)
    return with_json(area, document, copies)


def forge_file(path: Path, edit: Callable[[Metadata], object]) -> None:
    """Forge the header of a disk image (or device) in place."""
    with path.open("r+b") as disk:
        size = copy_size(disk.read(16))
        disk.seek(0)
        area = disk.read(2 * size)
        disk.seek(0)
        disk.write(forge(area, edit))


def null_segment(document: Metadata) -> None:
    """CVE-2025-58356: the data is not encrypted; the genuine key still opens the volume."""
    document["segments"]["0"]["encryption"] = "cipher_null-ecb"


def null_keyslots(document: Metadata) -> None:
    """The keyslots are not encrypted: the volume key lies open, and any key opens them."""
    for slot in document["keyslots"].values():
        slot["area"]["encryption"] = "cipher_null-ecb"


def af_split(key: bytes, stripes: int = 4000, filler: bytes = b"filler") -> bytes:
    """The LUKS anti-forensic splitter with sha256: ``stripes`` blocks from which ``key`` can be merged."""
    length = len(key)
    blocks = hashlib.shake_256(filler).digest(length * (stripes - 1))
    state = bytes(length)
    for start in range(0, len(blocks), length):
        state = _diffuse(_xor(state, blocks[start : start + length]))
    return blocks + _xor(state, key)


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left) ^ int.from_bytes(right)).to_bytes(len(left))


def _diffuse(block: bytes) -> bytes:
    pieces = (block[start : start + 32] for start in range(0, len(block), 32))
    return b"".join(
        hashlib.sha256(number.to_bytes(4) + piece).digest()[: len(piece)]
        for number, piece in enumerate(pieces)
    )


def known_key_image(volume_key: bytes, area: bytes | None = None) -> bytes:
    """Metadata and keyslots area of a header whose volume key the attacker chose, and any key opens.

    The keyslot is not encrypted, so the genuine key "opens" it too. With ``area``, UUID, label and
    offsets are those of that header; its first keyslot is replaced. ``volume_key`` has 64 bytes.
    """
    document = read_metadata(area) if area else metadata()
    slot = keyslot(0)
    slot["area"]["encryption"] = "cipher_null-ecb"
    document["keyslots"] = {"0": slot}
    digest = document["digests"]["0"]
    digest["keyslots"] = ["0"]
    salt = base64.b64decode(digest["salt"])
    digest["digest"] = base64.b64encode(
        hashlib.pbkdf2_hmac(digest["hash"], volume_key, salt, digest["iterations"])
    ).decode()
    forged = with_json(area or build_area(), document)[: 2 * METADATA_BYTES]
    keyslots = af_split(volume_key).ljust(int(document["config"]["keyslots_size"]), b"\0")
    return forged + keyslots
