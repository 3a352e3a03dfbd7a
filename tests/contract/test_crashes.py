"""A process killed at any step of a call, and another one that carries on. Field case D3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from providers.interface import (
    BlockVolumeProvider,
    Snapshot,
    Volume,
    VolumeCloner,
    VolumeExpander,
    VolumeLister,
    VolumeSnapshotter,
)
from tests.contract.backend import Backend
from tests.contract.backends import BACKENDS
from tests.contract.calls import (
    create,
    expander,
    of_snapshot,
    of_volume,
    snapshots,
    snapshotter,
    soon,
    steps,
    volumes,
)
from tests.contract.processes import Call, killed_at


def _nothing(_: BlockVolumeProvider) -> None:
    pass


def _create(provider: BlockVolumeProvider) -> None:
    create(provider, "pvc-1", extra_steps=1)


def _delete(provider: BlockVolumeProvider) -> None:
    provider.delete_volume(provider.handle_for_name("pvc-1"), soon())


def _expand(provider: BlockVolumeProvider) -> None:
    expander(provider).expand_volume(provider.handle_for_name("pvc-1"), steps(provider, 4), soon())


def _snapshot(provider: BlockVolumeProvider) -> None:
    snapshotter(provider).create_snapshot("snap-1", provider.handle_for_name("pvc-1"), soon())


def _create_and_snapshot(provider: BlockVolumeProvider) -> None:
    _create(provider)
    _snapshot(provider)


def _delete_snapshot(provider: BlockVolumeProvider) -> None:
    for snapshot in snapshots(provider).items:
        snapshotter(provider).delete_snapshot(snapshot.handle, soon())


def _restore(provider: BlockVolumeProvider) -> None:
    snapshot = snapshots(provider).items[0]
    create(provider, "copy", extra_steps=2, source=of_snapshot(snapshot))


def _clone(provider: BlockVolumeProvider) -> None:
    volume = provider.get_volume_info(provider.handle_for_name("pvc-1"), soon())
    create(provider, "copy", extra_steps=2, source=of_volume(volume))


def _delete_copy(provider: BlockVolumeProvider) -> None:
    provider.delete_volume(provider.handle_for_name("copy"), soon())


@dataclass(frozen=True)
class Scenario:
    """What is killed, after what, and what deletes its result."""

    prepare: Call
    act: Call
    undo: Call
    needs: tuple[type, ...] = ()


SCENARIOS = {
    "create": Scenario(_nothing, _create, _delete),
    "delete": Scenario(_create, _delete, _delete),
    "expand": Scenario(_create, _expand, _delete, (VolumeExpander,)),
    "snapshot": Scenario(_create, _snapshot, _delete_snapshot, (VolumeSnapshotter,)),
    "delete_snapshot": Scenario(
        _create_and_snapshot, _delete_snapshot, _delete_snapshot, (VolumeSnapshotter,)
    ),
    "restore": Scenario(_create_and_snapshot, _restore, _delete_copy, (VolumeSnapshotter,)),
    "clone": Scenario(_create, _clone, _delete_copy, (VolumeCloner,)),
}


def _cases() -> Iterator[object]:
    for backend in BACKENDS:
        if __name__ in backend.cannot:
            continue
        for name, scenario in SCENARIOS.items():
            if all(issubclass(backend.provider_class, interface) for interface in scenario.needs):
                yield pytest.param(backend, scenario, id=f"{backend.test_id()}-{name}")


def _volumes(provider: BlockVolumeProvider) -> list[Volume]:
    if isinstance(provider, VolumeLister):
        return list(volumes(provider).items)
    handles = [provider.handle_for_name(name) for name in ("pvc-1", "copy")]
    return [
        provider.get_volume_info(handle, soon())
        for handle in handles
        if provider.volume_exists(handle, soon())
    ]


def _snapshots(provider: BlockVolumeProvider) -> list[Snapshot]:
    return list(snapshots(provider).items) if isinstance(provider, VolumeSnapshotter) else []


def _state(provider: BlockVolumeProvider) -> tuple[object, ...]:
    """All that a reader can see, without what differs between runs: names in place of handles."""
    listed, taken = _volumes(provider), _snapshots(provider)
    names = {volume.handle: volume.name for volume in listed}
    names |= {snapshot.handle: snapshot.name for snapshot in taken}
    return (
        sorted(
            (
                volume.name,
                volume.size_bytes,
                volume.created_size_bytes,
                volume.fs_type,
                str(volume.encryption),
                "" if volume.source is None else names.get(volume.source.handle, "gone"),
            )
            for volume in listed
        ),
        sorted(
            (snapshot.name, names.get(snapshot.source_handle, "gone"), snapshot.size_bytes)
            for snapshot in taken
        ),
    )


def _prepared(kind: type[Backend], directory: Path, prepare: Call) -> Backend:
    directory.mkdir()
    backend = kind(directory)
    prepare(backend.connect())
    return backend


@pytest.mark.parametrize(("kind", "scenario"), list(_cases()))
def test_a_call_killed_anywhere_is_finished_or_undone_by_another_process(
    kind: type[Backend], scenario: Scenario, tmp_path: Path
) -> None:
    """Nothing duplicated, nothing lost, nothing half-made visible, for a kill before every single step."""
    reference = _prepared(kind, tmp_path / "reference", scenario.prepare)
    before = _state(reference.connect())
    scenario.act(reference.connect())
    after = _state(reference.connect())
    objects_after = reference.objects()
    scenario.undo(reference.connect())
    undone, objects_undone = _state(reference.connect()), reference.objects()

    seen = []
    for step in count(1):
        replayed = _prepared(kind, tmp_path / f"replayed-{step}", scenario.prepare)
        if not killed_at(step, replayed, scenario.act):
            break
        replayed.objects()  # where answers lag behind, this lets them come up
        state = _state(replayed.connect())
        assert state in (before, after)
        seen.append(state)
        scenario.act(replayed.connect())
        assert _state(replayed.connect()) == after
        assert replayed.objects() == objects_after

        abandoned = _prepared(kind, tmp_path / f"abandoned-{step}", scenario.prepare)
        assert killed_at(step, abandoned, scenario.act)
        scenario.undo(abandoned.connect())
        assert _state(abandoned.connect()) == undone
        assert abandoned.objects() == objects_undone

    # The kills did come both before and after the change became visible.
    assert before in seen
    assert after in seen


def test_a_call_killed_again_and_again_is_finished_at_last(backend: Backend) -> None:
    attempts = count(1)
    while killed_at(next(attempts), backend, _create):
        pass
    assert len(_volumes(backend.connect())) == len(backend.objects()) == 1
    attempts = count(1)
    while killed_at(next(attempts), backend, _delete):
        pass
    assert backend.objects() == []
