"""The serial by which a guest finds a disk that is attached as a virtio device."""

from __future__ import annotations

import hashlib

SERIAL_CHARACTERS = 20
"""What virtio-blk holds; more would be cut without a word, and two names could read the same."""


def disk_serial(disk_id: str) -> str:
    """The first 20 hex digits of the SHA-256 of the disk id, as the agent computes it too."""
    return hashlib.sha256(disk_id.encode()).hexdigest()[:SERIAL_CHARACTERS]
