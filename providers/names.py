"""Names of backend objects: pure functions of the CSI name, so that any later process finds them again.

The rule fits every backend: at most 80 characters of ``[a-z0-9._-]``, starting with a letter or digit and
ending with one (Azure disks: 80, compared without case; files: no ``/``). A CSI name that fits is used as
it is, so that people recognize it; any other is made to fit and gets a hash of the whole name behind an
underscore, a character that the first form never holds. Two CSI names therefore never share a backend name.
"""

from __future__ import annotations

import hashlib
import re

MAXIMUM_LENGTH = 80
"""Characters, the prefix included."""

_PLAIN = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_HASHED = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)?_[0-9a-f]{32}")
_UNFIT = re.compile(r"[^A-Za-z0-9.-]+")
_HASH_LENGTH = 32  # 128 bits in hex: no two names will ever meet


def backend_name(prefix: str, name: str) -> str:
    """The backend's name for the CSI name ``name``; ``prefix`` (``csi-vol-``) tells the kind of object."""
    if _PLAIN.fullmatch(name) and len(prefix) + len(name) <= MAXIMUM_LENGTH:
        return prefix + name
    room = MAXIMUM_LENGTH - len(prefix) - 1 - _HASH_LENGTH
    stem = _UNFIT.sub("-", name).lower().strip("-.")[:room].rstrip("-.")
    return f"{prefix}{stem}_{hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]}"


def is_backend_name(prefix: str, text: str) -> bool:
    """Whether :func:`backend_name` can have made ``text``; anything else names nothing of ours."""
    if len(text) > MAXIMUM_LENGTH or not text.startswith(prefix):
        return False
    rest = text[len(prefix) :]
    return bool(_PLAIN.fullmatch(rest) or _HASHED.fullmatch(rest))
