"""A thousand histories of calls, crashes and replays; after each, the directory equals the model.

A crash comes before any system call that changes something; the next call is made by a provider that knows
nothing of the one that crashed. Real processes and a real SIGKILL are in ``tests/contract/test_crashes.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from hypothesis import strategies as st

from tests.histories.directory import DirectoryRig
from tests.histories.history import histories, run_histories

HISTORIES_WITH_A_CRASH = 1000


@contextmanager
def instant_fsync() -> Iterator[None]:
    """A crash of a process loses nothing that was written, so waiting for the disk shows nothing here."""
    with mock.patch("os.fsync", new=lambda _: None), mock.patch("os.fdatasync", new=lambda _: None):
        yield


def test_a_thousand_histories_end_as_the_model_says() -> None:
    """Field cases A1, D3."""
    # A blank create has more steps than 8.
    strategy = histories(st.integers(0, 16), st.integers(0, 8), most_faults=3, most_steps=14)
    with instant_fsync():
        assert run_histories(strategy, DirectoryRig, 1200) >= HISTORIES_WITH_A_CRASH
