"""The files that lint reads: those that are named, those in named directories, and standard input."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.lint.yaml_reader import MAXIMUM_BYTES

STDIN: Final = "-"

_YAML: Final = (".yaml", ".yml")
_TOML: Final = ".toml"
_JSON: Final = ".json"
_FIRST_LINE: Final = re.compile(rb"^\s*(?:#[^\n]*\n\s*)*(?P<line>[^\n]*)")
_TOML_START: Final = re.compile(rb"""\[|["'A-Za-z0-9_.-]+\s*=""")


class Unreadable(Exception):
    """A file can't be read. Says which and why."""


@dataclass(frozen=True)
class Source:
    """A file's content."""

    name: str
    text: bytes
    is_named: bool
    """Whether the caller named it, and did not find it in a directory."""

    @property
    def is_toml(self) -> bool:
        """By its name; where that says nothing, by how it begins."""
        suffix = Path(self.name).suffix.lower()
        if suffix in (*_YAML, _JSON, _TOML):
            return suffix == _TOML
        first = _FIRST_LINE.match(self.text)
        return first is not None and _TOML_START.match(first["line"]) is not None

    @property
    def yaml_text(self) -> bytes:
        """JSON is YAML but for tabs between its parts, and it has no others."""
        return self.text.replace(b"\t", b" ") if self.name.lower().endswith(_JSON) else self.text


def read_sources(names: Sequence[str]) -> Iterator[Source | Unreadable]:
    """Each file once, in the order given; those of a directory by their names.

    Of a directory, hidden ones and the templates of a Helm chart are left out: they are no manifests yet.
    """
    seen: set[tuple[int, int]] = set()
    for name in names:
        if name == STDIN:
            yield Source(STDIN, sys.stdin.buffer.read(MAXIMUM_BYTES + 1), is_named=True)
            continue
        path = Path(name)
        is_directory = path.is_dir()
        failures: list[OSError] = []
        for file in _files_below(path, failures.append) if is_directory else [path]:
            try:
                status = file.stat()
                identity = (status.st_dev, status.st_ino)
                if identity not in seen:
                    seen.add(identity)
                    text = _read(file, status.st_mode, is_named=not is_directory)
                    yield Source(str(file), text, is_named=not is_directory)
            except OSError as error:
                yield Unreadable(f"{file}: {error.strerror}")
        yield from (Unreadable(f"{failure.filename}: {failure.strerror}") for failure in failures)


def _read(file: Path, mode: int, *, is_named: bool) -> bytes:
    """The content, up to a byte more than is looked at; of a pipe or a device only if the caller named it."""
    if not (is_named or stat.S_ISREG(mode)):
        raise OSError(None, "neither a file nor a link to one")
    with file.open("rb") as stream:
        return stream.read(MAXIMUM_BYTES + 1)


def _files_below(directory: Path, note: Callable[[OSError], None]) -> Iterator[Path]:
    for root, directories, files in os.walk(directory, onerror=note):
        is_chart = "Chart.yaml" in files
        directories[:] = sorted(
            one for one in directories if not (one.startswith(".") or (is_chart and one == "templates"))
        )
        for file in sorted(files):
            if not file.startswith(".") and Path(file).suffix.lower() in (*_YAML, _TOML):
                yield Path(root, file)
