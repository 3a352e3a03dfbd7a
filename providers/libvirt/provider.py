"""The provider of raw volumes in libvirt storage pools.

All state is in the pools (``store.py`` says how), and nothing but libvirt's API is used to reach it, so the
controller can run anywhere. See ``docs/libvirt.md`` for the settings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Self

import libvirt

from providers.deadline import Deadline
from providers.errors import (
    AlreadyExistsError,
    ConfigurationError,
    CorruptStateError,
    InvalidParameterError,
    QuotaExceededError,
    SizeOutOfRangeError,
    UnavailableError,
    VolumeNotFoundError,
)
from providers.interface import (
    BackendCheck,
    BlockVolumeProvider,
    CapacityReporter,
    Item,
    Page,
    Snapshot,
    Volume,
    VolumeAttacher,
    VolumeCloner,
    VolumeCondition,
    VolumeExpander,
    VolumeFence,
    VolumeHealth,
    VolumeLister,
    VolumeRequest,
    VolumeSnapshotter,
)
from providers.libvirt import attachment, descriptions, handles, notes
from providers.libvirt.abandoned import Abandoned
from providers.libvirt.class_rules import DIRECTORY_PARAMETER, LibvirtClassRules, check_directory
from providers.libvirt.conditions import conditions
from providers.libvirt.connections import Connect, Connections, opener
from providers.libvirt.copying import copy_disk
from providers.libvirt.documents import volume_xml
from providers.libvirt.domains import Attachments, require_free
from providers.libvirt.failures import is_refusal
from providers.libvirt.growth import grow
from providers.libvirt.handles import SNAPSHOT_PREFIX, VOLUME_PREFIX, Handle
from providers.libvirt.pools import (
    Pool,
    location_of,
    location_of_directory,
)
from providers.libvirt.rooms import Layout, Rooms
from providers.libvirt.store import Store, StoredObject
from providers.names import backend_name
from providers.paging import page
from providers.serial import disk_serial
from providers.tags import SnapshotTags, VolumeTags, encode

URI_SETTING = "LIBVIRT_URI"
POOL_SETTING = "LIBVIRT_POOL"
DIRECTORIES_SETTING = "CONFIDENTIAL_CSI_LIBVIRT_DIRECTORIES"
_DEFAULT_POOL = "default"

_MIB = 1024**2
_TIB = 1024**4
_PATIENCE_SECONDS = 1.0

_log = logging.getLogger(__name__)


class LibvirtProvider(
    LibvirtClassRules,
    BlockVolumeProvider,
    VolumeExpander,
    VolumeSnapshotter,
    VolumeCloner,
    VolumeLister,
    CapacityReporter,
    VolumeFence,
    VolumeHealth,
    VolumeAttacher,
    BackendCheck,
):
    """Volumes in the storage pools of one libvirt host.

    Args:
        connect: opens a connection to the host.
        pool: name of the pool that volumes are made in unless a StorageClass says otherwise.
        directories: those of the older Go driver, in which its volumes are looked for.
        patience: see :class:`~providers.libvirt.store.Store`.
    """

    def __init__(
        self,
        connect: Connect,
        pool: str = _DEFAULT_POOL,
        directories: tuple[str, ...] = (),
        *,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._connections = Connections(connect)
        self._layout = Layout(pool, directories, patience)
        self._abandoned = Abandoned(patience)

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        uri = settings.get(URI_SETTING, "")
        if not uri:
            raise ConfigurationError(
                f"{URI_SETTING} must be set to the URI of the libvirt host that has the disks, the same as "
                "for cloud-api-adaptor (qemu+ssh://root@192.168.122.1/system)"
            )
        directories = tuple(filter(None, settings.get(DIRECTORIES_SETTING, "").split(":")))
        try:
            for directory in directories:
                check_directory(directory)
        except InvalidParameterError as error:
            raise ConfigurationError(f"{DIRECTORIES_SETTING}: {error}") from error
        return cls(opener(uri), settings.get(POOL_SETTING) or _DEFAULT_POOL, directories)

    def handle_for_name(self, name: str) -> str:
        return str(Handle(backend_name(VOLUME_PREFIX, name), location_of(self._layout.pool)))

    def handle_for_request(self, name: str, parameters: Mapping[str, str]) -> str:
        directory = parameters.get(DIRECTORY_PARAMETER)
        if directory is None:
            return self.handle_for_name(name)
        return str(Handle(backend_name(VOLUME_PREFIX, name), location_of_directory(directory)))

    def create_volume(self, request: VolumeRequest, deadline: Deadline) -> Volume:
        self.validate_parameters(request.parameters)
        directory = request.parameters.get(DIRECTORY_PARAMETER)

        def work(connection: libvirt.virConnect) -> Volume:
            rooms = self._rooms(connection, deadline)
            pool = rooms.pool_for(directory)
            return self._create(rooms, rooms.volumes(pool), request, deadline)

        return self._connections.run("create_volume", work, deadline, copies=request.source is not None)

    def _rooms(self, connection: libvirt.virConnect, deadline: Deadline) -> Rooms:
        rooms = Rooms(connection, self._layout)
        pools = rooms.driver_pools()
        self._abandoned.clear([*map(rooms.volumes, pools), *map(rooms.snapshots, pools)], deadline)
        return rooms

    def _create(self, rooms: Rooms, store: Store, request: VolumeRequest, deadline: Deadline) -> Volume:
        base = backend_name(VOLUME_PREFIX, request.name)
        pool = store.pool
        elsewhere = rooms.find_volume_elsewhere(base, pool)
        if elsewhere is not None:
            raise AlreadyExistsError(
                f"volume {request.name!r} exists in pool {elsewhere.pool.name!r}, and would be made in "
                f"{pool.name!r}; use another name, or the parameters it was made with"
            )
        existing = store.find(base)
        if existing is not None:
            return descriptions.volume(store.tidied(existing))
        _check_size(request.size_bytes, pool)
        source = None if request.source is None else rooms.source(request.source)
        if source is not None:
            _check_source_fits(source, request.size_bytes)
        tags = VolumeTags(
            name=request.name,
            created_size_bytes=request.size_bytes,
            encryption=request.encryption,
            fs_type=request.fs_type,
            source=request.source,
            labels=dict(request.labels),
            created_at=datetime.now(UTC),
        )

        def make_disk(name: str) -> None:
            if source is None:
                pool.handle.createXML(volume_xml(name, request.size_bytes), 0)
            else:
                copy_disk(
                    self._connections,
                    rooms.connection,
                    source,
                    pool,
                    name=name,
                    size_bytes=request.size_bytes,
                )

        with self._abandoned.making(store, base, deadline):
            return descriptions.volume(store.create(base, encode(tags), make_disk, deadline))

    def delete_volume(self, handle: str, deadline: Deadline) -> None:
        parsed = handles.parse(VOLUME_PREFIX, handle)
        if parsed is None:
            return

        def check(connection: libvirt.virConnect, stored: StoredObject) -> None:
            descriptions.volume_tags(stored)
            require_free(connection, stored)

        def work(connection: libvirt.virConnect) -> None:
            rooms = self._rooms(connection, deadline)
            found = rooms.find_volume(parsed)
            pool = rooms.pools.at(parsed.location) if found is None else found.pool
            if pool is not None:
                store = rooms.volumes(pool)
                store.delete(parsed.base, lambda stored: check(connection, stored), deadline)

        self._connections.run("delete_volume", work, deadline)

    def get_volume_info(self, handle: str, deadline: Deadline) -> Volume:
        def work(connection: libvirt.virConnect) -> Volume:
            stored = self._rooms(connection, deadline).volume(handle)
            return descriptions.volume(stored, Attachments(connection))

        return self._connections.run("get_volume_info", work, deadline)

    def volume_exists(self, handle: str, deadline: Deadline) -> bool:
        try:
            self.get_volume_info(handle, deadline)
        except VolumeNotFoundError:
            return False
        return True

    def expand_volume(self, handle: str, size_bytes: int, deadline: Deadline) -> int:
        def work(connection: libvirt.virConnect) -> int:
            stored = self._rooms(connection, deadline).volume(handle)
            descriptions.volume_tags(stored)
            _check_pool_holds(size_bytes, stored.pool)
            return grow(connection, stored, size_bytes)

        return self._connections.run("expand_volume", work, deadline)

    def create_snapshot(self, name: str, source_handle: str, deadline: Deadline) -> Snapshot:
        base = backend_name(SNAPSHOT_PREFIX, name)

        def work(connection: libvirt.virConnect) -> Snapshot:
            rooms = self._rooms(connection, deadline)
            parsed = handles.parse(VOLUME_PREFIX, source_handle)
            pool = None if parsed is None else rooms.pools.at(parsed.location)
            existing = rooms.find_snapshot_anywhere(base, pool or rooms.pools.default())
            if existing is not None:
                return descriptions.snapshot(rooms.snapshots(existing.pool).tidied(existing))
            source = rooms.volume(source_handle)
            volume = descriptions.volume(source)
            tags = SnapshotTags(
                name=name,
                source_handle=volume.handle,
                encryption=volume.encryption,
                fs_type=volume.fs_type,
                created_at=datetime.now(UTC),
            )

            def make_disk(disk: str) -> None:
                copy_disk(
                    self._connections,
                    connection,
                    source,
                    source.pool,
                    name=disk,
                    size_bytes=source.size_bytes,
                )

            store = rooms.snapshots(source.pool)
            with self._abandoned.making(store, base, deadline):
                return descriptions.snapshot(store.create(base, encode(tags), make_disk, deadline))

        return self._connections.run("create_snapshot", work, deadline, copies=True)

    def delete_snapshot(self, handle: str, deadline: Deadline) -> None:
        parsed = handles.parse(SNAPSHOT_PREFIX, handle)
        if parsed is None:
            return

        def work(connection: libvirt.virConnect) -> None:
            rooms = self._rooms(connection, deadline)
            pool = rooms.pools.at(parsed.location)
            if pool is not None:
                store = rooms.snapshots(pool)
                store.delete(parsed.base, lambda stored: _check_snapshot(connection, stored), deadline)

        self._connections.run("delete_snapshot", work, deadline)

    def get_snapshot(self, handle: str, deadline: Deadline) -> Snapshot:
        def work(connection: libvirt.virConnect) -> Snapshot:
            return descriptions.snapshot(self._rooms(connection, deadline).snapshot(handle))

        return self._connections.run("get_snapshot", work, deadline)

    def list_snapshots(
        self, source_handle: str | None, max_entries: int, token: str, deadline: Deadline
    ) -> Page[Snapshot]:
        def describe(stored: StoredObject) -> Snapshot | None:
            snapshot = descriptions.snapshot(stored)
            # A bare id of the Go driver tells no pool; a name is one volume, wherever it is.
            is_of_source = source_handle is None or _base(source_handle) == _base(snapshot.source_handle)
            return snapshot if is_of_source else None

        def work(connection: libvirt.virConnect) -> Page[Snapshot]:
            rooms = self._rooms(connection, deadline)
            stores = [rooms.snapshots(pool) for pool in rooms.driver_pools()]
            return _page(
                handles.is_snapshot, stores, describe, max_entries=max_entries, token=token, deadline=deadline
            )

        return self._connections.run("list_snapshots", work, deadline)

    def list_volumes(self, max_entries: int, token: str, deadline: Deadline) -> Page[Volume]:
        def work(connection: libvirt.virConnect) -> Page[Volume]:
            rooms = self._rooms(connection, deadline)
            stores = [rooms.volumes(pool) for pool in rooms.driver_pools()]
            attachments = Attachments(connection)

            def describe(stored: StoredObject) -> Volume:
                return descriptions.volume(stored, attachments)

            return _page(
                handles.is_volume, stores, describe, max_entries=max_entries, token=token, deadline=deadline
            )

        return self._connections.run("list_volumes", work, deadline)

    def available_bytes(self, parameters: Mapping[str, str], deadline: Deadline) -> int:
        self.validate_parameters(parameters)
        directory = parameters.get(DIRECTORY_PARAMETER)

        def work(connection: libvirt.virConnect) -> int:
            pool = self._rooms(connection, deadline).pool_for(directory)
            pool.refresh()
            free = pool.available_bytes()
            return free - free % self.size_step_bytes

        return self._connections.run("available_bytes", work, deadline)

    def set_published_node(self, handle: str, node_id: str, replacing: str, deadline: Deadline) -> None:
        def work(connection: libvirt.virConnect) -> None:
            rooms = self._rooms(connection, deadline)
            stored = rooms.volume(handle)
            notes.replace(connection, stored.pool, stored.base, node_id, replacing)
            rooms.volumes(stored.pool).tidied(stored)

        self._connections.run("set_published_node", work, deadline)

    def volume_conditions(
        self, volumes: Sequence[Volume], deadline: Deadline
    ) -> Mapping[str, VolumeCondition]:
        def work(connection: libvirt.virConnect) -> Mapping[str, VolumeCondition]:
            return conditions(self._rooms(connection, deadline), volumes)

        return self._connections.run("volume_conditions", work, deadline)

    def check_backend(self, deadline: Deadline) -> str | None:
        def work(connection: libvirt.virConnect) -> str | None:
            return Rooms(connection, self._layout).unusable_pool()

        try:
            return self._connections.run("check_backend", work, deadline)
        except UnavailableError as error:
            if is_refusal(error.__cause__):
                return str(error)
            raise

    def attached_serials(self, owner: str, deadline: Deadline) -> Mapping[str, frozenset[str]]:
        return self._connections.run(
            "attached_serials", lambda connection: attachment.attached_serials(connection, owner), deadline
        )

    def attach_disk(self, disk_id: str, machine: str, owner: str, deadline: Deadline) -> None:
        def work(connection: libvirt.virConnect) -> None:
            stored = Rooms(connection, self._layout).disk(disk_id)
            attachment.attach(connection, stored, machine, disk_serial(disk_id), owner)

        self._connections.run("attach_disk", work, deadline)

    def detach_disk(self, serial: str, machine: str, owner: str, deadline: Deadline) -> None:
        def work(connection: libvirt.virConnect) -> None:
            attachment.detach(connection, machine, serial, owner, deadline)

        self._connections.run("detach_disk", work, deadline)


def _page(
    is_ours: Callable[[str], bool],
    stores: Sequence[Store],
    describe: Callable[[StoredObject], Item | None],
    *,
    max_entries: int,
    token: str,
    deadline: Deadline,
) -> Page[Item]:
    places = {
        str(Handle(base, store.pool.location)): (store, base) for store in stores for base in store.bases()
    }

    def load(handle: str) -> Item | None:
        deadline.check()
        store, base = places[handle]
        try:
            stored = store.look(base)
            return None if stored is None else describe(stored)
        except CorruptStateError as error:
            # One object that a person must look at doesn't hide the others; asking for it reports it.
            _log.warning("left out of a listing: %s", error)
            return None

    return page(is_ours, places, load, max_entries, token)


def _base(handle: str) -> str:
    parsed = handles.parse(VOLUME_PREFIX, handle)
    return "" if parsed is None else parsed.base


def _check_snapshot(connection: libvirt.virConnect, stored: StoredObject) -> None:
    descriptions.snapshot_tags(stored)
    require_free(connection, stored)


def _check_size(size_bytes: int, pool: Pool) -> None:
    provider = LibvirtProvider
    if size_bytes % provider.size_step_bytes or not (
        provider.minimum_size_bytes <= size_bytes <= provider.maximum_size_bytes
    ):
        raise SizeOutOfRangeError(
            f"a volume can't have {size_bytes} bytes: it must be a multiple of {provider.size_step_bytes} "
            f"from {provider.minimum_size_bytes} to {provider.maximum_size_bytes}"
        )
    _check_pool_holds(size_bytes, pool)


def _check_pool_holds(size_bytes: int, pool: Pool) -> None:
    # Disks are sparse and may promise more than is free, but not one alone more than could ever be.
    total = pool.total_bytes()
    if size_bytes > total:
        raise QuotaExceededError(
            f"{size_bytes} bytes are more than the whole pool {pool.name!r} holds ({total} bytes); "
            "ask for less"
        )


def _check_source_fits(source: StoredObject, size_bytes: int) -> None:
    if source.size_bytes > size_bytes:
        raise SizeOutOfRangeError(
            f"the source has {source.size_bytes} bytes, more than the {size_bytes} of the new volume; "
            "ask for more"
        )
