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


def layer_of_programs(archive: Path, programs: Mapping[str, Path]) -> Path:
    """A layer that holds static programs, by their paths in the image, and an empty ``/tmp``."""
    with tarfile.open(archive, "w") as tar:
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)
        for path, program in programs.items():
            tar.add(program.resolve(), path.lstrip("/"), filter=_as_program)
    return archive


def write_archive(archive: Path, image: Image) -> None:
    """Write ``image`` so that ``ctr images import`` takes it under its name."""
    with tarfile.open(archive, "w") as tar:
        layers = [_add_file(tar, layer) for layer in image.layers]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": list(image.entrypoint),
                "Env": [f"{name}={value}" for name, value in image.environment.items()],
                "User": image.user,
            },
            "rootfs": {"type": "layers", "diff_ids": [digest for digest, _ in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, *_add_json(tar, config)),
            "layers": [_descriptor(_LAYER, digest, size) for digest, size in layers],
        }
        entry = _descriptor(_MANIFEST, *_add_json(tar, manifest))
        entry["annotations"] = {"io.containerd.image.name": image.name}
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest, "size": size}


def _add_json(tar: tarfile.TarFile, value: object) -> tuple[str, int]:
    content = json.dumps(value).encode()
    digest = hashlib.sha256(content).hexdigest()
    _add(tar, f"blobs/sha256/{digest}", content)
    return f"sha256:{digest}", len(content)


def _add_file(tar: tarfile.TarFile, file: Path) -> tuple[str, int]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    tar.add(file, f"blobs/sha256/{digest}")
    return f"sha256:{digest}", file.stat().st_size


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _as_program(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid, entry.gid, entry.uname, entry.gname, entry.mode = 0, 0, "", "", 0o755
    return entry
