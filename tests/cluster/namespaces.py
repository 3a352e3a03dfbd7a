"""Namespaces in which a worker node runs beside everything else, and which take all of it along at their end.

Processes, mounts and network are the worker's own; what it keeps below ``/run`` and ``/var`` is in its
folder. The one process that holds the namespaces waits for the end of its standard input: when the test run
ends, even by SIGKILL, the kernel ends kubelet, containerd and all containers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from tests.tools.own_folders import own_folder

#: What kubelet wants of the machine. It finds and writes files in their place, and changes nothing.
_TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}

# Arguments: the worker's folder, its addresses as one, then visible files.
_HOLDER = """\
set -eu
folder=$1 addresses=$2
shift 2
for tunable in {tunables}; do
  mount --bind "$folder/tunables/$tunable" "/proc/sys/$tunable"
done
for program; do
  mount --bind "$program" "$folder/bin/${{program##*/}}"
done
mount -t tmpfs tmpfs "$folder/scratch"
mount --rbind "$folder/var" /var
mount --rbind "$folder/run" /run
mount --make-rshared /
ip link set lo up
for address in $addresses; do
  ip address add "$address/32" dev lo
done
echo ready
exec cat >/dev/null
""".format(tunables=" ".join(_TUNABLES))


class CommandFailed(RuntimeError):
    """A command in the worker failed; what it printed is in the message."""


class Namespaces:
    """A context manager around the namespaces of one worker.

    Args:
        programs: files that are to be found as ``<folder>/bin/<name>`` inside, wherever they are.
        addresses: IP addresses that the worker has; nobody else sees them.
    """

    def __init__(self, programs: Sequence[Path], addresses: Iterable[str]) -> None:
        self._programs = programs
        self._addresses = " ".join(addresses)
        self._started: list[Inside] = []
        self._ends = ExitStack()

    def __enter__(self) -> Namespaces:
        if os.geteuid() != 0:
            raise PermissionError("the worker needs root: namespaces, mounts and containers")
        with self._ends:
            # The paths of sockets are short.
            self.folder = self._ends.enter_context(own_folder("node", Path("/tmp").resolve()))
            self._hold()
            self._ends = self._ends.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ends.close()

    def _hold(self) -> None:
        for name in ("var/lib", "var/log", "var/tmp", "run", "bin", "scratch"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "var/run").symlink_to("/run")
        for name, value in _TUNABLES.items():
            file = self.folder / "tunables" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
        for program in self._programs:
            (self.folder / "bin" / program.name).touch()
        command = ["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork"]
        command += ["--kill-child", "--mount-proc", "sh", "-c", _HOLDER, "holder"]
        self._holder = subprocess.Popen(
            [*command, self.folder, self._addresses, *self._programs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._ends.callback(self._end)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            raise RuntimeError("the worker's namespaces can't be made; standard error says why")
        self._first = _only_child(self._holder.pid)

    def command(self, *arguments: str | Path) -> list[str | Path]:
        """The command line that runs ``arguments`` in the namespaces."""
        enter = ["nsenter", "--target", str(self._first), "--mount", "--net", "--pid"]
        # It is the end of nsenter that ends what it started.
        return [*enter, "--wd=/", "setpriv", "--pdeathsig", "KILL", *arguments]

    def start(self, log: str, *arguments: str | Path) -> Inside:
        """Start a program inside; what it prints goes to ``<folder>/<log>.log``."""
        file = self.folder / f"{log}.log"
        with file.open("ab") as stream:
            process = subprocess.Popen(
                self.command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=_environment(),
            )
        started = Inside(process, file)
        self._started.append(started)
        return started

    def run(self, *arguments: str | Path, timeout: float = 300.0) -> str:
        """Run a program inside to its end; its standard output.

        Raises:
            CommandFailed: its exit code is not 0.
        """
        command = self.command(*arguments)
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode:
            raise CommandFailed(f"{arguments} ended with {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def outside(self, path: str) -> Path:
        """A file below ``/run`` or ``/var`` of the worker, as others find it."""
        return self.folder / path.lstrip("/")

    def _end(self) -> None:
        """End all that runs inside."""
        for started in reversed(self._started):
            started.kill()
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait(timeout=60)


class Inside:
    """A program that was started in the namespaces."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log

    def is_running(self) -> bool:
        return self._process.poll() is None

    def terminate(self, seconds: float = 60.0) -> int:
        """SIGTERM, and its exit code."""
        os.kill(_only_child(self._process.pid), signal.SIGTERM)
        return self._process.wait(seconds)

    def kill(self) -> None:
        """SIGKILL."""
        if self.is_running():
            self._process.kill()
            self._process.wait(60)


def _environment() -> dict[str, str]:
    """No proxy of this machine, which does not lead into the worker's network."""
    return {"PATH": os.environ["PATH"]}


def _only_child(pid: int) -> int:
    deadline = time.monotonic() + 30
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} has not started its child")
        time.sleep(0.01)
