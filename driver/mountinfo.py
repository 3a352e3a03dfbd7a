"""``mountInfo.json``: what a publish tells Kata and cloud-api-adaptor (CAA) about a volume.

Read by Kata's ``src/runtime/pkg/direct-volume/utils.go`` and twice by CAA: typed (``pkg/util/cloud.go``,
which attaches disks) and untyped (``pkg/adaptor/proxy/service.go``, which counts LUNs). A record that only
one of CAA's readers accepts puts disks on wrong LUNs, hence: every metadata value is a string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from driver.encryption import ENCRYPT_TYPE, KBS_KEY_ID

FILE_NAME = "mountInfo.json"
VOLUME_TYPE = "directvol"

CLOUD_VOLUME_PATH = "cloud-volume-path"
CLOUD_VOLUME_ID = "cloud-volume-id"
CLOUD_PROVIDER = "cloud-provider"
METADATA_KEYS = frozenset({CLOUD_VOLUME_PATH, ENCRYPT_TYPE, KBS_KEY_ID, CLOUD_VOLUME_ID, CLOUD_PROVIDER})
"""All that ever gets into the file: no secret, no token, no parameter of anyone else's."""

_BIND_OPTIONS = frozenset({"bind", "rbind"})


class Damaged(ValueError):
    """The bytes are no record that both of CAA's readers understand alike."""


@dataclass(frozen=True)
class MountInfo:
    """One published volume.

    Raises:
        ValueError: a field that would mislead a reader of the file: an empty device or file system,
            ``bind``, a metadata key that is not allowed.
    """

    device: str
    """The cloud disk's id; never a path that exists on the worker, or the Kata shim would hot-plug it."""
    fs_type: str
    metadata: Mapping[str, str]
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.device:
            raise ValueError("device is empty")
        if not self.fs_type or self.fs_type in _BIND_OPTIONS:
            raise ValueError(f"fstype {self.fs_type!r} is no file system")
        if _BIND_OPTIONS & set(self.options):
            raise ValueError("options ask for a bind mount")
        unknown = set(self.metadata) - METADATA_KEYS
        if unknown:
            raise ValueError(f"metadata key {min(unknown)!r} is not on the allow-list")

    def encode(self) -> bytes:
        """The file's content."""
        return json.dumps(
            {
                "volume-type": VOLUME_TYPE,
                "device": self.device,
                "fstype": self.fs_type,
                "metadata": dict(sorted(self.metadata.items())),
                "options": list(self.options),
            },
            separators=(",", ":"),
        ).encode("ascii")


def decode(content: bytes) -> MountInfo:
    """Read a record back; unknown metadata of older drivers is left out.

    Raises:
        Damaged: truncated, no JSON, wrongly typed, or it lacks what a record needs.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"not JSON: {type(error).__name__}") from error
    if not isinstance(data, dict) or data.get("volume-type") != VOLUME_TYPE:
        raise Damaged(f"not an object of volume-type {VOLUME_TYPE}")
    device, fs_type = data.get("device"), data.get("fstype")
    # Go writes an empty map or list as null, and CAA's readers take it for one.
    metadata, options = data.get("metadata") or {}, data.get("options") or []
    if not (isinstance(device, str) and isinstance(fs_type, str)):
        raise Damaged("device and fstype must be strings")
    if not (isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())):
        raise Damaged("metadata must map strings to strings")
    if not (isinstance(options, list) and all(isinstance(option, str) for option in options)):
        raise Damaged("options must be strings")
    known = {key: value for key, value in metadata.items() if key in METADATA_KEYS}
    try:
        return MountInfo(device=device, fs_type=fs_type, metadata=known, options=tuple(options))
    except ValueError as error:
        raise Damaged(str(error)) from error
