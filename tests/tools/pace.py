"""How fast this machine is, so that a budget of seconds says something of the program alone."""

from __future__ import annotations

import functools
import resource
import subprocess
from pathlib import Path

_PYTHON = Path("/usr/bin/python3")
_ROUNDS = 5


@functools.cache
def bare_start_seconds() -> float:
    """Seconds of a processor that Python takes to start and do nothing; the best of some starts."""
    return min(_start() for _ in range(_ROUNDS))


def _start() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([_PYTHON, "-I", "-c", ""], check=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
