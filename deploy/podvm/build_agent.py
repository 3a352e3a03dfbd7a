"""Build ``confidential-csi-agent``: one file that a stock Python 3.11 or newer runs, with nothing beside it.

It is a zip archive behind a ``#!`` line: the agent, the code of its contracts, and protobuf in pure Python,
whose C extension could not be imported from an archive. Sources are in it, so that any Python can run it, and
beside them bytecode, which makes the start of the Python it was compiled for (``--python``) two to three
times as fast. The same sources, lock file and Python give the same bytes.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from proto.generate import CONTRACTS

CHECKOUT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = CHECKOUT / "locks/agent.txt"
DEFAULT_TARGET: Final = CHECKOUT / "dist/confidential-csi-agent"

# Isolated, and without site: what else is installed in the image can't change what runs here.
_SHEBANG: Final = b"#!/usr/bin/python3 -IS\n"

# The variable would send protobuf looking for an extension that is not there.
_MAIN: Final = """\
import os
import sys

os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"

from agent.__main__ import main

sys.exit(main())
"""

#: The earliest time that a zip archive can express.
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def build(target: Path, python: str = sys.executable) -> None:
    """Write the file, with bytecode for the interpreter ``python``.

    Raises:
        subprocess.CalledProcessError: protobuf can't be installed from the lock file, or the sources can't
            be compiled.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _install_protobuf(folder)
        _copy_sources(folder)
        _compile(folder, python)
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_suffix(".new")
        _write_archive(folder, new)
        new.chmod(0o755)
        # In one piece: the old file may be running.
        new.replace(target)


def _install_protobuf(folder: Path) -> None:
    """The wheel for any platform, by the hash in the lock file."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--require-hashes", "--no-deps", "--only-binary", ":all:", "--platform", "any"),
            *("--no-compile", "--target", folder, "--requirement", LOCK),
        ],
        check=True,
    )
    # What the installer noted: nobody uninstalls from an archive. License and version stay.
    for noted in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
        for file in folder.glob(f"*.dist-info/{noted}"):
            file.unlink()
    # A regular package: no other "google" of the machine is mixed in.
    (folder / "google/__init__.py").touch()


def _copy_sources(folder: Path) -> None:
    messages = [name.replace(".proto", "_pb2.py") for name, has_grpc in CONTRACTS.items() if not has_grpc]
    for file in (
        *sorted((CHECKOUT / "agent").rglob("*.py")),
        *(CHECKOUT / "proto" / name for name in ("__init__.py", *messages)),
    ):
        copy = folder / file.relative_to(CHECKOUT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    (folder / "__main__.py").write_text(_MAIN)
    # The version, where importlib.metadata looks for it.
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    information = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    shutil.copyfile(CHECKOUT / "LICENSE", information / "LICENSE")


def _compile(folder: Path, python: str) -> None:
    """Bytecode beside each source: valid without a look at the source, and free of this machine's paths."""
    subprocess.run(
        [
            *(python, "-IS", "-m", "compileall", "-q", "-b", "-s", folder),
            *("--invalidation-mode", "unchecked-hash", folder),
        ],
        check=True,
    )


def _write_archive(folder: Path, target: Path) -> None:
    """Sorted, with one time and mode for all, and stored: the bytes do not hang on a compressor's version."""
    with target.open("wb") as file:
        file.write(_SHEBANG)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for source in sorted(path for path in folder.rglob("*") if path.is_file()):
                entry = zipfile.ZipInfo(source.relative_to(folder).as_posix(), _TIME)
                entry.create_system = 3
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, source.read_bytes())


def main(argv: Sequence[str] | None = None) -> None:
    """Build, and say how large it became."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=DEFAULT_TARGET, metavar="FILE")
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="INTERPRETER",
        help="of the version that the image has, to start fastest there (%(default)s)",
    )
    arguments = parser.parse_args(argv)
    if shutil.which(arguments.python) is None:
        parser.error(f"--python (AGENT_PYTHON): there is no interpreter {arguments.python} on this machine")
    build(arguments.into, arguments.python)
    shown = arguments.into.resolve()
    shown = shown.relative_to(Path.cwd()) if shown.is_relative_to(Path.cwd()) else arguments.into
    sys.stdout.write(f"{shown}: {arguments.into.stat().st_size / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main()
