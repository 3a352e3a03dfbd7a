"""The command line: exit codes, where errors go, and no core dumps."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent import dumps
from agent.__main__ import EXIT_REFUSED, EXIT_UNAVAILABLE, main

PLAIN = {"vol-0": {"mount_point": "/data", "fs_type": "ext4", "lun": "0", "disk_id": "pvc-1"}}


def test_a_refused_annotation_is_reported_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Field case L3."""
    file = tmp_path / "annotation"
    file.write_text(json.dumps(PLAIN))
    assert main(["mount", "--annotation", str(file)]) == EXIT_REFUSED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("[encryption-required] vol-0")


def test_an_unreadable_annotation_may_be_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mount", "--annotation", "/nowhere"]) == EXIT_UNAVAILABLE
    assert capsys.readouterr().err.startswith("[annotation-unreadable] cannot read /nowhere")


def test_an_annotation_can_come_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"not json")))
    assert main(["unmount", "--annotation", "-"]) == EXIT_REFUSED
    assert "[annotation-malformed]" in capsys.readouterr().err


def test_an_endless_annotation_is_not_read_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mount", "--annotation", "/dev/zero"]) == EXIT_REFUSED
    assert "[annotation-malformed]" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["mount"], ["unmount"], ["unmount", "--all", "--annotation", "x"]])
def test_a_wrong_command_line_is_argparses_exit_code(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2


def test_the_help_tells_the_exit_codes_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{EXIT_REFUSED} refused" in shown
    assert f"{EXIT_UNAVAILABLE} unavailable" in shown
    assert "`" not in shown, "markup of the sources"


def test_nothing_is_mounted_on_this_machine() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent", "status", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"volumes": []}


def test_core_dumps_are_off() -> None:
    """By limit, by what a dump may hold, and by the kernel's mark; tools inherit the first two."""
    tool = (
        "import resource; print(resource.getrlimit(resource.RLIMIT_CORE),"
        "open('/proc/self/coredump_filter').read())"
    )
    program = (
        "import ctypes, subprocess, sys, agent.__main__ as a; a.main(['mount', '--annotation', '/nowhere']);"
        "print(ctypes.CDLL(None).prctl(3), flush=True);"  # PR_GET_DUMPABLE
        f"subprocess.run([sys.executable, '-c', {tool!r}])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["0", "(0, 0) 00000000"]


def test_a_kernel_that_refuses_stops_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "filter").mkdir()
    monkeypatch.setattr(dumps, "_FILTER", tmp_path / "filter")
    assert main(["status"]) == EXIT_UNAVAILABLE
    assert "[dumps-not-forbidden]" in capsys.readouterr().err
