"""What a real guest wrote to its disk, block by block, and the disk as any power cut would have left it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.disk_format import HEADER_AREA_BYTES, RecordKey, State
from agent.errors import Refused
from agent.header_guard import GenuineHeader, Unformatted, decide
from tests.hostile.nbd import Write

BLOCK_BYTES = 4096
LONG = 20


@dataclass(frozen=True)
class Cut:
    """The power goes after this many blocks were written.

    ``area`` is the header area then, ``header_changed`` whether the last of the blocks was in it.
    """

    blocks: int
    area: bytes
    header_changed: bool


class Recording:
    """A disk before a run, and the blocks of the run, in the order in which the disk got them.

    The agent flushes between steps and the disk acknowledged one write at a time, so every order that a
    disk may choose between two flushes aside (``tests/unit/agent/test_header_change_power_cut.py`` tries
    those), these are the states that a cut can leave.
    """

    def __init__(self, before: Path, log: Sequence[Write]) -> None:
        self._before = before
        self.size = before.stat().st_size
        self.blocks = [
            Write(write.offset + start, write.data[start : start + BLOCK_BYTES])
            for write in log
            for start in range(0, len(write.data), BLOCK_BYTES)
        ]

    def cuts(self) -> Iterator[Cut]:
        """All of them, from before the first block to after the last one."""
        with self._before.open("rb") as file:
            area = bytearray(file.read(HEADER_AREA_BYTES))
        shown = bytes(area)
        yield Cut(0, shown, header_changed=True)
        for number, block in enumerate(self.blocks, 1):
            in_header = block.offset < HEADER_AREA_BYTES
            if in_header:
                area[block.offset : block.offset + len(block.data)] = block.data
                shown = bytes(area)
            yield Cut(number, shown, header_changed=in_header)

    def disk_after(self, count: int, image: Path) -> Path:
        """Make ``image`` the disk after so many blocks."""
        shutil.copyfile(self._before, image)
        with image.open("r+b") as file:
            for block in self.blocks[:count]:
                file.seek(block.offset)
                file.write(block.data)
        return image


def phase(area: bytes, size: int, key: bytes) -> tuple[str, GenuineHeader | None]:
    """How far the header is, as the agent decides with ``key``; and the header."""
    try:
        found = decide(area, RecordKey(key), size)
    except Refused:
        return "refused", None
    if isinstance(found, Unformatted):
        return ("claimed" if found.claimed else "blank"), None
    return _phase(found, size), found


def one_after_the_other(phases: Sequence[str]) -> list[str]:
    """The phases in their order.

    Raises:
        AssertionError: one of them came back.
    """
    order = list(dict.fromkeys(phases))
    assert list(phases) == sorted(phases, key=order.index)
    return order


def _phase(found: GenuineHeader, size: int) -> str:
    state = "formatting" if found.record.state is not State.READY else "ready"
    place = "in place" if found.in_place else "in redo"
    backed = "" if found.backed or state == "formatting" else ", one record"
    grown = ", grown" if found.record.minimum_size == size else ""
    return f"{state}, {place}{backed}{grown}"


def samples(phases: Sequence[str], parts: int = 2) -> list[int]:
    """Numbers of cuts out of a list with the phase of each: where a phase begins, within a long one, the end.

    ``parts``: a phase of more than ``LONG`` cuts is cut into so many.
    """
    chosen: set[int] = {len(phases) - 1}
    for name in dict.fromkeys(phases):
        numbers = [number for number, one in enumerate(phases) if one == name]
        chosen |= {
            numbers[len(numbers) * part // parts] for part in range(parts if len(numbers) > LONG else 1)
        }
    # Before the first block there was no cut.
    return sorted(chosen - {0})
