"""Container images as archives, written without a container engine (OCI image layout 1.0)."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class Image:
    """What an image holds and how it starts.

    Attributes:
        name: as containers name it, with registry and tag.
        layers: tar archives, the lowest first.
        entrypoint, environment, user: as in a Dockerfile.
    """

    name: str
    layers: Sequence[Path]
    entrypoint: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""


def layer_of_files(archive: Path, files: Mapping[str, Path], links: Mapping[str, str] | None = None) -> Path:
    """A layer that holds files of this machine and links, by their paths in the image, and an empty ``/tmp``.

    A path through a link of this machine's root, as ``/lib`` is one, leads through the same link there.
    """
    with tarfile.open(archive, "w") as tar:
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)
        for link in ("bin", "lib", "lib64", "sbin"):
            if Path("/", link).is_symlink():
                tar.add(Path("/", link), link)
        for path, aim in (links or {}).items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, aim
            tar.addfile(entry)
        for path, file in sorted(files.items()):
            first, _, rest = path.lstrip("/").partition("/")
            place = Path("/", first).readlink() / rest if Path("/", first).is_symlink() else path.lstrip("/")
            tar.add(file.resolve(), str(place), filter=_of_root)
    return archive


def layer_of_folder(archive: Path, folder: Path) -> Path:
    """A layer of what an overlay's upper folder holds.

    Passwords of this machine's users, which come with a new user, are left out.

    Raises:
        ValueError: something of the file systems below was removed, which is not needed yet.
    """

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(entry.name).name.rstrip("-") in ("shadow", "gshadow"):
            return None
        if entry.ischr():
            raise ValueError(f"{entry.name} was removed; layers can't say so here")
        return entry

    with tarfile.open(archive, "w") as tar:
        tar.add(folder, "", filter=kept)
    return archive


def write_archive(archive: Path, images: Sequence[Image]) -> None:
    """Write ``images`` so that ``ctr images import`` takes them under their names."""
    with tarfile.open(archive, "w") as tar:
        blobs = _Blobs(tar)
        entries = [_add_image(blobs, image) for image in images]
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": entries}).encode())
        _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')


def _add_image(blobs: _Blobs, image: Image) -> dict[str, object]:
    layers = [blobs.add_file(_LAYER, layer) for layer in image.layers]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Entrypoint": list(image.entrypoint),
            "Env": [f"{name}={value}" for name, value in image.environment.items()],
            "User": image.user,
        },
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": blobs.add_json(_CONFIG, config),
        "layers": layers,
    }
    name = {"io.containerd.image.name": image.name}
    return {**blobs.add_json(_MANIFEST, manifest), "annotations": name}


class _Blobs:
    """What an archive's indexes refer to by digest; each once."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._digests: set[str] = set()

    def add_json(self, media_type: str, value: object) -> dict[str, object]:
        content = json.dumps(value).encode()
        digest = hashlib.sha256(content).hexdigest()
        if digest not in self._digests:
            _add(self._tar, f"blobs/sha256/{digest}", content)
        return self._described(media_type, digest, len(content))

    def add_file(self, media_type: str, file: Path) -> dict[str, object]:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest not in self._digests:
            self._tar.add(file, f"blobs/sha256/{digest}")
        return self._described(media_type, digest, file.stat().st_size)

    def _described(self, media_type: str, digest: str, size: int) -> dict[str, object]:
        self._digests.add(digest)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, "", ""
    entry.mode |= 0o444
    return entry
