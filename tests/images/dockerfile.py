"""A Dockerfile's stages, read and run without a container engine.

Each stage is a directory of what it changed, on top of its base's: an overlay, in which its RUN instructions
run as they are written. The base image is this machine itself, with Debian's Python as ``python``. There
``apt-get`` does nothing: what it would install is in ``tests/lab/debian-packages.txt`` or the base system.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_PYTHON = "/usr/bin/python3"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: How this machine reaches package indexes.
_PASSED_ON = re.compile(r"PIP_.*|(?:https?|no)_proxy|(?:HTTPS?|NO)_PROXY|SSL_CERT_FILE|REQUESTS_CA_BUNDLE")

#: As root, in a mount namespace of its own: mount what the lines before name, then run the rest in there.
_RUN = """
set -eu
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$UPPER,workdir=$WORK" "$ROOT"
mount --bind /proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
if [ -n "$CACHE" ]; then mkdir -p "$ROOT$CACHE"; mount --bind "$CACHE_FOLDER" "$ROOT$CACHE"; fi
if [ -n "$SOURCE_LOWER" ]; then mount -t overlay overlay -o "lowerdir=$SOURCE_LOWER" "$SOURCE"; fi
"""


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
    """The stages of a file, by name, in order."""

    def __init__(self, text: str) -> None:
        self.stages: dict[str, Stage] = {}
        self.arguments: dict[str, str] = {}
        """Before the first stage."""
        name, base, found = "", "", list[Instruction]()
        for one in _instructions(text):
            if one.word == "FROM":
                self._add(name, base, found)
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
            flags = {}
            while found := re.match(r"--([a-z]+)=(\S+)\s+", rest):
                flags[found[1]], rest = found[2], rest[found.end() :]
            yield Instruction(word.upper(), flags, rest.strip())


class Images:
    """Builds stages of the repository's Dockerfile, each once, below ``folder``; pip's cache is ``cache``."""

    def __init__(self, repository: Path, folder: Path, cache: Path) -> None:
        self.dockerfile = Dockerfile((repository / "Dockerfile").read_text())
        self._repository = repository
        self._folder = folder
        self._cache = cache
        self._built: set[str] = set()

    @cached_property
    def _base(self) -> Path:
        base = self._folder / "base"
        (base / "usr/local/bin").mkdir(parents=True)
        (base / "usr/local/bin/python").symlink_to(_PYTHON)
        apt_get = base / "usr/local/bin/apt-get"
        apt_get.write_text("#!/bin/sh\nexit 0\n")
        apt_get.chmod(0o755)
        return base

    def run(
        self, target: str, command: Sequence[str], *, arguments: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the image, as its user and with its environment."""
        self.build(target)
        (user, group) = self._user(target).split(":")
        identity = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
        variables = {**self._variables(target), **(arguments or {})}
        settings = [f"{name}={value}" for name, value in variables.items()]
        inside = ["env", "-i", *settings, *identity, *command]
        return self._in(target, f'exec chroot "$ROOT" {shlex.join(inside)}', check=False)

    def tree(self, target: str, path: str) -> Path:
        """What the image has at ``path``, as far as its stages made it."""
        self.build(target)
        return self._upper(target) / path.lstrip("/")

    def entry_point(self, target: str) -> list[str]:
        """The command that the image runs."""
        stages = reversed(self.dockerfile.lineage(target))
        found: list[str] = json.loads(next(filter(None, (one.last("ENTRYPOINT") for one in stages))))
        return found

    def build(self, name: str) -> None:
        """Run the stage, and those it needs.

        Raises:
            AssertionError: an instruction failed.
        """
        if name in self._built:
            return
        stage = self.dockerfile.stages[name]
        if stage.base in self.dockerfile.stages:
            self.build(stage.base)
        for path in (self._upper(name), self._folder / f"{name}.work", self._folder / f"{name}.root"):
            path.mkdir(parents=True)
        for one in stage.instructions:
            if one.word == "COPY":
                self._copy(name, one)
            elif one.word == "RUN":
                self._run(name, one)
        self._built.add(name)

    def _run(self, name: str, one: Instruction) -> None:
        cache = ""
        if "mount" in one.flags:
            mount = dict(part.split("=") for part in one.flags["mount"].split(","))
            assert mount["type"] == "cache", one
            cache = mount["target"]
        settings = [f"{key}={value}" for key, value in self._variables(name).items()]
        command = shlex.join(["env", "-i", *settings, "sh", "-c", f"cd {self._workdir(name)}; {one.rest}"])
        done = self._in(name, f'exec chroot "$ROOT" {command}', cache=cache)
        assert done.returncode == 0, f"{name}: {one.rest}\n{done.stdout}{done.stderr}"

    def _copy(self, name: str, one: Instruction) -> None:
        *sources, target = one.rest.split()
        into = Path(self._workdir(name), target)
        if origin := one.flags.get("from"):
            self.build(origin)
            (source,) = sources
            script = f'mkdir -p "$ROOT{into}"; cp -a "$SOURCE{source}/." "$ROOT{into}"'
            done = self._in(name, script, source=origin)
            assert done.returncode == 0, f"{name}: {one}\n{done.stderr}"
        else:
            for source in sources:
                self._copy_context(source, self._upper(name) / str(into).lstrip("/"))

    def _copy_context(self, source: str, into: Path) -> None:
        everything, *patterns = [
            line
            for line in (self._repository / ".dockerignore").read_text().splitlines()
            if line and not line.startswith("#")
        ]
        assert everything == "*"
        allowed = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
        ignored = [Path(pattern).name for pattern in patterns if not pattern.startswith("!")]
        for entry in allowed if source == "." else [source.rstrip("/")]:
            path = self._repository / entry
            target = into / entry if source == "." else into
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, ignore=shutil.ignore_patterns(*ignored), dirs_exist_ok=True)
            else:
                shutil.copyfile(path, target)

    def _in(
        self, name: str, script: str, *, cache: str = "", source: str = "", check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        self._cache.mkdir(parents=True, exist_ok=True)
        (self._folder / "source").mkdir(exist_ok=True)
        below = [self._upper(stage.name) for stage in reversed(self.dockerfile.lineage(name)[:-1])]
        origin = (
            [self._upper(stage.name) for stage in reversed(self.dockerfile.lineage(source))] if source else []
        )
        mounts = {
            "LOWER": ":".join(map(str, [*below, self._base, "/"])),
            "UPPER": str(self._upper(name)),
            "WORK": str(self._folder / f"{name}.work"),
            "ROOT": str(self._folder / f"{name}.root"),
            "CACHE": cache,
            "CACHE_FOLDER": str(self._cache),
            "SOURCE_LOWER": ":".join(map(str, [*origin, self._base, "/"])) if source else "",
            "SOURCE": str(self._folder / "source"),
        }
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", _RUN + script],
            env={"PATH": _PATH, **mounts},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
            timeout=300,
        )

    def _upper(self, name: str) -> Path:
        return self._folder / f"{name}.changes"

    def _workdir(self, name: str) -> str:
        found = [stage.last("WORKDIR") for stage in self.dockerfile.lineage(name)]
        return next(filter(None, reversed(found)), "/")

    def _user(self, name: str) -> str:
        found = [stage.last("USER") for stage in self.dockerfile.lineage(name)]
        return next(filter(None, reversed(found)), "0:0")

    def _variables(self, name: str) -> dict[str, str]:
        variables = {"PATH": _PATH, "HOME": "/root"}
        variables |= {key: value for key, value in os.environ.items() if _PASSED_ON.fullmatch(key)}
        for stage in self.dockerfile.lineage(name):
            for one in stage.instructions:
                if one.word in ("ENV", "ARG"):
                    for pair in shlex.split(one.rest):
                        key, _, value = pair.partition("=")
                        variables[key] = value.replace("$PATH", variables["PATH"])
        return variables
