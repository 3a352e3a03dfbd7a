"""The page lists every rule as the command explains it, and what it shows is what the command prints."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

import cli
from cli.lint.rules import RULES, SECTIONS, Rule
from tests.tools.driver_process import COMMAND

_TOP = Path(cli.__file__).parents[1]
PAGE = (_TOP / "docs" / "lint.md").read_text(encoding="utf-8")
_EXIT_CODES = (_TOP / "docs" / "exit-codes.md").read_text(encoding="utf-8")
_CONSOLE = re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def table(rules: tuple[Rule, ...]) -> str:
    """The rules of a section as the page has them."""
    rows = (f"| `{rule.id}` | {rule.severity} | {rule.meaning} | {rule.fix} |" for rule in rules)
    return "\n".join(["| Rule | | What it means | How to fix it |", "|---|---|---|---|", *rows]) + "\n"


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_has_each_rule_as_the_command_explains_it(section: str) -> None:
    assert f"### {section}\n\n{table(SECTIONS[section])}" in PAGE


def test_the_page_names_no_other_rule() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \| (?:error|warning) \|", PAGE, re.MULTILINE)) == set(RULES)


@pytest.mark.parametrize("block", _CONSOLE)
def test_the_commands_of_the_page_print_what_it_shows(block: str) -> None:
    """Each line that the page shows is one of the output; ``...`` stands for more."""
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    (command,) = commands
    assert shlex.split(command)[1] == "confidential-csi"
    script = command.removeprefix("$ ").replace("confidential-csi", shlex.quote(str(COMMAND)), 1)
    finished = subprocess.run(
        ["bash", "-c", script], cwd=_TOP, capture_output=True, text=True, timeout=60, check=False
    )
    printed = finished.stdout + finished.stderr
    for line in block.splitlines():
        if line not in (*commands, "..."):
            assert line.strip() in printed


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["lint", "examples"], 0),
        (["lint", "tests/lint/corpus/classes/half-encrypted.yaml"], 1),
        (["lint", "no-such-file.yaml"], 2),
        (["policy", "check", "examples/volumes.toml"], 0),
        (["policy", "check", "tests/lint/corpus/policies/misspelled.toml"], 1),
        (["policy", "check", "no-such-file.toml"], 2),
        (["completion", "bash"], 0),
        (["completion", "tcsh"], 2),
        (["key", "new", "not-a-path", "--kbs-url", "https://kbs.example"], 1),
        (["no-such-command"], 2),
    ],
)
def test_the_documented_exit_codes_are_the_real_ones(arguments: list[str], code: int) -> None:
    finished = subprocess.run(
        [COMMAND, *arguments], cwd=_TOP, capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == code, finished.stderr
    if code != 2:
        name = " ".join(
            one for one in arguments[:2] if one in ("lint", "policy", "check", "completion", "key", "new")
        )
        (row,) = (line for line in _EXIT_CODES.splitlines() if line.startswith(f"| `{name}`"))
        assert row.split("|")[2 + code].strip()
