"""The provider of sparse raw files, for one machine: development, demos, tests, single-node set-ups.

``CONFIDENTIAL_CSI_LOCAL_DIRECTORY`` names a directory with two rooms, ``volumes`` and ``snapshots``; volume
``csi-vol-x`` is ``volumes/csi-vol-x/disk.raw``. Let it be a sub-directory of the file system that holds it,
not the mount point itself: then an unmounted file system is an error at start, not an empty store.

Without reflinks (XFS and Btrfs have them, ext4 does not) copying a disk that a virtual machine can write to
is refused with InUseError, because such a copy would be of no point in time; and a copy that the deadline
ends starts again on retry, so data that takes longer than a call to copy needs reflinks or a longer timeout.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from providers.deadline import Deadline
from providers.errors import (
    ConfigurationError,
    CorruptStateError,
    OutcomeUnknownError,
    ProviderError,
    QuotaExceededError,
    SizeOutOfRangeError,
    SnapshotNotFoundError,
    UnavailableError,
    VolumeNotFoundError,
)
from providers.interface import (
    BackendCheck,
    BlockVolumeProvider,
    CapacityReporter,
    ContentSource,
    Item,
    Page,
    Snapshot,
    SourceKind,
    Volume,
    VolumeCloner,
    VolumeCondition,
    VolumeExpander,
    VolumeHealth,
    VolumeLister,
    VolumeRequest,
    VolumeSnapshotter,
)
from providers.local import health
from providers.local.class_rules import LocalClassRules
from providers.local.copying import copy_disk
from providers.local.room import OpenedDisk, Room, StoredObject
from providers.names import backend_name, is_backend_name
from providers.paging import page
from providers.tags import SnapshotTags, VolumeTags, decode_snapshot, decode_volume, encode

DIRECTORY_SETTING = "CONFIDENTIAL_CSI_LOCAL_DIRECTORY"
VOLUMES = "volumes"
SNAPSHOTS = "snapshots"

_VOLUME_PREFIX = "csi-vol-"
_SNAPSHOT_PREFIX = "csi-snap-"
_log = logging.getLogger(__name__)

_MIB = 1024**2
_TIB = 1024**4


class LocalProvider(
    LocalClassRules,
    BlockVolumeProvider,
    VolumeExpander,
    VolumeSnapshotter,
    VolumeCloner,
    VolumeLister,
    CapacityReporter,
    VolumeHealth,
    BackendCheck,
):
    """Disks in ``directory``, an existing one; its two rooms are made if they are missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._volumes = Room(directory / VOLUMES)
        self._snapshots = Room(directory / SNAPSHOTS)
        try:
            # Only here: a room that is missing later was unmounted, and its objects are not gone.
            self._volumes.prepare()
            self._snapshots.prepare()
        except OSError as error:
            raise ConfigurationError(
                f"{directory} can't hold volumes ({error.strerror}); {DIRECTORY_SETTING} must name "
                "an existing directory that this process can write to"
            ) from error

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        directory = Path(settings.get(DIRECTORY_SETTING, ""))
        if not directory.is_absolute():
            raise ConfigurationError(
                f"{DIRECTORY_SETTING} must be set to the absolute path of an existing directory for the disks"
            )
        return cls(directory)

    def handle_for_name(self, name: str) -> str:
        return backend_name(_VOLUME_PREFIX, name)

    def create_volume(self, request: VolumeRequest, deadline: Deadline) -> Volume:
        deadline.check()
        handle = self.handle_for_name(request.name)
        existing = self._find_volume(handle)
        if existing is not None:
            self._volumes.settle()
            return existing
        self._check_size(request.size_bytes)
        tags = VolumeTags(
            name=request.name,
            created_size_bytes=request.size_bytes,
            encryption=request.encryption,
            fs_type=request.fs_type,
            source=request.source,
            labels=dict(request.labels),
            created_at=datetime.now(UTC),
        )
        with self._open_source(request.source) as source:

            def fill(disk: int) -> None:
                if source is not None:
                    _check_source_fits(source, request.size_bytes)
                    copy_disk(source.descriptor, disk, deadline)
                # Never cut: the source may have been expanded since its size was read.
                os.ftruncate(disk, max(request.size_bytes, os.fstat(disk).st_size))

            self._volumes.create(handle, encode(tags), fill)
        created = self._find_volume(handle)
        if created is None:
            raise OutcomeUnknownError(f"{handle} was deleted by another call as it was created; call again")
        return created

    def delete_volume(self, handle: str, deadline: Deadline) -> None:
        if _is_volume(handle):
            self._volumes.delete(handle, lambda tags: _volume_tags(handle, tags), deadline)

    def get_volume_info(self, handle: str, deadline: Deadline) -> Volume:
        deadline.check()
        volume = self._find_volume(handle)
        if volume is None:
            raise _no_volume()
        return volume

    def volume_exists(self, handle: str, deadline: Deadline) -> bool:
        deadline.check()
        return self._find_volume(handle) is not None

    def expand_volume(self, handle: str, size_bytes: int, deadline: Deadline) -> int:
        if not _is_volume(handle):
            raise _no_volume()
        self._check_file_system_holds(size_bytes)
        size = self._volumes.grow(handle, size_bytes, lambda tags: _volume_tags(handle, tags), deadline)
        if size is None:
            raise _no_volume()
        return size

    def create_snapshot(self, name: str, source_handle: str, deadline: Deadline) -> Snapshot:
        deadline.check()
        handle = backend_name(_SNAPSHOT_PREFIX, name)
        existing = self._find_snapshot(handle)
        if existing is not None:
            self._snapshots.settle()
            return existing
        with self._open_volume(source_handle) as source:
            volume = _volume(source_handle, source.stored)
            tags = SnapshotTags(
                name=name,
                source_handle=source_handle,
                encryption=volume.encryption,
                fs_type=volume.fs_type,
                created_at=datetime.now(UTC),
            )
            self._snapshots.create(
                handle, encode(tags), lambda disk: copy_disk(source.descriptor, disk, deadline)
            )
        created = self._find_snapshot(handle)
        if created is None:
            raise OutcomeUnknownError(f"{handle} was deleted by another call as it was created; call again")
        return created

    def delete_snapshot(self, handle: str, deadline: Deadline) -> None:
        if _is_snapshot(handle):
            self._snapshots.delete(handle, lambda tags: _snapshot_tags(handle, tags), deadline)

    def get_snapshot(self, handle: str, deadline: Deadline) -> Snapshot:
        deadline.check()
        snapshot = self._find_snapshot(handle)
        if snapshot is None:
            raise _no_snapshot()
        return snapshot

    def list_snapshots(
        self, source_handle: str | None, max_entries: int, token: str, deadline: Deadline
    ) -> Page[Snapshot]:
        def load(handle: str) -> Snapshot | None:
            deadline.check()
            snapshot = _unless_corrupt(self._find_snapshot, handle)
            if snapshot is None or source_handle not in (None, snapshot.source_handle):
                return None
            return snapshot

        return page(_is_snapshot, self._snapshots.names(), load, max_entries, token)

    def list_volumes(self, max_entries: int, token: str, deadline: Deadline) -> Page[Volume]:
        def load(handle: str) -> Volume | None:
            deadline.check()
            return _unless_corrupt(self._find_volume, handle)

        return page(_is_volume, self._volumes.names(), load, max_entries, token)

    def available_bytes(self, parameters: Mapping[str, str], deadline: Deadline) -> int:
        deadline.check()
        self.validate_parameters(parameters)
        free = self._free_bytes()
        return free - free % self.size_step_bytes

    def volume_conditions(
        self, volumes: Sequence[Volume], deadline: Deadline
    ) -> Mapping[str, VolumeCondition]:
        deadline.check()
        return health.conditions(volumes, self._free_bytes())

    def check_backend(self, deadline: Deadline) -> str | None:
        deadline.check()
        return health.unusable([self._directory / room for room in (VOLUMES, SNAPSHOTS)])

    def _free_bytes(self) -> int:
        file_system = self._file_system()
        return file_system.f_bavail * file_system.f_frsize

    def _find_volume(self, handle: str) -> Volume | None:
        if not _is_volume(handle):
            return None
        stored = self._volumes.read(handle)
        return None if stored is None else _volume(handle, stored)

    def _find_snapshot(self, handle: str) -> Snapshot | None:
        if not _is_snapshot(handle):
            return None
        stored = self._snapshots.read(handle)
        return None if stored is None else _snapshot(handle, stored)

    @contextmanager
    def _open_source(self, source: ContentSource | None) -> Iterator[OpenedDisk | None]:
        if source is None:
            yield None
            return
        is_volume = source.kind is SourceKind.VOLUME
        with (self._open_volume if is_volume else self._open_snapshot)(source.handle) as opened:
            yield opened

    @contextmanager
    def _open_volume(self, handle: str) -> Iterator[OpenedDisk]:
        if not _is_volume(handle):
            raise _no_volume()
        with self._volumes.open_disk(handle) as opened:
            if opened is None:
                raise _no_volume()
            _volume_tags(handle, opened.stored.tags)
            yield opened

    @contextmanager
    def _open_snapshot(self, handle: str) -> Iterator[OpenedDisk]:
        if not _is_snapshot(handle):
            raise _no_snapshot()
        with self._snapshots.open_disk(handle) as opened:
            if opened is None:
                raise _no_snapshot()
            _snapshot_tags(handle, opened.stored.tags)
            yield opened

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes % self.size_step_bytes or not (
            self.minimum_size_bytes <= size_bytes <= self.maximum_size_bytes
        ):
            raise SizeOutOfRangeError(
                f"a local volume can't have {size_bytes} bytes: it must be a multiple of "
                f"{self.size_step_bytes} from {self.minimum_size_bytes} to {self.maximum_size_bytes}"
            )
        self._check_file_system_holds(size_bytes)

    def _check_file_system_holds(self, size_bytes: int) -> None:
        # Disks are sparse and may promise more than is free, but not one alone more than could ever be.
        file_system = self._file_system()
        total = file_system.f_blocks * file_system.f_frsize
        if size_bytes > total:
            raise QuotaExceededError(
                f"{size_bytes} bytes are more than the whole file system of {self._directory} "
                f"({total} bytes); ask for less, or use a larger one"
            )

    def _file_system(self) -> os.statvfs_result:
        try:
            return os.statvfs(self._directory / VOLUMES)
        except OSError as error:
            raise UnavailableError(f"{self._directory} could not be asked ({error.strerror})") from error


