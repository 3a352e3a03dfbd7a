"""No memory of this process, or of a tool that it starts, in a core dump: it would hold keys."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

from agent.errors import Unavailable

_PR_SET_DUMPABLE = 4  # <linux/prctl.h>
_FILTER = Path("/proc/self/coredump_filter")


def forbid_dumps() -> None:
    """Forbid them in every way there is: a program that the kernel pipes dumps to heeds no limit (core(5)).

    Limit and filter hold for the tools, too. "Not dumpable" ends at their ``execve``; in this process it also
    keeps others without CAP_SYS_PTRACE from reading its memory.

    Raises:
        Unavailable: the kernel refused (``dumps-not-forbidden``).
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _FILTER.write_text("0")  # proc(5): no kind of mapping; inherited
    except OSError:
        if _FILTER.exists():  # absent in a kernel without core dumps
            raise Unavailable("dumps-not-forbidden", f"{_FILTER} can't be written") from None
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        reason = os.strerror(ctypes.get_errno())
        raise Unavailable("dumps-not-forbidden", f"prctl(PR_SET_DUMPABLE): {reason}")
