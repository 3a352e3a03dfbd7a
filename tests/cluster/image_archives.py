"""Images of the project's Dockerfile as archives that containerd takes.

The stages are run by :mod:`tests.images.stages`. In place of the Python image that the Dockerfile names,
an image gets this machine's Python: interpreter, standard library, the shared libraries that these and the
installed packages link to, and nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.oci import Image, layer_of_files, layer_of_folder, write_archive
from tests.images.stages import Images
from tests.tools.go_programs import CACHE
from tests.tools.own_folders import own_folder

CHECKOUT = Path(__file__).resolve().parents[2]

_PYTHON = "/usr/bin/python3"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Of the standard library, what neither the driver nor its packages use.
_LEFT_OUT = {"test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "dist-packages"}
#: How many builds stay in the cache: those of a few checkouts.
_KEPT = 4
#: What the images depend on.
_SOURCES = (
    *("Dockerfile", ".dockerignore", "pyproject.toml", "setup.py", "locks", "proto"),
    "deploy/charts/confidential-csi/values.schema.json",
)
_PACKAGES = ("driver", "providers", "agent", "cli")


def image_archives(names: Mapping[str, str]) -> dict[str, Path]:
    """Archives, in the user's cache, of images of the project's Dockerfile, built if need be.

    Args:
        names: stage to the image's name, with registry and tag.

    Returns:
        stage to archive.
    """
    digest = hashlib.sha256(f"{sorted(names.items())}".encode())
    for file in _sources():
        digest.update(f"{file.relative_to(CHECKOUT)}\0".encode() + file.read_bytes())
    folder = CACHE / "images" / digest.hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second test process waits, and finds the archives
        if not folder.exists():
            _build(folder, names)
    return {stage: folder / f"{stage}.tar" for stage in names}


def _build(folder: Path, names: Mapping[str, str]) -> None:
    # In memory, since the upper folder of an overlay can't lie in its own lower file system.
    with (
        own_folder("stages") as stages,
        own_folder("scratch", folder.parent) as scratch,
    ):
        images = Images(CHECKOUT, stages, CACHE / "pip")
        archives = scratch / "archives"
        archives.mkdir()
        for stage, name in names.items():
            write_archive(archives / f"{stage}.tar", [_image(images, stage, name, scratch)])
        archives.rename(folder)
    others = (other for other in folder.parent.iterdir() if other.is_dir())
    for old in sorted(others, key=lambda other: other.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old)


def _sources() -> list[Path]:
    found = [CHECKOUT / name for name in _SOURCES if (CHECKOUT / name).is_file()]
    for folder in (CHECKOUT / name for name in (*_SOURCES, *_PACKAGES)):
        found += [file for file in folder.rglob("*") if file.is_file() and "_pb2" not in file.name]
    found += [Path(__file__), Path(__file__).with_name("oci.py"), *(CHECKOUT / "tests/images").glob("*.py")]
    return sorted(file for file in found if "__pycache__" not in file.parts)


def _image(images: Images, stage: str, name: str, scratch: Path) -> Image:
    images.build(stage)
    lineage = images.dockerfile.lineage(stage)
    layers = [_python(images, stage, scratch / f"{stage}-python.tar")]
    environment = {"PATH": _PATH}
    for one in lineage:
        layers.append(layer_of_folder(scratch / f"{stage}-{one.name}.tar", images.tree(one.name, "/")))
        for instruction in one.instructions:
            if instruction.word == "ENV":
                for setting in shlex.split(instruction.rest):
                    key, _, value = setting.partition("=")
                    environment[key] = value.replace("$PATH", environment["PATH"])
    user = images.dockerfile.stages[stage].last("USER")
    return Image(name, layers, images.entry_point(stage), environment, user)


def _python(images: Images, stage: str, archive: Path) -> Path:
    """A layer with Python itself, and every shared library that it and the installed packages need."""
    print_place = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    place = subprocess.run([_PYTHON, "-c", print_place], capture_output=True, text=True, check=True).stdout
    library = [file for file in Path(place.strip()).rglob("*") if file.is_file() and _is_used(file)]
    linked = [str(file) for file in library if file.suffix == ".so"]
    for one in images.dockerfile.lineage(stage):
        changes = images.tree(one.name, "/")
        linked += [f"/{file.relative_to(changes)}" for file in changes.rglob("*.so*") if file.is_file()]
    # It fails if one of them needs no library.
    printed = images.run(stage, ["ldd", _PYTHON, *linked]).stdout
    needed = re.findall(r"(?:=> |^\s+)(/\S+) \(0x", printed, flags=re.MULTILINE)
    files = {str(file): file for file in (Path(_PYTHON), *library, *map(Path, needed))}
    return layer_of_files(archive, files, {"/usr/local/bin/python": _PYTHON})


def _is_used(file: Path) -> bool:
    parts = set(file.parts)
    return not _LEFT_OUT & parts and not any(part.startswith("config-") for part in parts)