def _is_volume(handle: str) -> bool:
    return is_backend_name(_VOLUME_PREFIX, handle)


def _is_snapshot(handle: str) -> bool:
    return is_backend_name(_SNAPSHOT_PREFIX, handle)


def _volume(handle: str, stored: StoredObject) -> Volume:
    tags = _volume_tags(handle, stored.tags)
    return Volume(
        handle=handle,
        name=tags.name,
        size_bytes=stored.size_bytes,
        created_size_bytes=tags.created_size_bytes,
        encryption=tags.encryption,
        fs_type=tags.fs_type,
        source=tags.source,
        disk_id=handle,
    )


def _snapshot(handle: str, stored: StoredObject) -> Snapshot:
    tags = _snapshot_tags(handle, stored.tags)
    return Snapshot(
        handle=handle,
        name=tags.name,
        source_handle=tags.source_handle,
        size_bytes=stored.size_bytes,
        created_at=tags.created_at,
        ready=True,
        encryption=tags.encryption,
        fs_type=tags.fs_type,
    )


def _volume_tags(handle: str, data: bytes) -> VolumeTags:
    tags = decode_volume(data)
    if backend_name(_VOLUME_PREFIX, tags.name) != handle:
        raise _not_its_name(handle)
    return tags


def _snapshot_tags(handle: str, data: bytes) -> SnapshotTags:
    tags = decode_snapshot(data)
    if backend_name(_SNAPSHOT_PREFIX, tags.name) != handle:
        raise _not_its_name(handle)
    return tags


def _unless_corrupt(find: Callable[[str], Item | None], handle: str) -> Item | None:
    # One object that a person must look at doesn't hide the others; asking for it by handle reports it.
    try:
        return find(handle)
    except CorruptStateError as error:
        _log.warning("left out of a listing: %s", error)
        return None


def _check_source_fits(source: OpenedDisk, size_bytes: int) -> None:
    source_size = source.stored.size_bytes
    if source_size > size_bytes:
        raise SizeOutOfRangeError(
            f"the source has {source_size} bytes, more than the {size_bytes} of the new volume; ask for more"
        )


def _no_volume() -> ProviderError:
    return VolumeNotFoundError("there is no such volume in the local directory")


def _no_snapshot() -> ProviderError:
    return SnapshotNotFoundError("there is no such snapshot in the local directory")


def _not_its_name(handle: str) -> CorruptStateError:
    return CorruptStateError(f"the tags of {handle} are those of another object; a person must look")
