"""Deadlines end, and end at once when the caller has gone."""

from __future__ import annotations

import pytest

from providers.deadline import Deadline
from providers.errors import DeadlineError


def test_time_runs_out() -> None:
    assert 1 < Deadline.after(60).remaining() <= 60
    Deadline.after(60).check()
    for passed in (0.0, -5.0):
        assert Deadline.after(passed).remaining() == 0.0
        with pytest.raises(DeadlineError):
            Deadline.after(passed).check()


def test_a_caller_that_has_gone_away_leaves_no_time() -> None:
    gone = False
    deadline = Deadline.after(60, lambda: gone)
    deadline.check()
    gone = True
    assert deadline.remaining() == 0.0
    with pytest.raises(DeadlineError):
        deadline.check()
