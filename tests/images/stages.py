"""A Dockerfile's stages, run without a container engine.

Each stage is a directory of what it changed, on top of its base's: an overlay, in which its RUN instructions
run as they are written. The base image is this machine itself, with Debian's Python as ``python``. There
``apt-get`` does nothing: what it would install is in ``tests/lab/debian-packages.txt`` or the base system.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from tests.images.dockerfile import Dockerfile, Instruction, copy_context

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
        return self._in(target, f'exec chroot "$ROOT" {shlex.join(inside)}')

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
        mask = os.umask(0o022)  # as builders have it
        try:
            for path in (self._upper(name), self._folder / f"{name}.work", self._folder / f"{name}.root"):
                path.mkdir(parents=True)
            for one in stage.instructions:
                if one.word == "COPY":
                    self._copy(name, one)
                elif one.word == "RUN":
                    self._run(name, one)
        finally:
            os.umask(mask)
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
                copy_context(self._repository, source, self._upper(name) / str(into).lstrip("/"))

    def _in(
        self, name: str, script: str, *, cache: str = "", source: str = ""
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
            check=False,
            timeout=900,
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
