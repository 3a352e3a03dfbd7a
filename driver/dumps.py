"""No memory of the driver in a core dump: a controller has the cloud's credentials."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path


def forbid_dumps() -> None:
    """Forbid them; also where the kernel pipes them to a program, which heeds no limit (core(5), proc(5))."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # absent in a kernel without core dumps
        Path("/proc/self/coredump_filter").write_text("0")
