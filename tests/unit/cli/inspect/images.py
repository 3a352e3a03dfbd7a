"""Disk images as guests leave them, and as hostile or unlucky hosts do."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from pathlib import Path

from agent.disk_format import (
    HEADER_AREA_BYTES,
    IMAGE_BYTES,
    REDO_OFFSET,
    SLOT_OFFSETS,
    Record,
    RecordKey,
    State,
)
from tests.fakes import luks_headers as forged

MIB = 2**20
SIZE = 40 * MIB
KEY = RecordKey(b"a released key of 32 random bytes")
READY = Record(3, State.READY, forged.UUID, forged.DATA_OFFSET, 4096, SIZE)


def header_image(area: bytes | None = None) -> bytes:
    """Both copies and a keyslots area of random bytes."""
    area = area or forged.build_area()
    return area + random.Random("keyslots").randbytes(IMAGE_BYTES - len(area))


def write_image(
    path: Path,
    *,
    image: bytes | None = None,
    records: dict[int, Record] | None = None,
    redo: bytes = b"",
    data: bytes | None = None,
    size: int = SIZE,
) -> Path:
    """A volume of on-disk format 1; without further ado a healthy one with 4 MiB of data."""
    image = header_image() if image is None else image
    records = {0: READY, 1: replace(READY, sequence=4)} if records is None else records
    area = bytearray(HEADER_AREA_BYTES)
    area[: len(image)] = image
    area[REDO_OFFSET : REDO_OFFSET + len(redo)] = redo
    for slot, record in records.items():
        sealed = record.seal(KEY, image)
        area[SLOT_OFFSETS[slot] : SLOT_OFFSETS[slot] + len(sealed)] = sealed
    with path.open("wb") as file:
        file.write(area)
        file.write(random.Random("data").randbytes(4 * MIB) if data is None else data)
        file.truncate(size)
    return path


def digest(path: Path) -> str:
    """Of all its bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
