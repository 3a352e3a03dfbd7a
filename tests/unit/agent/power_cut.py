"""A disk that loses its power between any two writes, and what cryptsetup says of what is left."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.disk_format import HEADER_AREA_BYTES

SECTOR_BYTES = 512


class PowerCutError(Exception):
    """The machine stopped here."""


class PowerCutDisk:
    """In memory; holds a header area, and zeros behind it, which nothing may write.

    A write reaches the medium at ``flush``. When the power is cut, each 512-byte sector of each write since
    then has reached it or not, independently, in the order of the writes.
    """

    def __init__(self, size: int, area: bytes = bytes(HEADER_AREA_BYTES)) -> None:
        self.size = size
        self.medium = bytearray(area)
        self._pending: list[tuple[int, bytes]] = []
        self.writes: list[tuple[int, bytes]] = []
        self.steps = 0
        self.cut_at: int | None = None

    def read(self, offset: int, length: int) -> bytes:
        assert offset % 4096 == 0
        assert length % 4096 == 0
        assert offset + length <= self.size
        if offset >= HEADER_AREA_BYTES:
            return bytes(length)
        current = bytearray(self.medium)
        for start, data in self._pending:
            current[start : start + len(data)] = data
        return bytes(current[offset : offset + length]).ljust(length, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        assert offset % 4096 == 0
        assert len(data) % 4096 == 0
        assert offset + len(data) <= HEADER_AREA_BYTES, "a write outside the header area"
        self._pending.append((offset, data))
        self.writes.append((offset, data))
        self._step()

    def flush(self) -> None:
        self._step()
        for offset, data in self._pending:
            self.medium[offset : offset + len(data)] = data
        self._pending.clear()

    def power_returns(self, seed: int, share: float) -> PowerCutDisk:
        """The disk after the cut: each unflushed sector made it with probability ``share``."""
        chance = random.Random(seed)
        for offset, data in self._pending:
            for start in range(0, len(data), SECTOR_BYTES):
                if chance.random() < share:
                    self.medium[offset + start : offset + start + SECTOR_BYTES] = data[
                        start : start + SECTOR_BYTES
                    ]
        return PowerCutDisk(self.size, bytes(self.medium))

    def _step(self) -> None:
        if self.steps == self.cut_at:
            raise PowerCutError
        self.steps += 1


def areas_between_block_writes(before: bytes, writes: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    """What stands on the medium after each single 4 KiB block of ``writes``, made in this order."""
    area = bytearray(before)
    yield before
    for offset, data in writes:
        for start in range(0, len(data), 4096):
            place = slice(offset + start, offset + start + 4096)
            block = data[start : start + 4096]
            if area[place] != block:
                area[place] = block
                yield bytes(area)


def key_opens(area: bytes, key: bytes, folder: Path) -> bool:
    """Whether real cryptsetup, on a copy of the header area as it stands, accepts the key."""
    copy = folder / "copy.img"
    with copy.open("wb") as file:
        file.write(area)
        # cryptsetup wants room for data: that of a volume of another tool begins at 16 MiB.
        file.truncate(8 * HEADER_AREA_BYTES)
    done = subprocess.run(
        ["cryptsetup", "open", "--test-passphrase", "--key-file", "-", str(copy)],
        input=key,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0
