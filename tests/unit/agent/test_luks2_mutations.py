"""Mutated headers: never an uncaught exception, and nothing outside the profile gets through."""

import contextlib
import random
from collections import Counter

import pytest

from agent.classification import Kind, classify
from agent.luks2 import HeaderError, newest_valid
from agent.luks2_profile import FOREIGN, FORMAT_1, ProfileViolation, audit, require_equal_copies
from tests.fakes import luks_headers as forged
from tests.unit.agent.luks2_mutations import MUTATORS
from tests.unit.agent.luks2_oracle import in_format_1

MUTATIONS = 100_000
SEED = 20261130


def accepted(area: bytes) -> bool:
    """The strict way in: both copies valid and equal, and the header keeps to the profile."""
    try:
        require_equal_copies(area)
        audit(newest_valid(area), FORMAT_1)
    except (HeaderError, ProfileViolation):
        return False
    return True


def survives_everything_else(area: bytes) -> None:
    """What else reads hostile bytes answers, whatever they are."""
    assert classify(area, len(area)).kind is not Kind.BLANK or not any(area)
    with contextlib.suppress(HeaderError, ProfileViolation):
        audit(newest_valid(area), FOREIGN)


def test_a_hundred_thousand_mutated_headers() -> None:
    """Field case I4. Each mutation that leaves the profile is refused, each that stays is accepted."""
    bases = [forged.build_area(forged.metadata(keyslots)) for keyslots in (1, 2)]
    assert all(accepted(base) and in_format_1(forged.read_metadata(base)) for base in bases)
    rng = random.Random(SEED)
    ran: Counter[tuple[str, bool]] = Counter()
    for number in range(MUTATIONS):
        mutator = MUTATORS[number % len(MUTATORS)]
        area, stays = mutator(rng.choice(bases), rng)
        name = mutator.__name__
        assert accepted(area) == stays, f"mutation {number} ({name}): in the profile: {stays}"
        if number % 10 == 0:
            survives_everything_else(area)
        ran[name, stays] += 1

    assert sum(ran.values()) == MUTATIONS
    for mutator in MUTATORS:
        assert ran[mutator.__name__, False] > 1000, f"{mutator.__name__} hardly ever leaves the profile"
    assert sum(count for (_, stays), count in ran.items() if stays) > 1000


def test_every_single_byte_of_both_copies_matters() -> None:
    """One bit flipped, checksums left alone: nothing goes unnoticed, not even where no checksum looks."""
    base = forged.build_area()
    text_end = len(base[:16384].rstrip(b"\0"))
    for start in (0, 16384):
        for position in [*range(1024), *range(4090, text_end + 64), 16383]:
            area = bytearray(base)
            area[start + position] ^= 1 << (position % 8)
            with pytest.raises(ProfileViolation):
                require_equal_copies(bytes(area))
