"""Where disks are: a resource group of a subscription, and what it is called in handles.

An Azure resource id is too long for a volume id (128 bytes), so a handle holds a label of the resource
group: ``<group>~<first block of the subscription's id>`` if that is plain text and fits, else a hash of
both, ``~<16 hex digits>``. Labels are resolved against the resource groups that this controller knows by
its settings; an unknown one is never taken for "the disk is gone".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

_SUBSCRIPTION = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_RESOURCE_GROUP = re.compile(r"[-\w.()]{0,89}[-\w()]")
_LABEL = re.compile(r"(?:[-a-z0-9_.()]{1,90}~[0-9a-f]{8}|~[0-9a-f]{16})", re.ASCII)


@dataclass(frozen=True)
class Place:
    """A resource group."""

    subscription: str
    group: str

    @property
    def folded(self) -> tuple[str, str]:
        """What is equal for two spellings of one resource group: Azure ignores the case of both names."""
        return self.subscription.lower(), self.group.lower()

    @property
    def labels(self) -> tuple[str, str]:
        """The readable label and the short one; one place has these, however it is spelled."""
        subscription, group = self.folded
        digest = hashlib.sha256(f"{subscription}/{group}".encode()).hexdigest()[:16]
        return f"{group}~{subscription[:8]}", f"~{digest}"

    def label(self, room: int) -> str:
        """The readable label if it fits in ``room`` bytes, else the short one (17 bytes)."""
        readable, short = self.labels
        return readable if len(readable) <= room and _LABEL.fullmatch(readable) else short

    def resource_id(self, kind: str, name: str) -> str:
        """The full ARM id of the disk or snapshot (``kind``: ``disks``, ``snapshots``) of that name."""
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"
            f"/providers/Microsoft.Compute/{kind}/{name}"
        )


def labels_of(places: Iterable[Place]) -> dict[str, Place]:
    """The places by each of their labels."""
    return {label: place for place in places for label in place.labels}


def is_label(text: str) -> bool:
    """Whether some place can have this label."""
    return _LABEL.fullmatch(text) is not None


def is_subscription(text: str) -> bool:
    """Whether ``text`` is the id of a subscription, in lower case."""
    return _SUBSCRIPTION.fullmatch(text) is not None


def is_resource_group(text: str) -> bool:
    """Whether a resource group can have this name (at most 90 letters, digits and ``_-.()``)."""
    return _RESOURCE_GROUP.fullmatch(text) is not None


def normalized_location(text: str) -> str:
    """``West Europe`` and ``westeurope`` are one region."""
    return text.replace(" ", "").lower()
