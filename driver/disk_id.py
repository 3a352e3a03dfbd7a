"""Which cloud disk a publish is about, from the request alone: the node asks no cloud.

A volume that this driver created carries ``cloud-volume-path`` in its context. A statically provisioned
PersistentVolume may name its disk instead by a per-cloud key, or by its volume handle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from driver.errors import FailedPrecondition, InvalidArgument
from driver.mountinfo import CLOUD_PROVIDER, CLOUD_VOLUME_PATH

MAXIMUM_BYTES = 512
"""An Azure resource id of the longest names allowed takes about 350."""

_AWS = re.compile(r"vol-[0-9a-f]{8,}", re.ASCII)
_AZURE = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Compute/disks/[^/]+", re.IGNORECASE
)
_FORMS = {"aws": _AWS, "azure": _AZURE}
_CLOUD_KEYS = {"ebs-volume-id": _AWS, "azure-resource-id": _AZURE}
DISK_KEYS = (CLOUD_VOLUME_PATH, *_CLOUD_KEYS)
"""The attributes that can name a disk, in the order in which they are looked at."""
_PROVIDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}", re.ASCII)
_WORKER_DEVICE_PREFIXES = ("/dev/", "/proc/", "/sys/")


def disk_id(volume_id: str, context: Mapping[str, str]) -> str:
    """The id that attaches the disk to a PodVM.

    Raises:
        InvalidArgument: nothing in the request names a disk, or what does is malformed.
        FailedPrecondition: the id names a file or device of this worker. The Kata shim would then
            hot-plug that, which the remote hypervisor can't.
    """
    found = _named(volume_id, context)
    if len(found.encode()) > MAXIMUM_BYTES or not found.isprintable() or found != found.strip():
        raise InvalidArgument(
            f"the disk id {found[:80]!r} is malformed: expected at most {MAXIMUM_BYTES} bytes of printable "
            "text without spaces at its ends"
        )
    if found.startswith("/") and (found.startswith(_WORKER_DEVICE_PREFIXES) or _exists(found)):
        raise FailedPrecondition(
            f"the disk id {found!r} names a file or device of this worker; it must be the id of a disk that "
            "can be attached to a PodVM: correct cloud-volume-path in the PersistentVolume"
        )
    return found


def cloud_provider(volume_id: str, context: Mapping[str, str], disk: str) -> str | None:
    """The provider's name, if the request or the form of the disk id tells it.

    Raises:
        InvalidArgument: the context holds a malformed one.
    """
    for key in (CLOUD_PROVIDER, "cloudProvider"):  # the second is the older Go driver's
        name = context.get(key, "")
        if name:
            if not _PROVIDER.fullmatch(name):
                raise InvalidArgument(f"{key} {name[:40]!r} in volume_context is not a provider's name")
            return name
    for name, form in _FORMS.items():
        if form.fullmatch(disk):
            return name
    name, separator, _ = volume_id.partition(":")
    return name if separator and _PROVIDER.fullmatch(name) else None


def _named(volume_id: str, context: Mapping[str, str]) -> str:
    if context.get(CLOUD_VOLUME_PATH):
        return context[CLOUD_VOLUME_PATH]
    for key, form in _CLOUD_KEYS.items():
        value = context.get(key, "")
        if value:
            if not form.fullmatch(value):
                raise InvalidArgument(f"{key} {value[:80]!r} in volume_context is not a disk's id")
            return value
    if any(form.fullmatch(volume_id) for form in _FORMS.values()):
        return volume_id
    raise InvalidArgument(
        f"volume {volume_id[:128]!r}: nothing names its disk; put cloud-volume-path (vol-… on AWS, the "
        "resource id on Azure) into the PersistentVolume's volumeAttributes"
    )


def _exists(path: str) -> bool:
    try:
        Path(path).lstat()
    except (OSError, ValueError):
        return False
    return True
