"""Long-running programs of a cluster: started, stopped, and their logs kept."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

#: From SIGTERM to SIGKILL.
STOP_SECONDS = 20.0


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
        """SIGKILL to it and its children, also to those that outlived it."""
        self._signal(signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    def terminate(self) -> None:
        """SIGTERM to it and its children, without waiting."""
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what is there twenty seconds later."""
        self.terminate()
        give_up = time.monotonic() + STOP_SECONDS
        while self.is_there() and time.monotonic() < give_up:
            time.sleep(0.05)
        self.kill()

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:]

    def is_there(self) -> bool:
        """Whether it or a child of it has not ended yet."""
        self._process.poll()  # or its remains would count
        return self._signal(0)

    def _signal(self, number: int) -> bool:
        """Whether a process of the group was there to get it."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True
