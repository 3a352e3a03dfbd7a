"""The ``cloud_volumes`` annotation: which disks the host says a container gets.

cloud-api-adaptor writes it on the untrusted host and hands it over with CreateContainer. Nothing here
makes it trusted; this module only makes sure that what goes on means one thing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, cast

from agent.errors import Refused, quoted
from agent.keys import key_uri
from agent.mount_point import checked_mount_point

ANNOTATION_KEY: Final = "io.confidentialcontainers.org.cloud_volumes"
MAX_ANNOTATION: Final = 64 << 10
"""Bytes of the annotation; one volume takes less than 1 KiB."""

FILESYSTEMS: Final = ("ext4",)
ENCRYPT_TYPES: Final = ("luks", "luks2")
"""Both mean LUKS2: the first is an older spelling."""

SERIAL_DIGITS: Final = 20
"""A virtio-blk serial holds 20 bytes and is cut there without a word."""

_MAX_INDEX: Final = 255
_MAX_GID: Final = (1 << 31) - 1
"""The largest fsGroup that Kubernetes accepts."""
_MAX_DISK_ID: Final = 1024
_SHOWN: Final = 100

_REQUIRED: Final = frozenset({"mount_point", "fs_type", "disk_id"})
_OPTIONAL: Final = frozenset({"lun", "fs_group", "encrypt_type", "key_id"})
_NAME: Final = re.compile(r"vol-(0|[1-9][0-9]{0,2})", re.ASCII)
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


@dataclass(frozen=True)
class CloudVolume:
    """One volume as the host describes it; every value checked for form, none for truth."""

    index: int
    mount_point: str
    """Where the container wants it, without a trailing slash."""
    fs_type: str
    lun: int | None
    disk_id: str
    """The cloud's name for the disk (EBS volume id, ARM id, path)."""
    fs_group: int | None
    encrypt_type: str
    """Empty, like ``key_id``, where the host says that the volume is not encrypted."""
    key_id: str
    """The KBS path of the key, without a scheme."""

    @property
    def name(self) -> str:
        """As in the annotation: ``vol-<index>``."""
        return f"vol-{self.index}"

    @property
    def encrypted(self) -> bool:
        """What the host says; whether that is right is for the policy (``agent.policy``)."""
        return bool(self.encrypt_type)

    @property
    def mount_directory(self) -> str:
        """Where the volume is mounted in the guest."""
        return f"/run/cloud-volumes/{self.name}"

    @property
    def mapper_name(self) -> str:
        """The device-mapper name of the open volume."""
        return f"caa-{self.name}"

    @property
    def serial(self) -> str:
        """The virtio serial under which the disk shows: the beginning of the id's SHA-256."""
        return hashlib.sha256(self.disk_id.encode()).hexdigest()[:SERIAL_DIGITS]


def parse_annotation(text: str | bytes) -> tuple[CloudVolume, ...]:
    """The volumes of an annotation's value, by rising index.

    Raises:
        Refused: it does not say exactly one thing, or breaks a rule: ``annotation-malformed``,
            ``annotation-volume``, ``annotation-duplicate``, ``mount-point``, ``filesystem``,
            ``encryption-required``, ``encryption-type`` or ``key-id``.
    """
    entries = _load(text)
    volumes = sorted((_volume(name, fields) for name, fields in entries.items()), key=lambda one: one.index)
    _refuse_repeats("mount_point", (one.mount_point for one in volumes))
    _refuse_repeats("disk_id", (one.disk_id for one in volumes))
    _refuse_repeats("lun", (str(one.lun) for one in volumes if one.lun is not None))
    return tuple(volumes)


