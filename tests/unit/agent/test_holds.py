"""Counting the containers of a volume, across restarts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.annotation import CloudVolume
from agent.errors import Unavailable
from agent.holds import Hold, Holds


def volume(index: int) -> CloudVolume:
    return CloudVolume(index, f"/data{index}", "ext4", index, f"disk-{index}", 1000, "luks2", "a/b/c")


def hold(container_id: str, *indices: int) -> Hold:
    return Hold(container_id, tuple(volume(index) for index in indices))


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 3), max_size=3, unique=True), st.booleans())
    )
)
def test_a_volume_is_given_up_with_its_last_hold_and_never_before(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[int], bool]]
) -> None:
    file = tmp_path_factory.mktemp("holds") / "holds.json"
    holds = Holds(file)
    held: list[tuple[str, set[str]]] = []
    for container_id, indices, add in steps:
        if add:
            holds.add(hold(container_id, *indices))
            held.append((container_id, {f"vol-{index}" for index in indices}))
        else:
            for one in holds.of(container_id):
                freed = set(holds.drop(one))
                found = next(item for item in held if item[0] == container_id)
                held.remove(found)
                assert freed == found[1] - set().union(*(names for _, names in held))
        assert {one.name for one in holds.volumes()} == set().union(*(names for _, names in held))
        # A restarted proxy goes on where this one stands.
        assert Holds(file).all() == holds.all()
        holds = Holds(file)


def test_a_hold_that_can_not_be_written_down_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "holds.new").mkdir()
    holds = Holds(tmp_path / "holds.json")
    with pytest.raises(Unavailable, match=r"\[state-unwritable\]"):
        holds.add(hold("a", 0))
    assert holds.all() == []


@pytest.mark.parametrize("content", [b"", b"{}x", b"[1]", b'[{"container_id": "a"}]', b"\xff"])
def test_holds_that_can_not_be_read_stop_the_proxy(tmp_path: Path, content: bytes) -> None:
    """To go on would mean to close what is in use."""
    (tmp_path / "holds.json").write_bytes(content)
    with pytest.raises(Unavailable, match=r"\[state-unreadable\]"):
        Holds(tmp_path / "holds.json")


def test_work_on_one_volume_waits_and_on_another_does_not(tmp_path: Path) -> None:
    holds = Holds(tmp_path / "holds.json")
    entered = threading.Event()

    def work() -> None:
        with holds.working_on(["vol-1", "vol-0", "vol-1"]):
            entered.set()

    thread = threading.Thread(target=work)
    with holds.working_on(["vol-0"]):
        thread.start()
        assert not entered.wait(0.2)
        with holds.working_on(["vol-2"]):
            pass
    assert entered.wait(60)
    thread.join(60)
