"""How cloud-api-adaptor reads the direct-volume root: its two scans, in Python.

After ``GetCSIVolumesForPod`` in CAA's pkg/util/cloud.go (typed: which disks to attach, in which order) and
``CreateContainer`` in pkg/adaptor/proxy/service.go (untyped: which LUN each has in the guest).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GuestVolume:
    """An entry of the cloud_volumes annotation, without its mount point."""

    target_path: str
    disk_id: str
    lun: int
    fs_type: str
    encrypt_type: str
    key_id: str


def attached_disks(root: Path, pod_uid: str = "") -> list[str]:
    """The disk ids the first scan attaches, in order of LUN."""
    disks = []
    for _, content in _matching(root, pod_uid):
        try:
            data = json.loads(content)
        except ValueError:
            continue
        if not isinstance(data, dict) or not _fits_the_go_struct(data):
            continue
        disk = (data.get("metadata") or {}).get("cloud-volume-path") or data.get("device", "")
        if disk:
            disks.append(disk)
    return disks


def guest_volumes(root: Path, pod_uid: str = "") -> list[GuestVolume]:
    """What the second scan tells a guest whose containers mount every volume."""
    found: list[GuestVolume] = []
    for target_path, content in _matching(root, pod_uid):
        try:
            data = json.loads(content)
        except ValueError:
            continue
        if not isinstance(data, dict):
            continue
        metadata = data.get("metadata")
        texts = {
            key: value
            for key, value in (metadata if isinstance(metadata, dict) else {}).items()
            if isinstance(value, str)
        }
        device, fs_type = data.get("device"), data.get("fstype")
        disk = texts.get("cloud-volume-path") or (device if isinstance(device, str) else "")
        if not disk:
            continue
        found.append(
            GuestVolume(
                target_path=target_path,
                disk_id=disk,
                lun=len(found),
                fs_type=fs_type if isinstance(fs_type, str) and fs_type else "ext4",
                encrypt_type=texts.get("encrypt-type", ""),
                key_id=texts.get("kbs-key-id", ""),
            )
        )
    return found


def _matching(root: Path, pod_uid: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(root.iterdir(), key=lambda path: path.name.encode()):
        if not entry.is_dir():
            continue
        try:
            decoded = base64.b64decode(entry.name.encode(), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeError):
            continue
        target_path = decoded.decode(errors="surrogateescape")
        if "/volumes/kubernetes.io~csi/" not in target_path:
            continue
        if pod_uid and f"/pods/{pod_uid}/" not in target_path:
            continue
        try:
            yield target_path, (entry / "mountInfo.json").read_bytes()
        except OSError:
            continue


def _fits_the_go_struct(data: dict[str, object]) -> bool:
    """Whether Go's encoding/json takes it as {strings, Metadata map[string]string, Options []string}."""
    metadata, options = data.get("metadata"), data.get("options")
    return (
        all(isinstance(data.get(key, ""), str) for key in ("volume-type", "device", "fstype"))
        and (metadata is None or (isinstance(metadata, dict) and _all_text(metadata.values())))
        and (options is None or (isinstance(options, list) and _all_text(options)))
    )


def _all_text(values: Iterable[object]) -> bool:
    return all(value is None or isinstance(value, str) for value in values)