def _load(text: str | bytes) -> dict[str, object]:
    try:
        encoded = text.encode() if isinstance(text, str) else text
        if len(encoded) > MAX_ANNOTATION:
            raise Refused(
                "annotation-malformed",
                f"the annotation has {len(encoded)} bytes; at most {MAX_ANNOTATION} are read",
            )
        # Decoded here: json would guess at UTF-16 and UTF-32.
        loaded = json.loads(encoded.decode(), object_pairs_hook=_object)
    except UnicodeError:
        raise Refused("annotation-malformed", "the annotation is not UTF-8") from None
    except (ValueError, RecursionError) as error:  # Bad JSON, a number of absurd length, absurd nesting.
        raise Refused("annotation-malformed", f"the annotation is not JSON: {str(error)[:_SHOWN]}") from None
    if not isinstance(loaded, dict):
        raise Refused("annotation-malformed", "the annotation is not a JSON object of volumes")
    return cast("dict[str, object]", loaded)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise Refused("annotation-malformed", f"the annotation has {quoted(repeated)} twice in one object")
    return members


def _volume(name: str, fields: object) -> CloudVolume:
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) > _MAX_INDEX:
        raise Refused(
            "annotation-volume",
            f"{quoted(name)} is not a volume name: vol-0 to vol-{_MAX_INDEX} are expected",
        )
    values = _strings(name, fields)
    encrypt_type, key_id = _encryption(name, values)
    return CloudVolume(
        index=int(match[1]),
        mount_point=checked_mount_point(values["mount_point"], name),
        fs_type=_one_of("filesystem", name, "fs_type", values["fs_type"], FILESYSTEMS),
        lun=_number(name, "lun", values.get("lun"), _MAX_INDEX),
        disk_id=_disk_id(name, values["disk_id"]),
        fs_group=_number(name, "fs_group", values.get("fs_group"), _MAX_GID),
        encrypt_type=encrypt_type,
        key_id=key_id,
    )


def _strings(name: str, fields: object) -> dict[str, str]:
    if not isinstance(fields, dict):
        raise Refused("annotation-volume", f"{name} is not a JSON object")
    unknown = fields.keys() - _REQUIRED - _OPTIONAL
    if unknown:
        raise Refused(
            "annotation-volume",
            f"{name} has the unknown field {quoted(min(unknown))}; "
            f"known are {', '.join(sorted(_REQUIRED | _OPTIONAL))}",
        )
    missing = _REQUIRED - fields.keys()
    if missing:
        raise Refused("annotation-volume", f"{name} lacks {min(missing)}")
    for field, value in fields.items():
        if not isinstance(value, str):
            raise Refused("annotation-volume", f"{field} of {name} must be a JSON string")
    return cast("dict[str, str]", fields)


def _encryption(name: str, values: dict[str, str]) -> tuple[str, str]:
    encrypt_type = values.get("encrypt_type", "")
    key_id = values.get("key_id", "")
    if not encrypt_type and not key_id:
        return "", ""
    for field, value in (("encrypt_type", encrypt_type), ("key_id", key_id)):
        if not value:
            raise Refused(
                "encryption-required",
                f"{name} comes without {field}; an encrypted volume needs both: "
                "set encrypt-type and kbs-key-id in its StorageClass",
            )
    _one_of("encryption-type", name, "encrypt_type", encrypt_type, ENCRYPT_TYPES)
    key_uri(key_id)
    return encrypt_type, key_id


def _disk_id(name: str, disk_id: str) -> str:
    # isprintable also keeps out lone surrogates, which have no UTF-8 form to hash.
    if not disk_id or not disk_id.isprintable() or len(disk_id.encode()) > _MAX_DISK_ID:
        raise Refused(
            "annotation-volume",
            f"disk_id {quoted(disk_id)} of {name} must be 1 to {_MAX_DISK_ID} bytes of printable characters",
        )
    return disk_id


def _number(name: str, field: str, value: str | None, maximum: int) -> int | None:
    if value is None:
        return None
    # Not int() alone: it takes "1_000", " 7" and digits of other scripts.
    if not _NUMBER.fullmatch(value) or int(value) > maximum:
        raise Refused(
            "annotation-volume",
            f"{field} {quoted(value)} of {name} must be a decimal number from 0 to {maximum}",
        )
    return int(value)


def _one_of(rule: str, name: str, field: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise Refused(
            rule, f"{field} {quoted(value)} of {name} is not supported; expected {' or '.join(allowed)}"
        )
    return value


def _refuse_repeats(what: str, values: Iterable[str]) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise Refused("annotation-duplicate", f"two volumes have the {what} {quoted(value)}")
        seen.add(value)
