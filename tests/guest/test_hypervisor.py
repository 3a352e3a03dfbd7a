"""The hermetic libvirtd: several side by side, and no trace of one whose test run was killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.lab.guest_image import CHECKOUT
from tests.lab.hypervisor import Hypervisor

_BOOT_AND_WAIT = """
import time
from tests.lab.hypervisor import Hypervisor
with Hypervisor() as hypervisor:
    hypervisor.boot("same-name")
    print(hypervisor.state, flush=True)
    time.sleep(300)
"""


def processes_of(state: Path) -> list[str]:
    """Command lines that name a hypervisor's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if re.search(rf"{re.escape(str(state))}\b", command):
            found.append(command)
    return found


def names(commands: list[str]) -> set[str]:
    return {Path(command.split()[0]).name for command in commands}


def test_a_killed_run_leaves_no_process_and_disturbs_no_other(hypervisor: Hypervisor) -> None:
    mine = hypervisor.boot("same-name")
    run = subprocess.Popen(
        [sys.executable, "-c", _BOOT_AND_WAIT], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    with run.stdout:
        state = Path(run.stdout.readline().strip())
    try:
        assert {"libvirtd", "qemu-system-x86_64", "virtiofsd"} <= names(processes_of(state))
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    deadline = time.monotonic() + 60
    while processes_of(state) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(state) == []
    shutil.rmtree(state)
    assert mine.check(["echo", "here"]) == b"here\n"
    mine.destroy()


def test_nothing_is_left_after_an_ordinary_end() -> None:
    with Hypervisor() as running:
        state = running.state
        assert names(processes_of(state)) >= {"libvirtd"}
    assert processes_of(state) == []
    assert not state.exists()
    assert str(state) not in Path("/proc/mounts").read_text()


def test_a_machine_that_is_set_up_is_left_alone() -> None:
    done = subprocess.run([CHECKOUT / "tests/lab/setup.sh"], capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
