"""The parser and cryptsetup agree on corrupted headers, but for the differences listed with their reasons."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.luks2 import Header, HeaderError, newest_valid
from tests.differential.corrupted_headers import (
    Case,
    edited_binary,
    edited_json,
    edited_text,
    mixed_copies,
)
from tests.differential.cryptsetup import DEVICE_BYTES, Verdict, verdict
from tests.differential.libcryptsetup import Library, library
from tests.fakes import luks_headers as forged
from tests.unit.agent.luks2_mutations import MUTATORS

DIFFERENCES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "differences.json").read_text())
SEARCHED_BYTES = 128 * 1024
RANDOM_CASES = 6_000


@pytest.fixture(scope="module")
def real() -> Iterator[Library]:
    with library() as child:
        yield child


def ours(case: Case) -> Header | str:
    """The header, or why it is refused."""
    area = case.area.ljust(min(case.device_bytes, SEARCHED_BYTES), b"\0")[: case.device_bytes]
    try:
        return newest_valid(area, case.device_bytes)
    except HeaderError as error:
        return error.reason


def without_foreign_kdf_members(metadata: Any) -> Any:
    """What cryptsetup's repair of old headers leaves of the key derivations of luks2 keyslots."""
    allowed = {"pbkdf2": {"type", "salt", "hash", "iterations"}}
    allowed["argon2i"] = allowed["argon2id"] = {"type", "salt", "time", "memory", "cpus"}
    metadata = json.loads(json.dumps(metadata))
    for keyslot in metadata["keyslots"].values():
        if keyslot["type"] == "luks2":
            kdf = keyslot["kdf"]
            keyslot["kdf"] = {name: kdf[name] for name in kdf if name in allowed.get(kdf["type"], kdf)}
    return metadata


def difference(case: Case, theirs: Verdict) -> str | None:
    """The id of the listed difference that the case shows, None if both agree."""
    mine = ours(case)
    if isinstance(mine, str):
        if not theirs.accepted:
            return None
        for entry in DIFFERENCES:
            if "refused_here" in entry and re.search(entry["refused_here"], mine):
                return str(entry["id"])
        pytest.fail(f"{case.name}: accepted by cryptsetup, refused here: {mine}")
    if not theirs.accepted:
        return "refused-by-cryptsetup"
    if mine.metadata == theirs.metadata():
        return None
    if without_foreign_kdf_members(mine.metadata) == theirs.metadata():
        return "kdf-members-dropped"
    pytest.fail(f"{case.name}: other metadata")


def test_agreement_but_for_the_listed_differences(real: Library) -> None:
    """Acceptance 5: accept or refuse, and the metadata, on thousands of systematic corruptions."""
    found: dict[str, list[str]] = {entry["id"]: [] for entry in DIFFERENCES}
    names = set()
    accepted = 0
    for cases in (edited_json(), edited_text(), edited_binary(), mixed_copies()):
        for case in cases:
            assert case.name not in names
            names.add(case.name)
            theirs = real.verdict(case.area, case.device_bytes)
            accepted += theirs.accepted
            kind = difference(case, theirs)
            if kind is not None:
                found[kind].append(case.name)
    assert found == {entry["id"]: entry["cases"] for entry in DIFFERENCES}
    assert all(entry["why"] for entry in DIFFERENCES)
    # Both verdicts are exercised.
    assert accepted > 1000
    assert len(names) - accepted > 3000


def test_agreement_on_random_mutations(real: Library) -> None:
    """The mutations of the unit tests, most of them between well-formed and not."""
    rng = random.Random(7)
    bases = [forged.build_area(forged.metadata(count)) for count in (1, 2)]
    accepted = 0
    for number in range(RANDOM_CASES):
        mutator = MUTATORS[number % len(MUTATORS)]
        area, _ = mutator(rng.choice(bases), rng)
        case = Case(f"{number} ({mutator.__name__})", area)
        theirs = real.verdict(area, DEVICE_BYTES)
        accepted += theirs.accepted
        assert difference(case, theirs) != "refused-by-cryptsetup"
    assert 1000 < accepted < RANDOM_CASES - 1000


def test_the_library_answers_as_the_command_does(real: Library, tmp_path: Path) -> None:
    for cases in (edited_text(), edited_binary(), mixed_copies()):
        for case in cases:
            by_command = verdict(case.area, tmp_path / "image", case.device_bytes)
            by_library = real.verdict(case.area, case.device_bytes)
            assert by_command.accepted == by_library.accepted, case.name
