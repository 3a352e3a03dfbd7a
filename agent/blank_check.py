"""Is this disk really blank? The only question whose wrong answer destroys data.

All zero at one moment is not proof of a new disk: networked disks have been seen to read zeros for seconds
after they appeared, and were formatted over. So the places where any data would show are read several times
over several seconds, past the page cache. The time needed does not depend on the size of the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import SystemRandom

from agent.block_device import BLOCK_BYTES, BlockDevice, all_zero
from agent.classification import signature_extents
from agent.clock import Clock
from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES, REDO_OFFSET, SLOT_BYTES, SLOT_OFFSETS
from agent.errors import Refused

PASSES = 3
DURATION_SECONDS = 6.0
RANDOM_BLOCKS = 64
_EDGE_BYTES = 4 * 1024 * 1024
#: What a claim of ours leaves on a disk that is otherwise blank: (offset, length) in bytes.
CLAIM_REGIONS = ((REDO_OFFSET, IMAGE_BYTES), (SLOT_OFFSETS[0], SLOT_BYTES))


def require_blank(device: BlockDevice, clock: Clock, *, claimed: bool) -> None:
    """Return only when every look at ``device`` shows zeros, for ``DURATION_SECONDS``.

    ``claimed``: leave out ``CLAIM_REGIONS``, where a claim that was authenticated allows bytes.

    Raises:
        Refused: there is data (``not-blank``).
        Unavailable: the device can't be read.
    """
    start = clock.monotonic()
    for number in range(PASSES):
        due = start + DURATION_SECONDS * number / (PASSES - 1)
        clock.sleep(max(0.0, due - clock.monotonic()))
        _look(device, CLAIM_REGIONS if claimed else ())


def _look(device: BlockDevice, exempt: Sequence[tuple[int, int]]) -> None:
    first = bytearray(device.read(0, min(HEADER_AREA_BYTES, device.size)))
    for offset, length in exempt:
        first[offset : offset + length] = bytes(length)
    _require_zero(first, 0)
    last = max(0, device.size - _EDGE_BYTES)
    if last >= HEADER_AREA_BYTES:
        _require_zero(device.read(last, device.size - last), last)
    for offset, length in [*_signature_blocks(device.size), *_random_blocks(device.size)]:
        _require_zero(device.read(offset, length), offset)


def _signature_blocks(size: int) -> list[tuple[int, int]]:
    """Whole blocks beyond the first 4 MiB where a known format keeps a second mark."""
    blocks = []
    for offset, length, _ in signature_extents(size):
        start = max(HEADER_AREA_BYTES, offset // BLOCK_BYTES * BLOCK_BYTES)
        end = -(-(offset + length) // BLOCK_BYTES) * BLOCK_BYTES
        if start < end:
            blocks.append((start, end - start))
    return blocks


def _random_blocks(size: int) -> list[tuple[int, int]]:
    """Blocks beyond the first 4 MiB that nobody can foresee."""
    first, last = HEADER_AREA_BYTES // BLOCK_BYTES, size // BLOCK_BYTES
    if last <= first:
        return []
    random = SystemRandom()
    return [(random.randrange(first, last) * BLOCK_BYTES, BLOCK_BYTES) for _ in range(RANDOM_BLOCKS)]


def _require_zero(data: bytes | bytearray, offset: int) -> None:
    if not all_zero(data):
        raise Refused(
            "not-blank",
            f"the disk holds data near byte {offset}, so it is not initialized; expected a new disk that "
            "reads all zero, or a volume that this agent made",
        )
