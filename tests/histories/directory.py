"""The real thing beside the model: a directory, calls that can crash, and a look at all that they left."""

from __future__ import annotations

from pathlib import Path

from providers.deadline import Deadline
from providers.errors import ProviderError
from providers.interface import VolumeRequest
from providers.local import LocalProvider
from tests.contract.local_backend import LocalBackend
from tests.histories.model import (
    MIB,
    Call,
    Create,
    Delete,
    DeleteSnapshot,
    Expand,
    Model,
    ModelSnapshot,
    ModelVolume,
    TakeSnapshot,
    Write,
    snapshot_handle,
    volume_handle,
)

BLOCKS = 4
_BLOCK_BYTES = 64 * 1024
_MARK_BYTES = 16
_ZEROS = bytes(_BLOCK_BYTES)


class Crash(BaseException):
    """The process is gone. Not an Exception: nothing in the provider may survive it."""


class _CrashAt:
    """Crashes before the step of that number, and at every one after it: a dead process does nothing more."""

    def __init__(self, step: int | None) -> None:
        self._left = step

    def __call__(self) -> None:
        if self._left is not None:
            if self._left == 0:
                raise Crash
            self._left -= 1


def run(backend: LocalBackend, call: Call, crash_at: int | None) -> type[ProviderError] | None:
    """Make the call by a provider that knows nothing of earlier ones; the class of the error it ends with.

    Raises:
        Crash: the call had more than ``crash_at`` steps.
    """
    provider = backend.connect()
    try:
        with backend.watched(_CrashAt(crash_at)):
            _call(provider, call)
    except ProviderError as error:
        return type(error)
    return None


def _call(provider: LocalProvider, call: Call) -> None:
    deadline = Deadline.after(60)
    match call:
        case Create(name, mib, encryption, source):
            volume = provider.create_volume(
                VolumeRequest(name, mib * MIB, encryption, "ext4", source=source), deadline
            )
            assert volume.handle == volume_handle(name)
        case Delete(name):
            provider.delete_volume(volume_handle(name), deadline)
        case Expand(name, mib):
            assert provider.expand_volume(volume_handle(name), mib * MIB, deadline) >= mib * MIB
        case TakeSnapshot(name, volume_name):
            snapshot = provider.create_snapshot(name, volume_handle(volume_name), deadline)
            assert snapshot.handle == snapshot_handle(name)
        case DeleteSnapshot(name):
            provider.delete_snapshot(snapshot_handle(name), deadline)


def write(backend: LocalBackend, operation: Write) -> None:
    """Write as the guest would, if the volume is there."""
    disk = backend.disk(volume_handle(operation.name))
    if disk.exists():
        with disk.open("r+b") as file:
            file.seek(operation.block * _BLOCK_BYTES)
            file.write(operation.mark.to_bytes(_MARK_BYTES, "big"))


def look(backend: LocalBackend) -> Model:
    """What readers see: the listings, and what is written on each disk."""
    provider, deadline = backend.connect(), Deadline.after(60)
    volumes = {
        volume.handle: ModelVolume(
            name=volume.name,
            mib=volume.size_bytes // MIB,
            created_mib=volume.created_size_bytes // MIB,
            encryption=volume.encryption,
            source=volume.source,
            marks=_marks(backend.disk(volume.handle)),
        )
        for volume in provider.list_volumes(0, "", deadline).items
    }
    snapshots = {
        snapshot.handle: ModelSnapshot(
            name=snapshot.name,
            source_handle=snapshot.source_handle,
            mib=snapshot.size_bytes // MIB,
            encryption=snapshot.encryption,
            marks=_marks(backend.snapshot_disk(snapshot.handle)),
        )
        for snapshot in provider.list_snapshots(None, 0, "", deadline).items
    }
    return Model(volumes, snapshots)


def files(backend: LocalBackend) -> set[str]:
    """Every file and directory that there is, leftovers included."""
    return {str(path.relative_to(backend.directory)) for path in backend.directory.rglob("*")}


def files_of(model: Model) -> set[str]:
    """Every file and directory that there should be."""
    objects = [f"volumes/{handle}" for handle in model.volumes]
    objects += [f"snapshots/{handle}" for handle in model.snapshots]
    parts = {f"{one}/{file}" for one in objects for file in ("disk.raw", "tags.json")}
    return {"volumes", "snapshots", *objects, *parts}


def _marks(disk: Path) -> dict[int, int]:
    """The marks on the disk, by block. Whatever else is not zero counts as one, so that it shows."""
    data = disk.read_bytes()
    marks = {}
    for block in range(len(data) // _BLOCK_BYTES):
        content = data[block * _BLOCK_BYTES : (block + 1) * _BLOCK_BYTES]
        if content != _ZEROS:
            assert content[_MARK_BYTES:] == _ZEROS[_MARK_BYTES:]
            marks[block] = int.from_bytes(content[:_MARK_BYTES], "big")
    return marks
