"""The two profiles of LUKS2 headers: everything that may vary, and its bounds."""

from dataclasses import dataclass
from typing import Final

from agent.luks2_metadata import METADATA_SIZES


@dataclass(frozen=True, slots=True)
class Bounds:
    """An inclusive range of integers."""

    low: int
    high: int

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Argon2Bounds:
    """What an argon2 keyslot may cost. ``memory_kib`` counts KiB, as LUKS2 does."""

    variants: frozenset[str]
    time: Bounds
    memory_kib: Bounds
    cpus: Bounds


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything a header may vary in, with its bounds. Sizes and offsets are in bytes.

    ``argon2`` is None where no argon2 keyslot is allowed. ``priorities`` are the values an explicit keyslot
    priority may have; cryptsetup writes none for the normal one.
    """

    name: str
    metadata_sizes: frozenset[int]
    keyslots_area: Bounds
    data_offset: Bounds
    sector_sizes: frozenset[int]
    volume_key_sizes: frozenset[int]
    keyslot_key_sizes: frozenset[int]
    max_keyslots: int
    hashes: frozenset[str]
    pbkdf2_iterations: Bounds
    argon2: Argon2Bounds | None
    digest_iterations: Bounds
    priorities: frozenset[int]


FORMAT_1: Final = Profile(
    name="format-1",
    metadata_sizes=frozenset({16 * 1024}),
    keyslots_area=Bounds(1024 * 1024, 1024 * 1024),
    data_offset=Bounds(4 * 1024 * 1024, 4 * 1024 * 1024),
    sector_sizes=frozenset({4096}),
    volume_key_sizes=frozenset({64}),
    keyslot_key_sizes=frozenset({64}),
    # As many areas of 252 KiB as fit.
    max_keyslots=4,
    hashes=frozenset({"sha256"}),
    # Keys are random, so 1,000 is enough; 100,000 keeps the worst unlock under a second even when emulated.
    pbkdf2_iterations=Bounds(1_000, 100_000),
    argon2=None,
    digest_iterations=Bounds(1_000, 100_000),
    priorities=frozenset(),
)
"""On-disk format 1, what this project writes."""

FOREIGN: Final = Profile(
    name="foreign",
    metadata_sizes=frozenset(METADATA_SIZES),
    keyslots_area=Bounds(256 * 1024, 32 * 1024 * 1024),
    data_offset=Bounds(288 * 1024, 64 * 1024 * 1024),
    sector_sizes=frozenset({512, 1024, 2048, 4096}),
    volume_key_sizes=frozenset({32, 64}),
    keyslot_key_sizes=frozenset({32, 64}),
    max_keyslots=8,
    hashes=frozenset({"sha256", "sha512"}),
    # cryptsetup aims at two seconds a keyslot and an eighth of a second a digest: today's fastest machines
    # reach about half of these.
    pbkdf2_iterations=Bounds(1_000, 20_000_000),
    argon2=Argon2Bounds(
        variants=frozenset({"argon2i", "argon2id"}),
        time=Bounds(1, 64),
        memory_kib=Bounds(32, 1024 * 1024),
        cpus=Bounds(1, 4),
    ),
    digest_iterations=Bounds(1_000, 2_000_000),
    priorities=frozenset({0, 1, 2}),
)
"""Volumes made by others: cryptsetup's defaults of the last years, with bounded cost."""
