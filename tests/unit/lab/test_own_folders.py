"""What a run of tests takes of the machine is its own, and what a killed one left is removed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import ports
from tests.tools.own_folders import left_behind, own_folder

_HOLDER = """
import sys
from pathlib import Path
from tests.tools.own_folders import own_folder
with own_folder("own", Path(sys.argv[1])) as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_folder_lives_as_long_as_its_process_and_is_removed_by_the_next_one(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    other = Path(holder.stdout.readline().strip())
    with own_folder("own", tmp_path) as mine:
        assert (other / "file").exists()
    assert not mine.exists()

    holder.send_signal(signal.SIGKILL)
    holder.wait(30)
    assert left_behind("own", tmp_path) == [other]
    with own_folder("own", tmp_path):
        assert not other.exists()


def test_a_port_is_given_once_whether_or_not_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ports.free_port()
    monkeypatch.setattr(ports, "_PORTS", range(first, first + 50))
    others = {ports.free_port() for _ in range(10)}
    assert len(others) == 10
    assert first not in others
