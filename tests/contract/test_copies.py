"""Snapshots, restored volumes and clones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from providers.errors import (
    SizeOutOfRangeError,
    SnapshotNotFoundError,
    UnavailableError,
    VolumeNotFoundError,
)
from providers.interface import BlockVolumeProvider, ContentSource, SourceKind
from tests.contract.backend import Backend
from tests.contract.calls import (
    LUKS,
    UNKNOWN_HANDLES,
    create,
    of_snapshot,
    of_volume,
    snapshots,
    snapshotter,
    soon,
    steps,
)


@pytest.mark.needs("snapshotter")
def test_a_snapshot_is_of_its_volume(provider: BlockVolumeProvider) -> None:
    volume = create(provider, extra_steps=2)
    snapshot = snapshotter(provider).create_snapshot("snap-1", volume.handle, soon())

    assert snapshot.name == "snap-1"
    assert snapshot.source_handle == volume.handle
    assert snapshot.size_bytes == steps(provider, 2)
    assert snapshot.encryption == LUKS
    assert snapshot.fs_type == "ext4"
    assert snapshot.created_at.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - snapshot.created_at) < timedelta(minutes=2)
    assert snapshotter(provider).get_snapshot(snapshot.handle, soon()) == snapshot


@pytest.mark.needs("snapshotter")
def test_a_replayed_snapshot_finds_the_first(backend: Backend) -> None:
    """Even for another source, which the caller compares, and when the source is gone."""
    provider = backend.connect()
    first, second = create(provider, "one"), create(provider, "two")
    snapshot = snapshotter(provider).create_snapshot("snap-1", first.handle, soon())
    again = snapshotter(backend.connect())
    assert again.create_snapshot("snap-1", first.handle, soon()) == snapshot
    assert again.create_snapshot("snap-1", second.handle, soon()) == snapshot
    provider.delete_volume(first.handle, soon())
    assert again.create_snapshot("snap-1", first.handle, soon()) == snapshot


@pytest.mark.needs("snapshotter")
@pytest.mark.parametrize("handle", [*UNKNOWN_HANDLES, "csi-vol-gone"])
def test_there_is_no_snapshot_of_what_does_not_exist(backend: Backend, handle: str) -> None:
    """Field case C9."""
    with pytest.raises(VolumeNotFoundError):
        snapshotter(backend.connect()).create_snapshot("snap-1", handle, soon())
    assert backend.objects() == []


@pytest.mark.needs("snapshotter")
@pytest.mark.parametrize("handle", UNKNOWN_HANDLES)
def test_foreign_snapshot_handles_are_unknown(backend: Backend, handle: str) -> None:
    """Field cases C9, E7."""
    provider = backend.connect()
    snapshotter(provider).create_snapshot("snap-1", create(provider).handle, soon())
    held = backend.objects()
    snapshotter(provider).delete_snapshot(handle, soon())
    with pytest.raises(SnapshotNotFoundError):
        snapshotter(provider).get_snapshot(handle, soon())
    assert backend.objects() == held


@pytest.mark.needs("snapshotter")
def test_a_snapshot_is_deleted_by_its_handle_alone(backend: Backend) -> None:
    """Field case E7: the volumes are gone, and the process is a new one."""
    provider = backend.connect()
    volume = create(provider)
    handle = snapshotter(provider).create_snapshot("snap-1", volume.handle, soon()).handle
    provider.delete_volume(volume.handle, soon())
    for _ in range(2):
        snapshotter(backend.connect()).delete_snapshot(handle, soon())
        assert backend.objects() == []
    with pytest.raises(SnapshotNotFoundError):
        snapshotter(provider).get_snapshot(handle, soon())


@pytest.mark.needs("snapshotter")
def test_an_unreachable_backend_has_not_lost_its_snapshots(backend: Backend) -> None:
    """Field case A6."""
    provider = backend.connect()
    volume = create(provider)
    handle = snapshotter(provider).create_snapshot("snap-1", volume.handle, soon()).handle
    held = backend.objects()
    with backend.unreachable():
        with pytest.raises(UnavailableError):
            snapshotter(provider).delete_snapshot(handle, soon())
        with pytest.raises(UnavailableError):
            snapshotter(provider).get_snapshot(handle, soon())
        with pytest.raises(UnavailableError):
            snapshotter(provider).create_snapshot("snap-2", volume.handle, soon())
        with pytest.raises(UnavailableError):
            snapshots(provider)
    assert backend.objects() == held


@pytest.mark.needs("snapshotter")
def test_a_restored_volume_tells_its_source_for_ever(backend: Backend) -> None:
    """Field case E3: a replay gives the same answer, source included, whatever it asks for."""
    provider = backend.connect()
    volume = create(provider)
    one = of_snapshot(snapshotter(provider).create_snapshot("snap-1", volume.handle, soon()))
    two = of_snapshot(snapshotter(provider).create_snapshot("snap-2", volume.handle, soon()))
    restored = create(provider, "restored", extra_steps=1, source=one)
    assert restored.source == one
    assert restored.size_bytes == steps(provider, 1)
    for source in (one, two, None):
        assert create(backend.connect(), "restored", extra_steps=1, source=source) == restored
    provider.delete_volume(volume.handle, soon())
    snapshotter(provider).delete_snapshot(one.handle, soon())
    assert create(backend.connect(), "restored", extra_steps=1, source=one) == restored
    assert provider.get_volume_info(restored.handle, soon()) == restored


@pytest.mark.needs("cloner")
def test_a_clone_tells_its_source(backend: Backend) -> None:
    """Field case E3."""
    provider = backend.connect()
    volume = create(provider, extra_steps=1)
    clone = create(provider, "clone", extra_steps=2, source=of_volume(volume))
    assert clone.source == of_volume(volume)
    assert clone.size_bytes == steps(provider, 2)
    provider.delete_volume(volume.handle, soon())
    assert create(backend.connect(), "clone", extra_steps=2, source=of_volume(volume)) == clone


@pytest.mark.needs("cloner", "snapshotter")
def test_a_source_larger_than_the_volume_is_refused(backend: Backend) -> None:
    provider = backend.connect()
    volume = create(provider, extra_steps=2)
    snapshot = snapshotter(provider).create_snapshot("snap-1", volume.handle, soon())
    held = backend.objects()
    for source in (of_volume(volume), of_snapshot(snapshot)):
        with pytest.raises(SizeOutOfRangeError):
            create(provider, "small", extra_steps=1, source=source)
    assert backend.objects() == held


@pytest.mark.needs("cloner", "snapshotter")
@pytest.mark.parametrize("handle", [*UNKNOWN_HANDLES, "csi-vol-gone", "csi-snap-gone"])
def test_nothing_is_copied_from_what_does_not_exist(backend: Backend, handle: str) -> None:
    """Field case C9."""
    provider = backend.connect()
    with pytest.raises(VolumeNotFoundError):
        create(provider, source=ContentSource(SourceKind.VOLUME, handle))
    with pytest.raises(SnapshotNotFoundError):
        create(provider, source=ContentSource(SourceKind.SNAPSHOT, handle))
    assert backend.objects() == []
