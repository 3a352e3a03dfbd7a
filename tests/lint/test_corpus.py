"""Every mistake of the corpus is found on its line, and nothing else is.

A file says itself what is to be found: ``# expect: RULE`` on the line of the mistake. ``# Form of:`` names
the public manifest whose form it has.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.lint.check import check_sources
from cli.lint.clouds import Clouds
from cli.lint.context import Context
from cli.lint.rules import RULES
from cli.lint.sources import Source, read_sources

CORPUS = Path(__file__).parent / "corpus"
FILES = sorted(path for path in CORPUS.rglob("*") if path.is_file())

CLOUDS = Clouds()

_EXPECTED = re.compile(r"# expect: ([a-z-]+(?:, [a-z-]+)*)$")


def expected(path: Path) -> list[tuple[int, str]]:
    """Line and rule of each mistake that a file declares."""
    return sorted(
        (number, rule)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := _EXPECTED.search(line))
        for rule in found[1].split(", ")
    )


def checked(*names: str) -> Context:
    """What lint knows after it has read these files."""
    context = Context(CLOUDS)
    sources = list(read_sources(names))
    check_sources(context, [source for source in sources if isinstance(source, Source)])
    return context


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORPUS)))
def test_every_mistake_is_found_on_its_line_and_nothing_else(path: Path) -> None:
    found = [(one.place.line, str(one.rule.id)) for one in checked(str(path)).report.sorted()]
    # A rule may say several things about one line.
    assert sorted(set(found)) == expected(path)


def test_the_corpus_is_large_and_mostly_in_the_form_of_public_manifests() -> None:
    public = [path for path in FILES if path.read_text().startswith("# Form of: ")]
    assert len(FILES) >= 60
    assert 2 * len(public) >= len(FILES)
    assert len({path.parent.name for path in public}) >= 10


def test_many_files_of_the_corpus_have_no_mistake() -> None:
    assert len([path for path in FILES if not expected(path)]) >= 20


def test_every_rule_is_in_the_corpus() -> None:
    assert {rule for path in FILES for _, rule in expected(path)} == set(RULES)


def test_no_planted_secret_is_ever_shown() -> None:
    planted = {word for path in FILES for word in re.findall(r"PLANTED-[A-Z]+-[0-9]+", path.read_text())}
    assert len(planted) >= 8
    for path in FILES:
        for one in checked(str(path)).report.findings:
            assert not [word for word in planted if word in f"{one.message} {one.subject}"]


def test_files_that_are_read_together_do_not_disturb_each_other() -> None:
    """Each holds whole examples with names that others have, too: the nearest object of a name is meant."""
    found = {
        (one.place.file, one.place.line, str(one.rule.id)) for one in checked(str(CORPUS)).report.sorted()
    }
    declared = {(str(path), line, rule) for path in FILES for line, rule in expected(path)}
    assert found == declared
