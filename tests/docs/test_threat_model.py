"""The threat model names tests that exist, and one for each thing that it calls defended."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"
_LINK = re.compile(r"\]\(([^)]+/test_[a-z0-9_]+\.py)\)")
_TEST = re.compile(r"`(test_[a-z0-9_]+)`")


def _rows() -> list[str]:
    """The lines of the table of what is defended, without its head."""
    section = _PAGE.read_text().split("## Defended", 1)[1].split("\n## ", 1)[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row.split("|")[1].strip()[:50])
def test_what_is_called_defended_is_shown_by_a_test(row: str) -> None:
    shown_by = row.rstrip("| ").rsplit("|", 1)[1]
    files = [(_PAGE.parent / link) for link in _LINK.findall(shown_by)]
    assert files or "the same" in shown_by
    defined = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert set(_TEST.findall(shown_by)) <= defined


def test_every_file_of_the_attack_suite_is_named() -> None:
    suite = {file.name for file in (_PAGE.parents[1] / "tests" / "hostile").glob("test_*.py")}
    named = {Path(link).name for link in _LINK.findall(_PAGE.read_text()) if "/hostile/" in link}
    assert named == suite
