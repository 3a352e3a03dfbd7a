"""What the Confidential Data Hub does on SecureMount, step by step, with the real cryptsetup.

Follows guest-components, ``confidential-data-hub/hub/src/storage``: ``volume_type/blockdevice/mod.rs`` and
``drivers/luks2.rs``; the dialect before v0.18.0 as of the parent of commit d58935a0. Nothing is rolled back
on failure. Two things differ, on purpose: formatting uses a fast key derivation (the default argon2id takes
20 s under emulation), and dm-integrity and ZFS are refused.
"""

from __future__ import annotations

import base64
import os
import subprocess
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

Dialect = Literal["detached-header", "header-on-disk"]
"""How ``sourceType=empty`` formats: header in tmpfs (since v0.18.0), or on the disk (before)."""

DIALECTS: Final = get_args(Dialect)

HEADERS: Final = Path("/run/confidential-containers/cdh/luks-headers")
_HEADER_BYTES: Final = 16 * 1024 * 1024
_RANDOM_KEY_BYTES: Final = 4096
_FAST_KEY_DERIVATION: Final = ("--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000")

KNOWN_OPTIONS: Final = frozenset(
    ("deviceId", "devicePath", "sourceType", "key", "encryptionType", "dataIntegrity", "mapperName")
) | {"targetType", "filesystemType", "mkfsOpts"}


class StorageError(Exception):
    """Why SecureMount failed: for CDH's own log alone, the caller gets a generic message."""


def secure_mount(
    options: Mapping[str, str], mount_point: str, *, dialect: Dialect, fetch_key: Callable[[str], bytes]
) -> None:
    """Carry out one SecureMount of volume type ``block-device``.

    Args:
        fetch_key: takes ``repository/type/tag``; raises StorageError when KBS does not release it.

    Raises:
        StorageError: a step failed; the steps before it stay done.
    """
    _check_shape(options)
    device = _device(options)
    key = _key(options, fetch_key)
    empty = options["sourceType"] == "empty"
    header: list[str] = []
    if empty and dialect == "detached-header":
        header = ["--header", str(_create_header_file(device))]
        _format(["--cipher", "aes-xts-plain64", "--sector-size", "4096", *header], device, key)
    elif empty:
        # It called libcryptsetup: "xts-plain", and a volume key of 32 bytes.
        _format(["--cipher", "aes-xts-plain", "--key-size", "256", "--sector-size", "4096"], device, key)
    name = options.get("mapperName") or str(uuid.uuid4())
    _run(["cryptsetup", "luksOpen", *header, "-d", "-", device, name], key)
    mapping = f"/dev/mapper/{name}"
    if options["targetType"] == "device":
        try:
            Path(mount_point).symlink_to(mapping)
        except OSError as error:
            raise StorageError(f"no link from {mount_point} to {mapping}: {error}") from error
        return
    if empty:
        _run(["mkfs.ext4", mapping, "-F", *options.get("mkfsOpts", "").split()])
    _run(["mount", "--internal-only", "-t", "ext4", "-o", "noatime", mapping, mount_point])


def _check_shape(options: Mapping[str, str]) -> None:
    """As serde does, before anything happens; unknown keys pass."""
    for option, allowed in (
        ("sourceType", ("empty", "encrypted")),
        ("encryptionType", ("luks2", "zfs")),
        ("targetType", ("device", "fileSystem")),
    ):
        if options.get(option) not in allowed:
            raise StorageError(f"{option} is {options.get(option)!r}, not one of {allowed}")
    if options["targetType"] == "fileSystem" and options.get("filesystemType", "ext4") != "ext4":
        raise StorageError(f"unknown variant {options['filesystemType']!r} of filesystemType")
    if options["encryptionType"] == "zfs" or options.get("dataIntegrity") == "true":
        raise StorageError("this stand-in has neither ZFS nor dm-integrity")


def _device(options: Mapping[str, str]) -> str:
    if "deviceId" in options:
        major, _, minor = options["deviceId"].partition(":")
        if not (major.isdecimal() and minor.isdecimal()):
            raise StorageError(f"illegal device id {options['deviceId']!r}")
        try:
            lines = Path(f"/sys/dev/block/{major}:{minor}/uevent").read_text().splitlines()
        except OSError as error:
            raise StorageError(f"no device {major}:{minor}: {error}") from error
        return next(f"/dev/{line.removeprefix('DEVNAME=')}" for line in lines if line.startswith("DEVNAME="))
    if "devicePath" in options:
        return options["devicePath"]
    raise StorageError("no device specified")


def _key(options: Mapping[str, str], fetch_key: Callable[[str], bytes]) -> bytes:
    if "key" not in options:
        return os.urandom(_RANDOM_KEY_BYTES)
    uri = urlsplit(options["key"])
    if uri.scheme == "file":
        try:
            return Path(options["key"].removeprefix("file://")).read_bytes()
        except OSError as error:
            raise StorageError(f"no key: {error}") from error
    # The real hub takes any address and asks the broker that it is configured with.
    if uri.scheme != "kbs" or uri.netloc:
        raise StorageError(f"illegal key scheme in {options['key']!r}")
    return fetch_key(uri.path.removeprefix("/"))


def _create_header_file(device: str) -> Path:
    """A second format of the same device in one boot fails here."""
    HEADERS.mkdir(parents=True, exist_ok=True)
    name = base64.urlsafe_b64encode(device.encode()).decode().rstrip("=")
    path = HEADERS / f"{name}.header"
    try:
        with path.open("xb") as file:
            file.truncate(_HEADER_BYTES)
    except OSError as error:
        raise StorageError(f"no header file: {error}") from error
    return path


def _format(arguments: list[str], device: str, key: bytes) -> None:
    command = ["cryptsetup", "--batch-mode", "luksFormat", "--type", "luks2", *arguments]
    _run([*command, *_FAST_KEY_DERIVATION, device, "-"], key)


def _run(argv: list[str], stdin: bytes = b"") -> None:
    done = subprocess.run(argv, input=stdin, capture_output=True, check=False, timeout=300)
    if done.returncode != 0:
        output = (done.stdout + done.stderr).decode(errors="replace")
        raise StorageError(f"{' '.join(argv)} exited with {done.returncode}: {output}")
