"""The stand-in for cloud-api-adaptor (CAA) and the part of Kata's runtime that touches direct volumes.

CAA reads the direct-volume root twice, in two ways, and takes for granted that both see the same: once to
attach disks (``pkg/util/cloud.go``, ``GetCSIVolumesForPod``, typed) and once for each container to write the
annotation (``pkg/adaptor/proxy/service.go``, ``CreateContainer``, untyped). Both are followed here to the
letter; where CAA would go on with disks on wrong LUNs, the stand-in raises :class:`Disagreement`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agent.ttrpc import Server, TtrpcError

ANNOTATION = "io.confidentialcontainers.org.cloud_volumes"

#: Of the Kata agent protocol, those that others than Kata's runtime call by way of CAA.
_VOLUME_METHODS = ("GetVolumeStats", "ResizeVolume")

_POD_NAME_CHARACTERS = 63 - len("podvm") - 10

#: The longest name of a file.
_NAME_BYTES = 255
_BASE64 = re.compile(r"([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?")


class Disagreement(Exception):
    """Something on the host would send a disk to the wrong place, or keep a pod from starting."""


@dataclass(frozen=True)
class OciMount:
    """One entry of ``mounts`` in a container's OCI spec."""

    source: str
    destination: str


def serial_of(disk_id: str) -> str:
    """The virtio-blk serial by which the guest finds a disk."""
    return hashlib.sha256(disk_id.encode()).hexdigest()[:20]


def _entries(root: Path, pod_uid: str) -> Iterator[tuple[Path, str]]:
    """What both scans look at: folder and target path, in the order of Go's ``os.ReadDir``."""
    for folder in sorted(root.iterdir(), key=lambda path: path.name.encode(errors="surrogateescape")):
        if folder.is_symlink() or not folder.is_dir() or not _BASE64.fullmatch(folder.name):
            continue
        target = base64.urlsafe_b64decode(folder.name).decode(errors="surrogateescape")
        if "/volumes/kubernetes.io~csi/" not in target or (pod_uid and f"/pods/{pod_uid}/" not in target):
            continue
        yield folder, target


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _read(folder: Path) -> dict[str, Any] | None:
    """``mountInfo.json``, or nothing where Go's decoder would fail."""
    try:
        # Go replaces what is not UTF-8, and knows no NaN.
        text = (folder / "mountInfo.json").read_bytes().decode(errors="replace")
        info = json.loads(text, parse_constant=_refuse_constant)
    except (OSError, ValueError):
        return None
    return info if isinstance(info, dict) else None


def _typed(info: dict[str, Any]) -> dict[str, Any] | None:
    """As ``mountInfoJSON`` of ``pkg/util/cloud.go``, or nothing where it does not fit.

    Go's decoder takes a field's name in any case, and null for everything.
    """
    info = {key.lower(): value for key, value in info.items()}
    texts = [info.get(key) for key in ("volume-type", "device", "fstype")]
    metadata, options = info.get("metadata") or {}, info.get("options") or []
    if not isinstance(metadata, dict) or not isinstance(options, list):
        return None
    fits = all(text is None or isinstance(text, str) for text in (*texts, *metadata.values(), *options))
    return info if fits else None


def attach_scan(root: Path, *, pod_uid: str = "") -> list[str]:
    """The disk ids that CAA attaches to a new PodVM, in the order of LUNs.

    Args:
        pod_uid: what Kata passes as the sandbox UID: nothing, today, so every entry on the node is taken.
    """
    found: list[str] = []
    for folder, _ in _entries(root, pod_uid):
        untyped = _read(folder)
        info = None if untyped is None else _typed(untyped)
        if info is None:
            continue
        disk_id = (info.get("metadata") or {}).get("cloud-volume-path") or info.get("device")
        if disk_id:
            found.append(disk_id)
    return found


