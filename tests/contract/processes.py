"""Provider calls in processes of their own, which share nothing with this one and can be killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from itertools import count
from multiprocessing.synchronize import Barrier

from providers.interface import BlockVolumeProvider
from tests.contract.backend import Backend

# Forked, not spawned: hundreds of them are killed, and each would import pytest first.
_FORK = multiprocessing.get_context("fork")

Call = Callable[[BlockVolumeProvider], object]
"""A call on a provider."""

_STEP_PAUSE_SECONDS = 0.002  # long enough that calls started together overlap at every step


def killed_at(step: int, backend: Backend, call: Call) -> bool:
    """Make the call in a process that kills itself before the step of that number (from 1).

    False if the call ended before it came to that step.
    """
    process = _FORK.Process(target=_call_until, args=(step, backend, call))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def _call_until(last: int, backend: Backend, call: Call) -> None:
    provider = backend.connect()
    steps = count(1)

    def die_at_last() -> None:
        if next(steps) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    with backend.watched(die_at_last):
        call(provider)


def together(backend: Backend, *calls: Call) -> None:
    """Make the calls at one time, each in a process of its own; all must succeed."""
    barrier = _FORK.Barrier(len(calls))
    processes = [_FORK.Process(target=_call_slowly, args=(barrier, backend, call)) for call in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(calls)


def _call_slowly(barrier: Barrier, backend: Backend, call: Call) -> None:
    backend.races = True  # in this process
    provider = backend.connect()
    barrier.wait()
    with backend.watched(lambda: time.sleep(_STEP_PAUSE_SECONDS)):
        call(provider)
