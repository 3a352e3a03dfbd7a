"""Whether a data area looks encrypted: samples of it, held against random bytes and known formats.

It proves nothing by itself: compressed data looks random, too. What it does show is readable data where there
should be none, as under a header that says "encrypted" over a plaintext file system.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from agent.classification import SIGNATURES

BLOCK_BYTES: Final = 4096
_BLOCKS: Final = 256
"""Spread over the data area, and as many from its start, where file systems keep what tells them."""
_SECTOR_BYTES: Final = 512

#: Of 255 degrees of freedom: random bytes stay between these but for one sample in a billion.
_CHI_SQUARE: Final = (120.0, 440.0)


@dataclass(frozen=True)
class Sample:
    """What the blocks of a data area look like."""

    blocks: int
    zero: int
    """Never written, or discarded."""
    random: int
    """Not to be told from random bytes, as encrypted data is."""
    structured: tuple[int, ...]
    """Byte offsets on the disk of blocks that are neither."""
    signatures: tuple[str, ...]
    """Known formats that show themselves at the start of the data."""
    entropy: float
    """Mean of the blocks that are not zero, in bits a byte; 4 KiB of random bytes have about 7.95."""

    @property
    def is_readable(self) -> bool:
        """Whether something there can be read without a key."""
        return bool(self.structured or self.signatures)


def take_sample(read: Callable[[int, int], bytes], start: int, end: int) -> Sample:
    """Sample the data between two byte offsets of a disk; ``read(offset, length)`` gives its bytes."""
    zero = random = 0
    structured: list[int] = []
    plain: dict[int, bytes] = {}
    entropies: list[float] = []
    places = list(_places(start, end))
    for offset in places:
        block = read(offset, BLOCK_BYTES)
        written = _written(block)
        if not written:
            zero += 1
            continue
        entropies.append(_entropy(written))
        if _looks_random(written):
            random += 1
        else:
            structured.append(offset)
            plain[offset - start] = block
    return Sample(
        blocks=len(places),
        zero=zero,
        random=random,
        structured=tuple(structured),
        signatures=tuple(_signatures(plain)),
        entropy=round(sum(entropies) / len(entropies), 3) if entropies else 0.0,
    )


def _places(start: int, end: int) -> Iterator[int]:
    blocks = max(0, end - start) // BLOCK_BYTES
    first = min(blocks, _BLOCKS)
    step = max(1, (blocks - first) // _BLOCKS)
    numbers = [*range(first), *range(first, blocks, step)][: 2 * _BLOCKS]
    yield from (start + number * BLOCK_BYTES for number in numbers)


def _written(block: bytes) -> bytes:
    """The block without sectors that are zero: encryption may go by sectors of 512 bytes."""
    sectors = (block[at : at + _SECTOR_BYTES] for at in range(0, len(block), _SECTOR_BYTES))
    return b"".join(sector for sector in sectors if any(sector))


def _looks_random(data: bytes) -> bool:
    expected = len(data) / 256
    counts = Counter(data)
    chi_square = sum((counts[value] - expected) ** 2 / expected for value in range(256))
    return _CHI_SQUARE[0] < chi_square < _CHI_SQUARE[1]


def _entropy(data: bytes) -> float:
    return -sum(count / len(data) * math.log2(count / len(data)) for count in Counter(data).values())


def _signatures(plain: dict[int, bytes]) -> Iterator[str]:
    """Known formats in blocks that do not look random; in those that do, two bytes occur by chance."""
    for signature in SIGNATURES:
        for offset in signature.offsets:
            block = plain.get(offset // BLOCK_BYTES * BLOCK_BYTES)
            if block is not None and block.startswith(signature.magic, offset % BLOCK_BYTES):
                yield signature.name
