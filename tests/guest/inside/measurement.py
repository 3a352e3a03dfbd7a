"""Runs the agent in the guest and kills it while the Attestation Agent keeps it waiting."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.guest.inside.agent import run


def mount_killed_when_mounted(annotation: str, directory: str) -> None:
    """Mount the volumes of ``annotation``; SIGKILL as soon as one is mounted at ``directory``."""
    pid = os.fork()
    if pid == 0:
        try:
            run(["mount", "--annotation", "-"], annotation)
        finally:
            os._exit(0)
    while f" {directory} " not in Path("/proc/mounts").read_text():
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the agent ended before anything was mounted"
        time.sleep(0.02)
    # It now asks to be measured, and gets no answer.
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
