"""An encryption proof of a disk that a real guest made, read from the host without the key."""

from __future__ import annotations

from pathlib import Path

from cli.inspect.image import inspect_image
from cli.inspect.story import Verdict


def test_a_volume_of_a_real_guest_is_proved_encrypted(ready_copy: Path) -> None:
    before = ready_copy.read_bytes()
    story = inspect_image(ready_copy)
    assert (story.alarms, story.remarks, story.unseen) == ([], [], [])
    assert story.conclusion.startswith(
        "Encrypted, as far as a disk can show it: LUKS2 made by this driver's agent"
    )
    assert {one.verdict for one in story.statements if one.name != "header-not-authenticated"} == {
        Verdict.HOLDS
    }
    sample = next(section.facts for section in story.sections if section.key == "sample")
    assert sample["like random bytes"] != 0
    assert sample["readable"] == 0
    assert ready_copy.read_bytes() == before
