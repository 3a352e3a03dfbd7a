"""One agent at a time works on a volume, whichever process it is in."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from agent.clock import Clock
from agent.errors import Unavailable

STATE_ROOT: Final = Path("/run/confidential-csi-agent")
LOCK_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.05


@contextmanager
def volume_lock(name: str, clock: Clock) -> Iterator[None]:
    """Hold the lock of the volume ``name``, which the kernel drops when the agent dies.

    Raises:
        Unavailable: another agent held it for ``LOCK_SECONDS`` (``volume-locked``).
    """
    STATE_ROOT.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = clock.monotonic() + LOCK_SECONDS
    with (STATE_ROOT / f"{name}.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.monotonic() >= deadline:
                    raise Unavailable(
                        "volume-locked", f"another agent has been working on {name} for {LOCK_SECONDS:g} s"
                    ) from None
                clock.sleep(_POLL_SECONDS)
        yield
