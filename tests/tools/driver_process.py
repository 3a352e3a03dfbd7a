"""Runs a role of ``confidential-csi`` as the real process it is."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COMMAND = Path(sys.executable).parent / "confidential-csi"

_START_SECONDS = 20.0

#: Serves metrics on a port that is free.
METRICS_ON = "--metrics-address=127.0.0.1:0"
_METRICS = re.compile(r"serving metrics address=(\S+)")


@dataclass
class DriverProcess:
    """A running role, its socket, and the file its log goes to."""

    process: subprocess.Popen[bytes]
    socket: Path
    log: Path

    def target(self) -> str:
        """The endpoint, for a client."""
        return f"unix://{self.socket}"

    def metrics_address(self) -> str:
        """``host:port`` of its metrics, as its log tells once they are served.

        Raises:
            AssertionError: it serves none.
        """
        give_up = time.monotonic() + _START_SECONDS
        while time.monotonic() < give_up:
            match = _METRICS.search(self.log.read_text())
            if match is not None:
                return match[1]
            time.sleep(0.02)
        raise AssertionError(f"it serves no metrics:\n{self.log.read_text()}")

    def terminate(self, seconds: float) -> int:
        """SIGTERM, and the exit code; raises ``subprocess.TimeoutExpired`` if that takes longer."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


@contextmanager
def running(
    role: str, folder: Path, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[DriverProcess]:
    """``confidential-csi ROLE`` on a socket in ``folder``, until the end of the block."""
    endpoint = folder / f"{role}.sock"
    log = folder / f"{role}.log"
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [COMMAND, role, "--endpoint", f"unix://{endpoint}", *options],
            stderr=stream,
            env={**os.environ, **(env or {})},
        )
    driver = DriverProcess(process, endpoint, log)
    try:
        _wait_until_it_listens(driver)
        yield driver
    finally:
        if process.poll() is None:
            driver.kill()


@contextmanager
def attaching(
    folder: Path, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """``confidential-csi attach-libvirt``, until the end of the block; its log is in ``folder``."""
    with (folder / "attach-libvirt.log").open("ab") as stream:
        process = subprocess.Popen(
            [COMMAND, "attach-libvirt", *options], stderr=stream, env={**os.environ, **(env or {})}
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def _wait_until_it_listens(driver: DriverProcess) -> None:
    give_up = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up and driver.process.poll() is None:
        with socket.socket(socket.AF_UNIX) as client:
            if client.connect_ex(str(driver.socket)) == 0:
                return
        time.sleep(0.01)
    raise AssertionError(f"the driver does not listen:\n{driver.log.read_text()}")
