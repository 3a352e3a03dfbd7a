"""Every rule's verdict, not just the first that is broken; and the same judgment as the agent's."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agent.luks2 import HeaderError, newest_valid
from agent.luks2_profile import FOREIGN, FORMAT_1, RULES, ProfileViolation, audit, require_equal_copies
from cli.inspect.header import HeaderReview, facts, review
from cli.inspect.story import Verdict
from tests.fakes import luks_headers as forged
from tests.unit.agent.luks2_mutations import MUTATORS
from tests.unit.cli.inspect.images import SIZE

MUTATIONS = 1_000


def _broken(reviewed: HeaderReview) -> set[str]:
    return {one.name for one in reviewed.statements if one.verdict is Verdict.BROKEN}


def _edited(*edits: Any) -> HeaderReview:
    area = forged.build_area()
    for edit in edits:
        area = forged.forge(area, edit)
    return review(area, SIZE)


def test_of_a_header_of_ours_every_rule_holds() -> None:
    reviewed = review(forged.build_area(), SIZE)
    assert reviewed.keeps_to_profile
    assert {one.name for one in reviewed.statements} == set(RULES)
    assert all(one.demands for one in reviewed.statements)


def _token(document: forged.Metadata) -> None:
    document["tokens"] = {"0": {"type": "luks2-keyring", "keyslots": ["0"]}}


def _flag(document: forged.Metadata) -> None:
    document["config"]["flags"] = ["allow-discards"]


def _slow(document: forged.Metadata) -> None:
    document["keyslots"]["0"]["kdf"]["iterations"] = 10**9


def _salt(document: forged.Metadata) -> None:
    document["digests"]["0"]["salt"] += "="


def _stripes(document: forged.Metadata) -> None:
    document["keyslots"]["0"]["af"]["stripes"] = 1


def _member(document: forged.Metadata) -> None:
    document["segments"]["0"]["extra"] = 1


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (forged.null_segment, "header-segment-cipher"),
        (forged.null_keyslots, "header-keyslot-cipher"),
        (_token, "header-tokens"),
        (_flag, "header-config"),
        (_slow, "header-keyslot-kdf"),
        (_salt, "header-base64"),
        (_stripes, "header-keyslot-af"),
        (_member, "header-unknown-member"),
    ],
)
def test_a_broken_rule_is_named_alone(edit: Any, rule: str) -> None:
    reviewed = _edited(edit)
    assert _broken(reviewed) == {rule}
    (found,) = (one.found for one in reviewed.statements if one.name == rule)
    assert found


def test_all_broken_rules_are_named() -> None:
    reviewed = _edited(forged.null_segment, forged.null_keyslots, _token, _flag, _slow)
    assert _broken(reviewed) == {
        "header-segment-cipher",
        "header-keyslot-cipher",
        "header-tokens",
        "header-config",
        "header-keyslot-kdf",
    }


def test_what_a_broken_rule_hides_is_called_unknown_and_not_fine() -> None:
    reviewed = _edited(_member)  # so nothing else about the segment can be relied on
    unknown = {one.name for one in reviewed.statements if one.verdict is Verdict.UNKNOWN}
    assert {"header-segment", "header-segment-cipher"} <= unknown


def test_copies_that_differ_are_told() -> None:
    area = forged.forge(forged.build_area(), _slow, copies=(1,))
    assert "header-copies" in _broken(review(area, SIZE))


def test_a_header_that_does_not_parse_leaves_every_rule_unknown() -> None:
    reviewed = review(bytes(2 * forged.METADATA_BYTES), SIZE)
    assert isinstance(reviewed.header, HeaderError)
    assert _broken(reviewed) == {"header-invalid"}
    assert {one.verdict for one in reviewed.statements if one.name in RULES} == {Verdict.UNKNOWN}


def test_headers_of_others_are_held_against_their_profile() -> None:
    def argon2(document: forged.Metadata) -> None:
        document["keyslots"]["0"]["kdf"] = {
            "type": "argon2id",
            "time": 4,
            "memory": 1048576,
            "cpus": 4,
            "salt": forged.encoded("argon2"),
        }

    reviewed = _edited(argon2)
    assert reviewed.profile is FOREIGN
    assert reviewed.keeps_to_profile


def test_the_verdicts_are_the_agents_on_thousands_of_mutated_headers() -> None:
    """Field case I4. Nothing crashes on hostile bytes, and nothing is called fine that the agent refuses."""
    rng = random.Random(20261130)
    bases = [forged.build_area(forged.metadata(keyslots)) for keyslots in (1, 2)]
    refused = 0
    for number in range(MUTATIONS):
        area, _ = MUTATORS[number % len(MUTATORS)](rng.choice(bases), rng)
        reviewed = review(area, SIZE)
        first: ProfileViolation | HeaderError | None = None
        for profile in (FORMAT_1, FOREIGN):
            try:
                audit(newest_valid(area, SIZE), profile)
                require_equal_copies(area)
            except (ProfileViolation, HeaderError) as error:
                first = first or error
            else:
                first = None
                break
        assert reviewed.keeps_to_profile is (first is None), f"mutation {number}: {first}"
        if isinstance(first, ProfileViolation):
            assert first.rule in _broken(reviewed), f"mutation {number}"
        if not isinstance(reviewed.header, HeaderError):
            assert facts(reviewed.header)["uuid"] is not None
        refused += first is not None
    assert refused > MUTATIONS / 2
