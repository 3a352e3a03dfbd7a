"""Running the system's tools: argument lists, a bounded wait, bytes on stdin, nothing secret in an error."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.errors import Unavailable

_UDEV_SOCKET = Path("/run/udev/control")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TAIL_CHARACTERS = 300


@dataclass(frozen=True)
class Result:
    """What a tool printed, and its exit code, one of those the caller said it expects."""

    code: int
    output: str


class Runner(Protocol):
    """Runs one tool to its end: the seam at which tests cut the agent short."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        expected: Collection[int] = (0,),
        timeout: float = 60.0,
        pass_fds: Sequence[int] = (),
    ) -> Result:
        """Run ``argv`` for at most ``timeout`` seconds with ``stdin`` and the descriptors ``pass_fds``.

        Raises:
            Unavailable: the tool is missing, was killed for its time (``tool-timeout``), or exited with a
                code that is not in ``expected`` (``tool-failed``).
        """


class SystemRunner:
    """Runs the tools of the machine."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        expected: Collection[int] = (0,),
        timeout: float = 60.0,
        pass_fds: Sequence[int] = (),
    ) -> Result:
        # Subcommands and options, never key bytes: those travel on stdin only.
        shown = " ".join(argv[:2])
        try:
            done = subprocess.run(
                argv,
                input=stdin,
                capture_output=True,
                timeout=timeout,
                pass_fds=pass_fds,
                env=_environment(),
                check=False,
            )
        except FileNotFoundError:
            raise Unavailable("tool-missing", f"{argv[0]} is not installed in this guest") from None
        except subprocess.TimeoutExpired:
            raise Unavailable("tool-timeout", f"{shown} did not end within {timeout:g} s") from None
        if done.returncode not in expected:
            printed = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
            raise Unavailable(
                "tool-failed", f"{shown} exited with {done.returncode}: {printed[-_TAIL_CHARACTERS:]}"
            )
        return Result(done.returncode, done.stdout.decode("utf-8", "replace"))


def _environment() -> dict[str, str]:
    environment = {"PATH": os.environ.get("PATH", _DEFAULT_PATH), "LC_ALL": "C"}
    if not _UDEV_SOCKET.exists():
        # libdevmapper would wait for ever for a udev that is not there to finish.
        environment["DM_DISABLE_UDEV"] = "1"
    return environment
