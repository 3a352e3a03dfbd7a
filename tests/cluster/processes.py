"""Long-running programs of a cluster: started, stopped, and their logs kept."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_STOP_SECONDS = 20.0


def free_port() -> int:
    """A port of loopback that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Running:
    """A process, which ends with this one at the latest. Its output goes to ``log``."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *(str(part) for part in command)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={"PATH": os.environ["PATH"], **(environment or {})},
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        """Whether it ended by itself."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL to it and its children."""
        self._signal(signal.SIGKILL)
        self._process.wait(_STOP_SECONDS)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that takes longer than twenty seconds."""
        self.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:]

    def _signal(self, number: int) -> None:
        if not self.has_ended():
            os.killpg(self._process.pid, number)
