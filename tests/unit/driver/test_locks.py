"""One call at a time on one object."""

from __future__ import annotations

import pytest

from driver.errors import Aborted
from driver.locks import InFlight


def test_the_loser_is_told_at_once_and_others_are_not_held_up() -> None:
    locks = InFlight()
    with locks.hold("a", "b"):
        for key in ("a", "b"):
            with pytest.raises(Aborted), locks.hold("c", key):
                pass
        with locks.hold("c"):
            pass
    with locks.hold("a"):
        pass


def test_a_failure_inside_frees_the_object() -> None:
    locks = InFlight()
    with pytest.raises(KeyError), locks.hold("a"):
        raise KeyError
    with locks.hold("a"):
        pass
