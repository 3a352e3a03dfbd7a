"""Runs the commands of one page in one bash, in a directory that looks like a clone of the repository.

Only named programs are there: real ones (:data:`REAL`, and this project's own tools), and stand-ins for
those that change a cluster, a cloud or this machine, which note how they were called. In a block that is
only played, every program is a stand-in. The key broker that ``curl`` reaches is the one of
:mod:`tests.docs.broker`, and pytest only collects.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.docs.broker import ADMIN, Broker
from tests.docs.pages import SHELLS, TOP, Block, Command
from tests.docs.stand_ins import CHECKS

REAL: Final = (
    *(
        "awk",
        "base64",
        "cat",
        "chmod",
        "cp",
        "cryptsetup",
        "curl",
        "cut",
        "date",
        "dd",
        "diff",
        "grep",
        "gzip",
        "head",
        "id",
    ),
    *(
        "install",
        "ls",
        "mkdir",
        "mktemp",
        "mv",
        "openssl",
        "rm",
        "sed",
        "sha256sum",
        "sleep",
        "sort",
        "stat",
        "tail",
    ),
    *("tar", "tee", "touch", "tr", "truncate", "uniq", "wc"),
)
#: They serve until they are stopped.
_ROLES: Final = ("attach-libvirt", "controller", "node")
_SECONDS: Final = 400
_BEGIN, _END = "\x1e", "\x1f"

_PLAY = """\
#!/bin/bash
printf '%s\\0' "$#" "${0##*/}" "$@" >>"$CALLS"
if [ -p /dev/stdin ]; then /bin/cat >/dev/null; fi
"""
_OWN = """\
#!/bin/bash
printf '%s\\0' "$#" "${{0##*/}}" "$@" >>"$OWN_CALLS"
case "$1" in {roles}) exit 0;; esac
exec {program} "$@"
"""
_SCRIPTS: Final = {
    # What a person types there.
    "editor": f"#!/bin/bash\nprintf 'Authorization: %s\\n' '{ADMIN}' >>\"$1\"\n",
    # Encrypting takes a keyring; what matters to a page is that bytes come back as they were.
    "gpg": """\
#!/bin/bash
case "$1" in
--encrypt) [ "$2 $4" = "--recipient --output" ] && cat >"$5" ;;
--decrypt) cat "$2" ;;
*) exit 2 ;;
esac
""",
}
_PROLOGUE = """\
set -o pipefail
command_not_found_handle() {
  if [ "$PATH" != "$NOTHING" ]; then echo "nothing plays $1: tests/docs/stand_ins.py" >&2; return 127; fi
  printf '%s\\0' "$(($# - 1))" "$@" >>"$CALLS"
  if [ -p /dev/stdin ]; then /bin/cat >/dev/null; fi
}
cd() { if [ "$PATH" != "$NOTHING" ]; then builtin cd "$@"; fi; }
"""


@dataclass(frozen=True)
class Ran:
    """A command, its exit status, what it printed, and the calls (program, arguments) of programs.

    ``own_calls`` are those of this project's real programs, ``calls`` those of stand-ins.
    """

    block: Block
    command: Command
    status: int
    output: str
    calls: tuple[tuple[str, ...], ...]
    own_calls: tuple[tuple[str, ...], ...]


class Sandbox:
    """A directory with nothing but links to what is in the repository, below ``directory``."""

    def __init__(self, directory: Path, broker: Broker) -> None:
        self.work = directory / "clone"
        self.work.mkdir()
        for entry in TOP.iterdir():
            (self.work / entry.name).symlink_to(entry)
        (self.work / ".curlrc").write_text(broker.settings)
        self._programs = directory / "programs"
        self._programs.mkdir()
        (directory / "nothing").mkdir()
        for name in REAL:
            (self._programs / name).symlink_to(str(shutil.which(name)))
        for name in CHECKS:
            self._program(name, _PLAY)
        for name, text in _SCRIPTS.items():
            self._program(name, text)
        for name in ("confidential-csi", "confidential-csi-agent"):
            real = Path(sys.executable).with_name(name)
            self._program(name, _OWN.format(roles="|".join(_ROLES), program=real))
        self._directory = directory

    def run(self, blocks: Sequence[Block]) -> list[Ran]:
        """Write the files among ``blocks``, then run the commands, but for those that another test runs."""
        for block in blocks:
            if block.title is not None and block.language not in SHELLS:
                file = self.work / block.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text)
        run_here = [block for block in blocks if block.language in SHELLS and block.run_by is None]
        steps = [(block, command) for block in run_here for command in block.commands()]
        for log in ("calls", "own-calls"):
            (self._directory / log).touch()
        script = self._directory / "page.sh"
        script.write_text(_PROLOGUE + "".join(self._step(block, command) for block, command in steps))
        finished = subprocess.run(
            ["/bin/bash", script],
            cwd=self.work,
            env={
                "CALLS": str(self._directory / "calls"),
                "OWN_CALLS": str(self._directory / "own-calls"),
                "EDITOR": "editor",
                "HOME": str(self.work),
                "LC_ALL": "C.UTF-8",
                "NOTHING": str(self._directory / "nothing"),
                "PATH": str(self._programs),
                "PROGRAMS": str(self._programs),
                "PYTEST_ADDOPTS": "--collect-only --quiet",
                "STEP": str(self._directory / "step"),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
        printed = finished.stdout.split(_BEGIN)[1:]
        assert len(printed) == len(steps), f"bash ended early: {finished.stdout[-2000:]}"
        calls = _calls_of_steps(self._directory / "calls", len(steps))
        own_calls = _calls_of_steps(self._directory / "own-calls", len(steps))
        ran = []
        for number, (block, command) in enumerate(steps):
            output, _, status = printed[number].partition(_END)
            ran.append(Ran(block, command, int(status), output, calls[number], own_calls[number]))
        return ran

    def _step(self, block: Block, command: Command) -> str:
        path = "$NOTHING" if block.played else "$PROGRAMS"
        return (
            f"printf '{_BEGIN}'; printf '%s\\0' step >>\"$CALLS\"; printf '%s\\0' step >>\"$OWN_CALLS\"\n"
            f"PATH={path}\neval {shlex.quote(command.text)}\nprintf '{_END}%d' $?\n"
        )

    def _program(self, name: str, text: str) -> None:
        program = self._programs / name
        program.write_text(text)
        program.chmod(0o755)


def _calls_of_steps(log: Path, steps: int) -> list[tuple[tuple[str, ...], ...]]:
    """The calls of each step.

    The log has the word ``step`` before each, and a call as its number of arguments, the program, the
    arguments.
    """
    words = iter(log.read_text().split("\0")[:-1])
    found: list[list[tuple[str, ...]]] = []
    for word in words:
        if word == "step":
            found.append([])
        else:
            found[-1].append(tuple(next(words) for _ in range(int(word) + 1)))
    assert len(found) == steps
    return [tuple(calls) for calls in found]
