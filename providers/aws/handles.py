"""This provider's names for its objects: ``<region>/<id>``.

The id is EC2's own (``us-east-1/vol-0123456789abcdef0``), which finds and deletes the object without any
search. A volume that is known by its CSI name only is ``us-east-1/csi-vol-pvc-1`` and found by its tags.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from providers.aws.settings import is_region
from providers.aws.tags import VOLUME_PREFIX, volume_key
from providers.names import is_backend_name

_VOLUME_ID = re.compile(r"vol-[0-9a-f]{8,17}", re.ASCII)
_SNAPSHOT_ID = re.compile(r"snap-[0-9a-f]{8,17}", re.ASCII)


@dataclass(frozen=True)
class Handle:
    """A parsed handle: one of ``object_id`` and ``key`` is set."""

    region: str
    object_id: str = ""
    key: str = ""

    def __str__(self) -> str:
        return f"{self.region}/{self.object_id or VOLUME_PREFIX + self.key}"


def is_volume_id(text: str) -> bool:
    """Whether EC2 can have given this id to a volume."""
    return _VOLUME_ID.fullmatch(text) is not None


def of_name(region: str, name: str) -> Handle:
    """The handle of the volume of that CSI name; EC2's id is taken as itself, for imported disks."""
    return Handle(region, object_id=name) if is_volume_id(name) else Handle(region, key=volume_key(name))


def volume(text: str) -> Handle | None:
    """The volume handle in ``text``; None if this provider can't have made it."""
    region, _, rest = text.partition("/")
    if not is_region(region):
        return None
    if is_volume_id(rest):
        return Handle(region, object_id=rest)
    if is_backend_name(VOLUME_PREFIX, rest):
        return Handle(region, key=rest.removeprefix(VOLUME_PREFIX))
    return None


def snapshot(text: str) -> Handle | None:
    """The snapshot handle in ``text``; None if this provider can't have made it."""
    region, _, rest = text.partition("/")
    if is_region(region) and _SNAPSHOT_ID.fullmatch(rest):
        return Handle(region, object_id=rest)
    return None
