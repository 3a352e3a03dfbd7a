"""Size arithmetic: exact for every integer, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.errors import InvalidArgument, OutOfRange
from driver.sizes import DEFAULT_BYTES, ENCRYPTED_MINIMUM_BYTES, GIB, MIB, SizeRange, SizeRules

CLOUD = SizeRules(step=GIB, minimum=GIB, maximum=16384 * GIB)
LOCAL = SizeRules(step=MIB, minimum=MIB, maximum=1 << 60)

numbers = st.one_of(st.just(0), st.integers(1, 1 << 62), st.integers(1, 4 * GIB))


@pytest.mark.parametrize(
    ("required", "limit", "rules", "size"),
    [
        (10_000_000_000, 0, CLOUD, 10 * GIB),
        (1, 0, CLOUD, GIB),
        (GIB + 1, 0, CLOUD, 2 * GIB),
        (0, 2 * GIB, CLOUD, GIB),
        (0, 0, CLOUD, DEFAULT_BYTES),
        (10_000_000_000, 0, LOCAL, 9537 * MIB),
        (1, 0, LOCAL, MIB),
        (0, 3 * MIB + 5, LOCAL, 3 * MIB),
        ((1 << 59) + 1, 0, LOCAL, (1 << 59) + MIB),
        (GIB, 0, SizeRules(step=GIB, minimum=4 * GIB, maximum=100 * GIB), 4 * GIB),
    ],
)
def test_the_smallest_size_that_serves_is_chosen(
    required: int, limit: int, rules: SizeRules, size: int
) -> None:
    """Field case A5; its last figure is a floating-point trap, the one before it io2's minimum."""
    assert SizeRange(required, limit).choose(rules) == size


@pytest.mark.parametrize(
    ("required", "limit", "rules"),
    [
        (10_000_000_000, 10_000_000_000, CLOUD),
        (1 << 62, 0, CLOUD),
        (0, GIB - 1, CLOUD),
        (GIB, 2 * GIB, SizeRules(step=GIB, minimum=4 * GIB, maximum=100 * GIB)),
        (1, 16 * MIB, SizeRules(step=MIB, minimum=ENCRYPTED_MINIMUM_BYTES, maximum=1 << 60)),
    ],
)
def test_a_range_without_a_possible_size_is_out_of_range(required: int, limit: int, rules: SizeRules) -> None:
    """Field case A5."""
    with pytest.raises(OutOfRange):
        SizeRange(required, limit).choose(rules)


@pytest.mark.parametrize(("required", "limit"), [(-1, 0), (0, -1), (-5, -4), (5 * GIB, 4 * GIB)])
def test_a_range_that_makes_no_sense_is_an_invalid_argument(required: int, limit: int) -> None:
    """Field case A5."""
    with pytest.raises(InvalidArgument):
        SizeRange(required, limit)


@given(required=numbers, limit=numbers, source=numbers, rules=st.sampled_from([CLOUD, LOCAL]))
def test_every_answer_is_a_size_in_range_and_no_smaller_one_is(
    required: int, limit: int, source: int, rules: SizeRules
) -> None:
    if 0 < limit < required:
        return
    wanted = SizeRange(required, limit)
    try:
        size = wanted.choose(rules, source)
    except OutOfRange:
        smallest = rules.round_up(max(required, source))
        too_small_for_the_source = required > 0 and rules.round_up(required) < source
        assert too_small_for_the_source or smallest > rules.maximum or 0 < limit < smallest
        return
    assert wanted.contains(size)
    assert size % rules.step == 0
    assert rules.minimum <= size <= rules.maximum
    assert size >= source
    if required:
        assert size - rules.step < max(required, rules.minimum)


@given(required=numbers, limit=numbers, size=st.integers(0, 1 << 62))
def test_a_range_contains_what_it_says(required: int, limit: int, size: int) -> None:
    if 0 < limit < required:
        return
    assert SizeRange(required, limit).contains(size) == (required <= size and (limit == 0 or size <= limit))
