"""Runs the agent in the guest, and kills it at chosen moments."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from agent.__main__ import main
from agent.annotation import CloudVolume
from agent.clock import SystemClock
from agent.devices import DeviceFinder


def run(argv: list[str], stdin: str = "") -> dict[str, Any]:
    """The agent's command line, in this (forked) process: spares the start of an interpreter."""
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = main(argv)
    return {"code": code, "stdout": stdout.getvalue(), "stderr": stderr.getvalue()}


def disk_path(disk_id: str) -> str:
    """The device of a disk, found as the agent finds it."""
    volume = CloudVolume(0, "/data", "ext4", None, disk_id, None, "luks2", "a/b/c")
    return str(DeviceFinder(SystemClock(), 20.0).find(volume).path)
