"""Runs the agent in the guest, and looks at what it left there."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from agent import blank_check
from agent.__main__ import main
from agent.annotation import CloudVolume
from agent.blank_check import DURATION_SECONDS
from agent.clock import SystemClock
from agent.devices import DeviceFinder
from tests.lab import cdh


def run(argv: list[str], stdin: str = "", blank_check_seconds: float = DURATION_SECONDS) -> dict[str, Any]:
    """The agent's command line, in this (forked) process: spares the start of an interpreter."""
    blank_check.DURATION_SECONDS = blank_check_seconds
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = main(argv)
    return {"code": code, "stdout": stdout.getvalue(), "stderr": stderr.getvalue()}


def start(argv: list[str], socket_path: str = "", port: int = 0) -> int:
    """Start a command of the agent that serves, on a Unix socket or a local port; the process id."""
    log = Path(f"/run/sandbox/{port or Path(socket_path).name}.log")
    return start_server(lambda: main(argv), log, socket_path, port)


def start_server(serve: Callable[[], int], log: Path, socket_path: str = "", port: int = 0) -> int:
    """Run ``serve``, which gives an exit code, in a process of its own, and wait until it listens; its id."""
    log.parent.mkdir(exist_ok=True)
    if socket_path:
        Path(socket_path).unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setsid()
            own_log = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            os.dup2(own_log, 1)
            os.dup2(own_log, 2)
            status = serve()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    while not _listens(socket_path, port):
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            raise RuntimeError(f"the server on {socket_path or port} ended:\n{log.read_text()}")
        time.sleep(0.01)
    return pid


def wait_until_it_listens(socket_path: str, log: str, seconds: float) -> None:
    """Until somebody else's server does; its log is shown if that takes longer."""
    give_up = time.monotonic() + seconds
    while not _listens(socket_path, 0):
        assert time.monotonic() < give_up, Path(log).read_text()
        time.sleep(0.05)


def _listens(socket_path: str, port: int) -> bool:
    kind, address = (socket.AF_UNIX, socket_path) if socket_path else (socket.AF_INET, ("127.0.0.1", port))
    with socket.socket(kind) as probe:
        return probe.connect_ex(address) == 0


def stop(pid: int) -> None:
    """End it, and wait until it has ended."""
    os.kill(pid, signal.SIGTERM)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)


def disk_path(disk_id: str) -> str:
    """The device of a disk, found as the agent finds it."""
    volume = CloudVolume(0, "/data", "ext4", None, disk_id, None, "luks2", "a/b/c")
    return str(DeviceFinder(SystemClock(), 120.0).find(volume).path)


def wait_for_disks(serial: str, count: int) -> None:
    """Until so many disks have this serial."""
    while _texts(Path("/sys/block").glob("*/serial")).count(serial) < count:
        time.sleep(0.01)


def leftovers() -> str:
    """Everything of a volume that exists in the guest: mappings, loop devices, mounts, links."""
    blocks, state = Path("/sys/block"), Path("/run/confidential-csi-agent")
    found = _texts(blocks.glob("dm-*/dm/name")) + _texts(blocks.glob("loop*/loop/backing_file"))
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if "cloud-volumes" in line]
    # Lock files stay, and so does the proxy's list of who uses what.
    names = {file.name for file in state.glob("*")} - {"containers.json"}
    return "\n".join([*found, *sorted(name for name in names if "lock" not in name)])


def clean_up() -> dict[str, Any]:
    """Mend the data hub and unmount everything; as :func:`run`, and with what is left."""
    cdh.mend()
    return {**run(["unmount", "--all"]), "leftovers": leftovers()}


def _texts(files: Iterable[Path]) -> list[str]:
    """What is in those of the files that have not left meanwhile, as files of devices do."""
    texts = []
    for file in files:
        with suppress(OSError):
            texts.append(file.read_text().strip())
    return texts
