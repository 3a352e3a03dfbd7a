"""The bodies that disks and snapshots take, field by field, as in the public REST reference of 2024-03-02.

Only the fields that this project has a use for are known, so that any other one shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]

SKUS = (
    "Standard_LRS",
    "StandardSSD_LRS",
    "StandardSSD_ZRS",
    "Premium_LRS",
    "Premium_ZRS",
    "PremiumV2_LRS",
    "UltraSSD_LRS",
)
TUNABLE = ("PremiumV2_LRS", "UltraSSD_LRS")

_RESOURCE_ID = re.compile(
    r"/subscriptions/[0-9a-f-]{36}/resourceGroups/[-\w.()]{1,90}/providers/Microsoft\.Compute"
    r"/(disks|snapshots|diskEncryptionSets)/[A-Za-z0-9_.-]{1,80}"
)


class Wrong(Exception):
    """The body is not one that Azure takes."""


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _one_of(*allowed: object) -> Check:
    return lambda value: value in allowed and type(value) in {type(one) for one in allowed}


def _number(least: int, most: int) -> Check:
    return lambda value: type(value) is int and least <= value <= most


def _resource_id(value: Any) -> bool:
    return isinstance(value, str) and _RESOURCE_ID.fullmatch(value) is not None


def _zones(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1 and value[0] in ("1", "2", "3")


def _tags(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= 50
        and len({key.lower() for key in value}) == len(value)
        and all(
            isinstance(key, str)
            and 0 < len(key) <= 512
            and not set(key) & set("<>%&\\?/")
            and isinstance(text, str)
            and len(text) <= 256
            for key, text in value.items()
        )
    )


_SIZE = _number(1, 65536)
_CREATION = {"createOption": _one_of("Empty", "Copy"), "sourceResourceId": _resource_id}
_ENCRYPTION = {
    "type": _one_of("EncryptionAtRestWithCustomerKey"),
    "diskEncryptionSetId": _resource_id,
}
_CLOSED = {
    "networkAccessPolicy": _one_of("DenyAll", "AllowAll", "AllowPrivate"),
    "publicNetworkAccess": _one_of("Disabled", "Enabled"),
}
_TUNING = {"diskIOPSReadWrite": _number(100, 400_000), "diskMBpsReadWrite": _number(1, 10_000)}

DISK: dict[str, Any] = {
    "location": _text,
    "sku": {"name": _one_of(*SKUS)},
    "zones": _zones,
    "tags": _tags,
    "properties": {
        "creationData": _CREATION,
        "diskSizeGB": _SIZE,
        "encryption": _ENCRYPTION,
        **_CLOSED,
        **_TUNING,
    },
}
DISK_UPDATE: dict[str, Any] = {
    "sku": {"name": _one_of(*SKUS)},
    "tags": _tags,
    "properties": {"diskSizeGB": _SIZE, **_TUNING},
}
SNAPSHOT: dict[str, Any] = {
    "location": _text,
    "sku": {"name": _one_of("Standard_LRS", "Standard_ZRS", "Premium_LRS")},
    "tags": _tags,
    "properties": {"creationData": _CREATION, "incremental": _one_of(True, False), **_CLOSED},
}
REQUIRED = {
    "": ("location", "properties"),
    ".properties": ("creationData",),
    ".properties.creationData": ("createOption",),
    ".sku": ("name",),
    ".properties.encryption": ("type", "diskEncryptionSetId"),
}


def check(body: Any, shape: dict[str, Any], *, whole: bool, where: str = "") -> None:
    """Check a body.

    Args:
        whole: it creates an object, so what is required must be there.

    Raises:
        Wrong: a field is unknown, missing or has a value that can't be.
    """
    if not isinstance(body, dict):
        raise Wrong(f"{where or 'the body'} is not an object")
    for key, value in body.items():
        if key not in shape:
            raise Wrong(f"unknown field {where}.{key}")
        if isinstance(shape[key], dict):
            check(value, shape[key], whole=whole, where=f"{where}.{key}")
        elif not shape[key](value):
            raise Wrong(f"field {where}.{key} can't be {value!r}")
    for key in REQUIRED.get(where, ()) if whole else ():
        if key not in body:
            raise Wrong(f"field {where}.{key} is missing")
