"""How long the parts of a mount took, as ``status --json`` tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent import phases
from agent.phases import Phase, Phases, forget, last_mount
from tests.unit.agent.fake_clock import FakeClock


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "STATE_ROOT", tmp_path)


def test_phases_are_told_in_their_order_and_add_up() -> None:
    clock = FakeClock()
    measured = Phases(clock)
    for phase, seconds in ((Phase.OPEN, 2.0), (Phase.DETECT, 0.25), (Phase.OPEN, 0.5)):
        with measured.of(phase):
            clock.sleep(seconds)
    clock.sleep(100)
    measured.keep("vol-0")
    assert list(last_mount("vol-0").items()) == [("detect", 0.25), ("open", 2.5)]
    assert last_mount("vol-1") == {}
    forget("vol-0")
    assert last_mount("vol-0") == {}
    forget("vol-0")


def test_a_part_that_fails_is_measured_too() -> None:
    clock = FakeClock()
    measured = Phases(clock)
    with pytest.raises(KeyError), measured.of(Phase.KEY):
        clock.sleep(3)
        raise KeyError
    measured.keep("vol-0")
    assert last_mount("vol-0") == {"key": 3.0}


@pytest.mark.parametrize(
    "noted", ["", "{", "[]", "7", '{"open": "x", "other": 1}', '{"open": NaN}', '{"open": {}}', "\xff"]
)
def test_what_is_no_note_of_ours_is_left_out(noted: str, tmp_path: Path) -> None:
    (tmp_path / "vol-0.phases.json").write_text(noted, encoding="latin-1")
    assert last_mount("vol-0") == {}


def test_figures_that_can_t_be_kept_do_not_stop_a_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "STATE_ROOT", tmp_path / "missing")
    Phases(FakeClock()).keep("vol-0")
    assert last_mount("vol-0") == {}
