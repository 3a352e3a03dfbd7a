"""Builds images by the instructions of the project's Dockerfile, without a container engine.

Each stage is a file system laid over this machine's root, in which the instructions run as they stand. In
place of the Python image that the Dockerfile names, an image gets this machine's own Python: interpreter,
standard library, the shared libraries that these and the installed packages link to, and nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.oci import Image, layer_of_files, layer_of_folder, write_archive
from tests.images import dockerfile
from tests.images.dockerfile import Dockerfile, Instruction, Stage, copy_context
from tests.tools.go_programs import CACHE

CHECKOUT = Path(__file__).resolve().parents[2]

_BASE = "${PYTHON_IMAGE}"
_PREFIX = Path("/usr/local")  # where the Python image has its Python
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
#: Of it, what neither the driver nor its packages use.
_LEFT_OUT = {
    *("test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "site-packages", "dist-packages"),
    f"config-{sys.version_info.major}.{sys.version_info.minor}-x86_64-linux-gnu",
}
#: How many builds stay in the cache: those of a few checkouts.
_KEPT = 4
#: What the images depend on.
_SOURCES = (
    *("Dockerfile", ".dockerignore", "pyproject.toml", "setup.py", "locks", "proto"),
    "deploy/charts/confidential-csi/values.schema.json",
)
_PACKAGES = ("driver", "providers", "agent", "cli")


def image_archives(images: Mapping[str, str]) -> dict[str, Path]:
    """Archives, in the user's cache, of images of the project's Dockerfile, built if need be.

    Args:
        images: stage to the image's name, with registry and tag.

    Returns:
        stage to archive.
    """
    arguments = [f"{stage}={name}" for stage, name in images.items()]
    digest = hashlib.sha256("\0".join([sys.version, *arguments]).encode())
    for file in _sources():
        digest.update(f"{file.relative_to(CHECKOUT)}\0".encode() + file.read_bytes())
    folder = CACHE / "images" / digest.hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second test process waits, and finds the archives
        if not folder.exists():
            _build(folder, arguments)
    return {stage: folder / f"{stage}.tar" for stage in images}


def _build(folder: Path, arguments: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        build = [sys.executable, "-m", "tests.cluster.dockerfile", scratch, *arguments]
        unshare = ["unshare", "--mount", "--propagation", "private"]
        subprocess.run([*unshare, *build], cwd=CHECKOUT, check=True, stdout=sys.stderr)
        Path(scratch, "images").rename(folder)
    others = (other for other in folder.parent.iterdir() if other.is_dir())
    for old in sorted(others, key=lambda other: other.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old)


def _sources() -> list[Path]:
    found = [CHECKOUT / name for name in _SOURCES if (CHECKOUT / name).is_file()]
    for folder in (CHECKOUT / name for name in (*_SOURCES, *_PACKAGES)):
        found += [file for file in folder.rglob("*") if file.is_file() and "_pb2" not in file.name]
    found += [Path(__file__), Path(__file__).with_name("oci.py"), Path(dockerfile.__file__)]
    return sorted(file for file in found if "__pycache__" not in file.parts)


class _Builder:
    """Runs stages, in a mount namespace of its own that takes the mounts along."""

    def __init__(self, stages: Mapping[str, Stage], scratch: Path) -> None:
        self._stages = stages
        self._scratch = scratch
        self._built: dict[str, _Built] = {_BASE: self._python()}

    def build(self, name: str) -> _Built:
        """Run a stage, and those it comes from."""
        if name not in self._built:
            stage = self._stages[name]
            below = self.build(stage.base)
            for one in stage.instructions:
                if "from" in one.flags:
                    self.build(one.flags["from"])
            folder = self._scratch / name
            for part in ("upper", "work", "root"):
                (folder / part).mkdir(parents=True)
            built = _Built(folder / "root", (folder / "upper", *below.layers), dict(below.settings))
            lower = ":".join(map(str, (*below.layers, "/")))
            overlay = f"lowerdir={lower},upperdir={folder / 'upper'},workdir={folder / 'work'}"
            _run("mount", "-t", "overlay", "-o", overlay, "overlay", built.root)
            _run("mount", "--rbind", "/dev", built.root / "dev")
            _run("mount", "--bind", "/proc", built.root / "proc")
            _run("mount", "-t", "tmpfs", "tmpfs", built.root / "tmp")
            _run("mount", "--bind", _STANDARD_LIBRARY, built.root / _library().relative_to("/"))
            for one in stage.instructions:
                self._do(built, one)
            self._built[name] = built
        return self._built[name]

    def _python(self) -> _Built:
        layer = self._scratch / "python"
        programs = layer / _PREFIX.relative_to("/") / "bin"
        programs.mkdir(parents=True)
        (layer / _library().relative_to("/")).mkdir(parents=True)
        interpreter = Path(sys.executable).resolve()
        shutil.copy(interpreter, programs / _library().name)
        for name in ("python3", "python"):
            (programs / name).symlink_to(_library().name)
        return _Built(layer, (layer,), {"PATH": _PATH, "WORKDIR": "/"})

    def _do(self, built: _Built, one: Instruction) -> None:
        if one.word == "RUN":
            self._run_inside(built, one)
        elif one.word == "WORKDIR":
            (built.root / one.rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            built.settings["WORKDIR"] = one.rest
        elif one.word == "COPY":
            source, target = one.rest.split()
            place = built.root / Path(built.settings["WORKDIR"], target).relative_to("/")
            if "from" in one.flags:
                origin = self._built[one.flags["from"]].root / source.lstrip("/")
                shutil.copytree(origin, place, symlinks=True, dirs_exist_ok=True)
            else:
                copy_context(CHECKOUT, source, place)
        elif one.word == "ENV":
            for setting in shlex.split(one.rest):
                name, _, value = setting.partition("=")
                built.settings[name] = string.Template(value).substitute(built.settings)
        elif one.word == "ARG":
            name, _, value = one.rest.partition("=")
            built.arguments[name] = value
        else:
            built.settings[one.word] = one.rest

    def _run_inside(self, built: _Built, one: Instruction) -> None:
        environment = {**os.environ, **built.arguments, "PATH": built.settings["PATH"]}
        for name in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"):
            environment.pop(name, None)
        if "mount" in one.flags:  # a cache, here pip's
            kept, shown = CACHE / "pip", built.root / one.flags["mount"].rpartition("target=/")[2]
            for folder in (kept, shown):
                folder.mkdir(parents=True, exist_ok=True)
            _run("mount", "--bind", kept, shown)
        command = f"set -e; cd {shlex.quote(built.settings['WORKDIR'])}; {one.rest}"
        _run("chroot", built.root, "/bin/sh", "-c", command, environment=environment)
        if "mount" in one.flags:
            _run("umount", shown)


@dataclass(frozen=True)
class _Built:
    """A stage that ran: its root, what it and those before it wrote (the last first), and its settings."""

    root: Path
    layers: tuple[Path, ...]
    settings: dict[str, str]
    arguments: dict[str, str] = field(default_factory=dict)


def _library() -> Path:
    return _PREFIX / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def _base_layer(built: _Built, archive: Path) -> Path:
    """Python itself, and every shared library that it and the installed packages need."""
    library = [file for file in _STANDARD_LIBRARY.rglob("*") if file.is_file() and _is_used(file)]
    files = {str(_library() / file.relative_to(_STANDARD_LIBRARY)): file for file in library}
    linked = [name for name in files if ".so" in Path(name).name]
    for layer in built.layers:
        linked += [f"/{file.relative_to(layer)}" for file in layer.rglob("*.so*") if file.is_file()]
    interpreter = str(_PREFIX / "bin" / _library().name)
    printed = _run("chroot", built.root, "ldd", interpreter, *linked)
    needed = set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", printed, flags=re.MULTILINE))
    return layer_of_files(archive, {**files, **{name: Path(name) for name in needed}})


def _is_used(file: Path) -> bool:
    return not _LEFT_OUT & set(file.relative_to(_STANDARD_LIBRARY).parts)


def _run(*command: str | Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    # ldd fails if one of the files needs no library.
    if done.returncode and "ldd" not in command:
        raise RuntimeError(f"{shlex.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _image(builder: _Builder, stage: str, name: str, scratch: Path) -> Image:
    built = builder.build(stage)
    layers = [_base_layer(built, scratch / f"{stage}-base.tar")]
    for number, folder in enumerate(reversed(built.layers)):
        layers.append(layer_of_folder(scratch / f"{stage}-{number}.tar", folder))
    settings = {name: value for name, value in built.settings.items() if name != "WORKDIR"}
    entrypoint, user = json.loads(settings.pop("ENTRYPOINT")), settings.pop("USER")
    return Image(name, layers, entrypoint, settings, user)


def _main(into: Path, images: Mapping[str, str]) -> None:
    scratch = into / "scratch"
    scratch.mkdir()
    # The upper folder of an overlay can't lie in its own lower file system.
    _run("mount", "-t", "tmpfs", "tmpfs", scratch)
    builder = _Builder(Dockerfile((CHECKOUT / "Dockerfile").read_text()).stages, scratch)
    (into / "images").mkdir()
    for stage, name in images.items():
        write_archive(into / "images" / f"{stage}.tar", [_image(builder, stage, name, scratch)])
    _run("umount", "-R", scratch)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), dict(argument.split("=", 1) for argument in sys.argv[2:]))
