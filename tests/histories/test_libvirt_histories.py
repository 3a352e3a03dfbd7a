"""Histories of calls, faults and replays on libvirt; after each, the pool holds what the model says.

In memory a fault comes at any call of libvirt, before, half-way through, or after it was done; it ends the
process or the connection. On a real libvirtd a few more, at the calls that change something.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from tests.fakes.libvirt_host.host import Fault
from tests.histories.history import Steps, histories, run_histories
from tests.histories.libvirt_hosts import FakeHost, RealHost

HISTORIES_WITH_A_FAULT = 500
REAL_HISTORIES = 20
_CALLS_OF_A_CREATE = 35  # at least so many, of a blank volume


def _histories(calls: int, moments: tuple[str, ...]) -> st.SearchStrategy[Steps]:
    """Histories with faults among the first ``calls`` calls of libvirt that a call makes."""

    def faults(count: int) -> st.SearchStrategy[Fault]:
        return st.builds(Fault, st.integers(0, count - 1), st.sampled_from(moments), st.booleans())

    return histories(faults(calls), faults(min(calls, _CALLS_OF_A_CREATE)), most_faults=3, most_steps=12)


def _new_host(_directory: Path) -> FakeHost:
    return FakeHost()


def test_five_hundred_histories_with_faults_end_as_the_model_says() -> None:
    """Field cases A1, D3, E2: no duplicate, no leak, nothing of another's deleted, no data lost."""
    strategy = _histories(65, ("before", "during", "after"))
    assert run_histories(strategy, _new_host, 560) >= HISTORIES_WITH_A_FAULT


def test_histories_on_a_real_libvirtd_end_as_the_model_says() -> None:
    strategy = _histories(6, ("before", "after"))
    assert run_histories(strategy, RealHost, REAL_HISTORIES) >= REAL_HISTORIES * 0.9
