"""The page for authors of providers shows what is really there."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from driver.errors import PROVIDER_CODES
from providers import errors, interface
from tests.contract import example_backend

_TOP = Path(__file__).parents[2]
_PROVIDER_PAGE = (_TOP / "docs" / "add-a-provider.md").read_text()
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", _PROVIDER_PAGE, re.DOTALL | re.MULTILINE)
_SHOWN = [path for path in (_TOP / "examples" / "provider").iterdir() if path.is_file()]
_SHOWN.append(Path(example_backend.__file__))


@pytest.mark.parametrize("number", [n for n, (kind, _) in enumerate(_BLOCKS) if kind != "sh"])
def test_every_block_for_authors_of_providers_is_part_of_the_example(number: int) -> None:
    assert any(_BLOCKS[number][1] in path.read_text() for path in _SHOWN), _BLOCKS[number][1]


def test_the_command_for_authors_of_providers_runs_their_backend_alone() -> None:
    (command,) = (text for kind, text in _BLOCKS if kind == "sh")
    setting, interpreter, *arguments = shlex.split(command)
    assert interpreter == ".venv/bin/python"
    key, _, value = setting.partition("=")
    listed = subprocess.run(
        [sys.executable, *arguments, "--collect-only", "--quiet"],
        cwd=_TOP,
        env={**os.environ, key: value},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    ).stdout
    names = [line for line in listed.splitlines() if "::" in line]
    assert "tests/contract/test_volumes.py::test_a_new_volume_is_what_was_asked_for[example]" in names
    assert any(name.startswith("tests/contract/test_crashes.py::") for name in names)
    # Those of an interface that it lacks are listed without a backend, and skipped.
    assert [name for name in names if "[example" not in name and "[NOTSET" not in name] == []


def test_authors_of_providers_read_of_every_interface_and_error() -> None:
    optional = [
        name
        for name, kind in inspect.getmembers(interface, inspect.isabstract)
        if kind.__module__ == interface.__name__ and name != "BlockVolumeProvider"
    ]
    optional += ["VolumeCloner", "ZonedVolumes"]  # promises about another method
    errors_ = [name for name, kind in inspect.getmembers(errors, inspect.isclass)]
    assert len(optional) >= 10
    assert [name for name in (*optional, *errors_) if f"`{name}`" not in _PROVIDER_PAGE] == []


def test_authors_of_providers_read_the_status_of_each_error() -> None:
    rows = [line for line in _PROVIDER_PAGE.splitlines() if line.startswith("| `")]
    for error, code in PROVIDER_CODES.items():
        if error is not errors.ProviderError:
            (row,) = (line for line in rows if f"`{error.__name__}`" in line)
            assert code.name in row
