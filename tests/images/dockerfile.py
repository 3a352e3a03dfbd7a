"""Reads a Dockerfile: its stages, their instructions, and what its build context holds."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Those that are understood here.
_WORDS = frozenset({"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT"})


@dataclass(frozen=True)
class Instruction:
    """One instruction: its word in capitals, its flags (``--from=…``), and the rest as written."""

    word: str
    flags: Mapping[str, str]
    rest: str


@dataclass(frozen=True)
class Stage:
    """From one FROM to the next."""

    name: str
    base: str
    """Another stage, or an image."""
    instructions: tuple[Instruction, ...]

    def last(self, word: str) -> str:
        """The last instruction of that kind; empty if there is none."""
        return next((one.rest for one in reversed(self.instructions) if one.word == word), "")


class Dockerfile:
    """The stages of a file, by name, in order.

    Raises:
        ValueError: it has an instruction that is not understood here, or a stage without a name.
    """

    def __init__(self, text: str) -> None:
        self.stages: dict[str, Stage] = {}
        self.arguments: dict[str, str] = {}
        """Before the first stage."""
        name, base, found = "", "", list[Instruction]()
        for one in _instructions(text):
            if one.word == "FROM":
                self._add(name, base, found)
                if not re.fullmatch(r"\S+ AS \S+", one.rest):
                    raise ValueError(f"Dockerfile: a stage without a name: FROM {one.rest}")
                (base, _, name), found = one.rest.split(), []
            elif not name:
                assert one.word == "ARG", one
                key, _, value = one.rest.partition("=")
                self.arguments[key] = value
            else:
                found.append(one)
        self._add(name, base, found)

    def _add(self, name: str, base: str, found: Sequence[Instruction]) -> None:
        if name:
            self.stages[name] = Stage(name, base, tuple(found))

    def lineage(self, name: str) -> list[Stage]:
        """A stage and those it is built on, the first one first."""
        stage = self.stages[name]
        before = self.lineage(stage.base) if stage.base in self.stages else []
        return [*before, stage]


def _instructions(text: str) -> Iterator[Instruction]:
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n", "", lines).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            if word not in _WORDS:
                raise ValueError(f"Dockerfile: {word} is not understood here")
            flags = {}
            while found := re.match(r"--([a-z]+)=(\S+)\s+", rest):
                flags[found[1]], rest = found[2], rest[found.end() :]
            yield Instruction(word, flags, rest.strip())


def copy_context(repository: Path, source: str, into: Path) -> None:
    """Copy ``source`` of the build context, as ``.dockerignore`` leaves it, to ``into``.

    Raises:
        ValueError: the file does not begin with ``*`` (here, it names what is let in).
    """
    lines = (repository / ".dockerignore").read_text().splitlines()
    everything, *patterns = [line for line in lines if line and not line.startswith("#")]
    if everything != "*":
        raise ValueError(".dockerignore: expected * as its first line")
    allowed = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    ignored = [Path(pattern).name for pattern in patterns if not pattern.startswith("!")]
    for entry in allowed if source == "." else [source.rstrip("/")]:
        path = repository / entry
        target = into / entry if source == "." else into
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target, ignore=shutil.ignore_patterns(*ignored), dirs_exist_ok=True)
        else:
            shutil.copyfile(path, target)