def container_scan(
    root: Path, mounts: Sequence[OciMount], *, pod_uid: str = ""
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The ``cloud_volumes`` object for one container, and the disk ids that were counted for LUNs."""
    volumes: dict[str, dict[str, str]] = {}
    counted: list[str] = []
    for folder, target in _entries(root, pod_uid):
        info = _read(folder)
        if info is None:
            continue
        metadata = info.get("metadata") if isinstance(info.get("metadata"), dict) else {}
        disk_id = _text(metadata, "cloud-volume-path") or _text(info, "device")
        if not disk_id:
            continue
        lun = str(len(counted))
        counted.append(disk_id)
        destination = next((mount.destination for mount in mounts if mount.source == target), "")
        if not destination:
            continue
        volume = {
            "mount_point": destination,
            "fs_type": _text(info, "fstype") or "ext4",
            "lun": lun,
            "disk_id": disk_id,
        }
        optional = {
            "encrypt_type": _text(metadata, "encrypt-type"),
            "key_id": _text(metadata, "kbs-key-id"),
        }
        volumes[f"vol-{lun}"] = volume | {key: value for key, value in optional.items() if value}
    return volumes, counted


def _text(source: dict[str, Any] | None, key: str) -> str:
    value = (source or {}).get(key)
    return value if isinstance(value, str) else ""


@contextmanager
def pod_socket(
    pods_root: Path, sandbox_id: str, forward: Callable[[str, bytes], tuple[int, str, bytes]]
) -> Iterator[None]:
    """CAA's socket of one pod, ``<pods_root>/<sandbox id>/agent.ttrpc``, until the end of the block.

    Args:
        forward: calls a method of the guest's agent; status code, message and payload.
    """

    def answer(method: str, payload: bytes) -> bytes:
        code, message, answered = forward(method, payload)
        if code != 0:
            raise TtrpcError(code, message)
        return answered

    folder = pods_root / sandbox_id
    folder.mkdir(parents=True)
    server = Server(
        str(folder / "agent.ttrpc"),
        {("grpc.AgentService", method): partial(answer, method) for method in _VOLUME_METHODS},
    )
    server.start()
    try:
        yield
    finally:
        server.stop(1.0)
        (folder / "agent.ttrpc").unlink(missing_ok=True)
        folder.rmdir()


class Caa:
    """Plays CAA and Kata's runtime on one worker, for a cloud in which CAA attaches no disks (libvirt).

    Args:
        root: the direct-volume root, as the CSI node plugin writes it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @staticmethod
    def podvm_name(pod_name: str, sandbox_id: str) -> str:
        """What CAA calls the VM of a pod (``GenerateInstanceName``, for the 63 characters of libvirt)."""
        pod, sandbox = (re.sub("[^a-z0-9-]", "-", text.lower()) for text in (pod_name, sandbox_id))
        return f"podvm-{pod[:_POD_NAME_CHARACTERS]}-{sandbox[:8]}"

    def create_container(self, mounts: Sequence[OciMount], *, sandbox_id: str, pod_uid: str = "") -> str:
        """What the guest gets as the value of :data:`ANNOTATION`; empty if there is no volume.

        Also leaves Kata's sandbox-id file beside each volume's ``mountInfo.json``.

        Raises:
            Disagreement: CAA's two scans differ, or Kata would take a volume for a device of the worker.
        """
        for mount in mounts:
            self._prepare_volume(mount, sandbox_id)
        volumes, counted = container_scan(self._root, mounts, pod_uid=pod_uid)
        attached = attach_scan(self._root, pod_uid=pod_uid)
        if counted != attached:
            raise Disagreement(f"CAA attaches {attached}, but counts LUNs by {counted}")
        if not volumes:
            return ""
        return json.dumps(volumes, separators=(",", ":"), sort_keys=True)

    def _prepare_volume(self, mount: OciMount, sandbox_id: str) -> None:
        """Kata's Go runtime, ``src/runtime/pkg/direct-volume/utils.go``."""
        name = base64.urlsafe_b64encode(mount.source.encode()).decode()
        folder = self._root / name
        if len(name) > _NAME_BYTES or not (folder / "mountInfo.json").exists():
            return  # it is some other mount
        info = _read(folder)
        typed = None if info is None else _typed(info)
        device = _text(typed, "device")
        if typed is None or (device and Path(device).exists()):
            raise Disagreement(f"Kata's runtime fails on {mount.source}: {info}")
        (folder / sandbox_id).touch(mode=0o600)
