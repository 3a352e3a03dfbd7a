"""The local provider's directory: foreign things in it, leftovers of the dead, work of the living."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from providers.deadline import Deadline
from providers.errors import CorruptStateError, DeadlineError, InUseError
from providers.interface import ContentSource, SourceKind
from providers.local import LocalProvider
from tests.contract.calls import UNKNOWN_HANDLES, create, expander, of_volume, snapshots, soon, steps, volumes
from tests.contract.local_backend import LocalBackend, qemu_holding

MIB = 1024**2


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    backend = LocalBackend(tmp_path)
    backend.connect()
    return backend


@pytest.fixture
def provider(backend: LocalBackend) -> LocalProvider:
    return backend.connect()


def everything(directory: Path) -> dict[str, bytes | str]:
    """All paths below, with contents."""
    return {
        str(path): str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        for path in directory.rglob("*")
    }


def test_a_disk_is_a_sparse_private_raw_file(backend: LocalBackend, provider: LocalProvider) -> None:
    """No file system is made on the host: it reads as zeros."""
    volume = create(provider, extra_steps=63)
    disk = backend.disk(volume.handle)
    assert disk.stat().st_size == 64 * MIB
    assert disk.stat().st_blocks == 0
    assert disk.stat().st_mode & 0o777 == 0o600
    assert disk.parent.stat().st_mode & 0o777 == 0o700
    assert disk.read_bytes() == bytes(64 * MIB)


def test_content_goes_through_copies_and_growth(backend: LocalBackend, provider: LocalProvider) -> None:
    volume = create(provider, extra_steps=1)
    data = os.urandom(2 * MIB)
    backend.disk(volume.handle).write_bytes(data)
    snapshot = provider.create_snapshot("snap-1", volume.handle, soon())
    backend.disk(volume.handle).write_bytes(bytes(2 * MIB))
    restored = create(
        provider, "restored", extra_steps=3, source=ContentSource(SourceKind.SNAPSHOT, snapshot.handle)
    )
    clone = create(provider, "clone", extra_steps=1, source=of_volume(volume))
    expander(provider).expand_volume(clone.handle, steps(provider, 5), soon())
    assert backend.disk(restored.handle).read_bytes() == data + bytes(2 * MIB)
    assert backend.disk(clone.handle).read_bytes() == bytes(6 * MIB)
    assert backend.snapshot_disk(snapshot.handle).read_bytes() == data


def test_foreign_handles_reach_no_file(
    backend: LocalBackend, provider: LocalProvider, tmp_path: Path
) -> None:
    """Field case C9, with canaries wherever a handle might lead."""
    create(provider)
    for canary in ("x", "escape/x", "store/x", "store/volumes/a/b", "store/volumes/no-such/disk.raw"):
        (tmp_path / canary).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / canary).write_text("canary")
    before = everything(tmp_path)
    steps_made: list[None] = []
    with backend.watched(lambda: steps_made.append(None)):
        for handle in UNKNOWN_HANDLES:
            provider.delete_volume(handle, soon())
            provider.delete_snapshot(handle, soon())
            assert not provider.volume_exists(handle, soon())
    assert steps_made == []
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    "stray", ["file", "link", "empty", "no tags", "no disk", "disk is a directory", "other"]
)
def test_a_stray_thing_with_a_volumes_name_is_left_for_a_person(
    backend: LocalBackend, provider: LocalProvider, tmp_path: Path, stray: str
) -> None:
    place = backend.directory / "volumes" / "csi-vol-pvc-1"
    good = create(provider, "good")
    if stray == "file":
        place.write_text("stray")
    elif stray == "link":
        (tmp_path / "victim").mkdir()
        place.symlink_to(tmp_path / "victim")
    else:
        place.mkdir()
        if stray != "empty":
            (place / "disk.raw").write_bytes(b"disk")
            (place / "tags.json").write_bytes(backend.disk(good.handle).with_name("tags.json").read_bytes())
        if stray == "no tags":
            (place / "tags.json").unlink()
        if stray.startswith(("no disk", "disk is")):
            (place / "disk.raw").unlink()
        if stray == "disk is a directory":
            (place / "disk.raw").mkdir()
    before = everything(tmp_path)
    with pytest.raises(CorruptStateError):
        create(provider, "pvc-1")
    with pytest.raises(CorruptStateError):
        provider.delete_volume("csi-vol-pvc-1", soon())
    with pytest.raises(CorruptStateError):
        provider.expand_volume("csi-vol-pvc-1", 2 * MIB, soon())
    with pytest.raises(CorruptStateError):
        provider.volume_exists("csi-vol-pvc-1", soon())
    with pytest.raises(CorruptStateError):
        provider.create_snapshot("snap-1", "csi-vol-pvc-1", soon())
    with pytest.raises(CorruptStateError):
        create(provider, "copy", source=ContentSource(SourceKind.VOLUME, "csi-vol-pvc-1"))
    assert everything(tmp_path) == before
    assert volumes(provider).items == (good,)


def test_a_volume_with_a_foreign_file_is_not_deleted(backend: LocalBackend, provider: LocalProvider) -> None:
    volume = create(provider)
    note = backend.disk(volume.handle).with_name("note.txt")
    note.write_text("mine")
    with pytest.raises(CorruptStateError, match="not this driver's"):
        provider.delete_volume(volume.handle, soon())
    assert provider.get_volume_info(volume.handle, soon()) == volume
    note.unlink()
    provider.delete_volume(volume.handle, soon())
    assert backend.objects() == []


def test_a_snapshot_with_anothers_tags_is_left_for_a_person(
    backend: LocalBackend, provider: LocalProvider
) -> None:
    volume = create(provider)
    handle = provider.create_snapshot("snap-1", volume.handle, soon()).handle
    tags = backend.snapshot_disk(handle).with_name("tags.json")
    tags.write_text(json.dumps({**json.loads(tags.read_text()), "name": "snap-2"}))
    with pytest.raises(CorruptStateError):
        provider.get_snapshot(handle, soon())
    with pytest.raises(CorruptStateError):
        provider.delete_snapshot(handle, soon())
    with pytest.raises(CorruptStateError):
        create(provider, "copy", source=ContentSource(SourceKind.SNAPSHOT, handle))
    assert snapshots(provider).items == ()


def test_leftovers_of_the_dead_go_and_work_of_the_living_stays(
    backend: LocalBackend, provider: LocalProvider
) -> None:
    room = backend.directory / "volumes"
    dead, alive = room / ".tmp-dead", room / ".tmp-alive"
    for directory in (dead, alive):
        directory.mkdir()
        (directory / "disk.raw").write_bytes(b"half")
    lock = os.open(alive, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    create(provider, "pvc-1")
    assert backend.objects() == ["volumes/.tmp-alive", "volumes/csi-vol-pvc-1"]
    os.close(lock)
    provider.delete_volume("csi-vol-no-such", soon())
    assert backend.objects() == ["volumes/csi-vol-pvc-1"]


@pytest.mark.parametrize("what", ["file", "full"])
def test_foreign_leftovers_hinder_nobody(backend: LocalBackend, provider: LocalProvider, what: str) -> None:
    """Only the two files of an object are ever removed: never what a person put there."""
    stray = backend.directory / "volumes" / ".tmp-stray"
    if what == "file":
        stray.write_text("mine")
    else:
        stray.mkdir()
        (stray / "precious.txt").write_text("mine")
    create(provider)
    backend.connect().delete_volume("csi-vol-pvc-1", soon())
    assert backend.objects() == ["volumes/.tmp-stray"]
    assert b"mine" in everything(stray.parent).values()


def test_waiting_for_another_call_ends_at_the_deadline(
    backend: LocalBackend, provider: LocalProvider
) -> None:
    """Field case B3."""
    volume = create(provider)
    lock = os.open(backend.disk(volume.handle).parent, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    started = time.monotonic()
    with pytest.raises(DeadlineError):
        provider.delete_volume(volume.handle, Deadline.after(0.2))
    with pytest.raises(DeadlineError):
        provider.expand_volume(volume.handle, 2 * MIB, Deadline.after(0.2))
    assert time.monotonic() - started < 30
    assert provider.get_volume_info(volume.handle, soon()) == volume
    os.close(lock)
    provider.delete_volume(volume.handle, soon())


def test_a_disk_in_use_is_not_copied_where_blocks_can_not_be_shared(
    small_directory: Path,
) -> None:
    """tmpfs has no reflinks; the copy would be of no point in time."""
    provider = LocalProvider(small_directory)
    volume = create(provider)
    with qemu_holding(small_directory / "volumes" / volume.handle / "disk.raw"):
        with pytest.raises(InUseError):
            provider.create_snapshot("snap-1", volume.handle, soon())
        with pytest.raises(InUseError):
            create(provider, "clone", source=of_volume(volume))
    assert [one.name for one in volumes(provider).items] == ["pvc-1"]
    assert snapshots(provider).items == ()
    assert list((small_directory / "snapshots").iterdir()) == []


def test_a_disk_in_use_is_copied_where_blocks_are_shared(reflink_directory: Path) -> None:
    provider = LocalProvider(reflink_directory)
    volume = create(provider)
    disk = reflink_directory / "volumes" / volume.handle / "disk.raw"
    disk.write_bytes(b"x" * MIB)
    with qemu_holding(disk):
        snapshot = provider.create_snapshot("snap-1", volume.handle, soon())
        clone = create(provider, "clone", source=of_volume(volume))
    assert (reflink_directory / "snapshots" / snapshot.handle / "disk.raw").read_bytes() == b"x" * MIB
    assert (reflink_directory / "volumes" / clone.handle / "disk.raw").read_bytes() == b"x" * MIB


def test_a_pipe_in_place_of_tags_keeps_nobody_waiting(backend: LocalBackend, provider: LocalProvider) -> None:
    good, bad = create(provider, "good"), create(provider, "bad")
    tags = backend.disk(bad.handle).with_name("tags.json")
    tags.unlink()
    os.mkfifo(tags)
    with pytest.raises(CorruptStateError, match="not a regular file"):
        provider.get_volume_info(bad.handle, soon())
    assert volumes(provider).items == (good,)
