"""The storage volumes that belong to one object, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from providers.names import is_backend_name

TAGS = "~tags"
NOTE = "~note"
GO_DISK = ".raw"
"""Of a disk that the older Go driver made."""
MARK_CHARACTERS = 12

_PART = re.compile(
    rf"(.*?)({TAGS}|{NOTE}|~[0-9a-f]{{{MARK_CHARACTERS}}}\.(?:raw|draft)|{re.escape(GO_DISK)})"
)


@dataclass(frozen=True)
class Parts:
    """What there is of an object: the ends of the storage volumes' names."""

    ends: frozenset[str]

    def is_whole(self, *, has_go_disks: bool) -> bool:
        """Whether this is what an object consists of, nothing missing and nothing more.

        That its tags and its disk fit is not looked at.
        """
        drafts = {end for end in self.ends if end.endswith(".draft")}
        disks = {end for end in self.ends if end.startswith("~") and end.endswith(".raw")}
        if has_go_disks and GO_DISK in self.ends:
            return self.ends <= {GO_DISK, NOTE}
        return TAGS in self.ends and len(disks) == 1 and not drafts


def disk_name(base: str, mark: str) -> str:
    """The disk that belongs to tags with that mark."""
    return f"{base}~{mark}.raw"


def draft_name(base: str, mark: str) -> str:
    """Where content with that mark is written before libvirt copies it to its place."""
    return f"{base}~{mark}.draft"


def parts_by_object(names: Iterable[str], prefix: str) -> dict[str, Parts]:
    """The objects of a kind that ``names``, those of a pool's storage volumes, show something of."""
    found: dict[str, set[str]] = {}
    for name in names:
        match = _PART.fullmatch(name)
        if match is not None and is_backend_name(prefix, match[1]):
            found.setdefault(match[1], set()).add(match[2])
    return {base: Parts(frozenset(ends)) for base, ends in found.items()}
