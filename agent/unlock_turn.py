"""Unlocks that need much memory take turns: several volumes are mounted at once, and a VM is small."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from agent.luks2_profile import AuditedHeader

FREE_KIB: Final = 64 * 1024
"""KiB of memory up to which an unlock waits for nobody. Keyslots of our own need none to speak of."""

_turn = threading.Lock()


@contextmanager
def unlock_turn(header: AuditedHeader) -> Iterator[None]:
    """Wait until the header's keyslots may be unlocked; at most one costly unlock runs in this process."""
    if header.unlock_memory_kib <= FREE_KIB:
        yield
        return
    with _turn:
        yield
