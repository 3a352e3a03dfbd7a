"""The commands of the pages work: they are run, or at least written as the programs want them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.broker import Broker
from tests.docs.own_commands import WrongCommand
from tests.docs.pages import OTHER_LANGUAGES, PAGES, SHELLS, TOP, Block, blocks
from tests.docs.sandbox import Ran, Sandbox
from tests.docs.stand_ins import CHECKS

_BLOCKS = [block for page in PAGES for block in blocks(page)]
_SHELL_BLOCKS = [block for block in _BLOCKS if block.language in SHELLS]
_PAGES = [page for page in PAGES if any(block.page == page for block in _SHELL_BLOCKS)]


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_the_commands_of_a_page_work(page: Path, tmp_path: Path, broker: Broker) -> None:
    sandbox = Sandbox(tmp_path, broker)
    wrong = []
    for ran in sandbox.run(blocks(page)):
        wrong += [f"{page.name}:{ran.command.line}: {what}" for what in failures(ran, sandbox.work)]
    assert wrong == []


def failures(ran: Ran, directory: Path) -> list[str]:
    """What is wrong with a command and what it did."""
    found = []
    # Nobody finds anything in what a stand-in says.
    nothing_found = ran.status == 1 and ran.calls and "| grep " in ran.command.text
    if ran.status and not (ran.block.played or nothing_found):
        found.append(f"{ran.command.text} ended with {ran.status}: {ran.output.strip()[-1000:]}")
    for program, *arguments in (*ran.calls, *ran.own_calls):
        check = CHECKS.get(program)
        try:
            if check is not None:
                check(arguments, None if ran.block.played else directory)
        except WrongCommand as error:
            found.append(str(error))
    if ran.command.output and not (ran.calls or prints(ran.command.output, ran.output)):
        found.append(f"{ran.command.text} printed:\n{ran.output}")
    return found


def prints(shown: tuple[str, ...], output: str) -> bool:
    """Whether ``output`` is what a page shows; ``...`` stands for any lines and ``…`` for any text."""
    lines = [
        r"(.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()).replace("…", ".*") + r" *\n"
        for line in shown
    ]
    return re.fullmatch("".join(lines), output) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_block_has_a_language_that_says_whether_it_is_commands(page: Path) -> None:
    known = SHELLS | OTHER_LANGUAGES
    assert [block.place for block in _BLOCKS if block.page == page and block.language not in known] == []


@pytest.mark.parametrize("block", [b for b in _BLOCKS if b.marker is not None], ids=lambda block: block.place)
def test_a_block_that_another_test_runs_or_none_says_so_as_agreed(block: Block) -> None:
    assert block.language in SHELLS
    if block.run_by is None:
        assert block.played, "neither 'run by TEST' nor 'played, REASON'"
        assert len(str(block.marker)) > len("played, ")
        return
    test = TOP / block.run_by
    assert test.name.startswith("test_")
    assert f'"{block.page.name}"' in test.read_text(), "the test reads the page"


def test_what_is_wrong_is_seen(tmp_path: Path, broker: Broker) -> None:
    page = TOP / "docs" / "index.md"
    lines = (
        "$ confidential-csi policy chek examples/volumes.toml",
        "$ make no-such-target",
        "$ kubectl apply -f no-such-file.yaml",
        "$ kubectl get pods --no-such-option",
        "$ helm install x deploy/charts/confidential-csi --set provder=aws",
        "$ helm uninstall x",
        "$ docker build --target no-such-target .",
        "$ confidential-csi controller --no-such-option",
        "$ confidential-csi-agent stauts",
        "$ no-such-program",
        "$ false",
        "$ confidential-csi policy check examples/volumes.toml",
        "something else",
        "$ confidential-csi policy check examples/volumes.toml",
        "/data:",
        "  - encrypted with LUKS2; the key is …",
        "...",
    )
    ran = Sandbox(tmp_path, broker).run([Block(page, 1, "console", None, None, lines)])
    right = [not failures(one, tmp_path / "clone") for one in ran]
    assert [one.command.text for one, fine in zip(ran, right, strict=True) if fine] == [
        "helm uninstall x",
        "confidential-csi policy check examples/volumes.toml",
    ]
    assert right[-1]


def test_a_played_block_runs_no_program(tmp_path: Path, broker: Broker) -> None:
    lines = (
        "$ cd /nowhere && rm -r /tmp/x | confidential-csi policy check no-such-file",
        "$ confidential-csi nod",
    )
    block = Block(TOP / "README.md", 1, "console", None, "played, to see what happens", lines)
    first, second = Sandbox(tmp_path, broker).run([block])
    assert sorted(first.calls) == [
        ("confidential-csi", "policy", "check", "no-such-file"),
        ("rm", "-r", "/tmp/x"),
    ]
    assert failures(first, tmp_path) == []
    assert failures(second, tmp_path) == ["confidential-csi has no command nod"]


@pytest.mark.parametrize("target", ["demo", "test", "lint"])
def test_a_first_make_says_that_it_installs_packages_before_it_falls_silent(target: str) -> None:
    printed = subprocess.run(
        ["make", "--dry-run", "--what-if=pyproject.toml", target],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    ).stdout
    assert printed.index("Installing the Python packages") < printed.index("pip install")
