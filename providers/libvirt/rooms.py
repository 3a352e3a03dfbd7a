"""The stores of one connection: volumes and snapshots, in whichever pool they are."""

from __future__ import annotations

from dataclasses import dataclass

import libvirt

from providers.errors import (
    InvalidParameterError,
    SnapshotNotFoundError,
    UnavailableError,
    VolumeNotFoundError,
)
from providers.interface import ContentSource, SourceKind
from providers.libvirt import handles
from providers.libvirt.handles import SNAPSHOT_PREFIX, VOLUME_PREFIX, Handle
from providers.libvirt.parts import GO_DISK
from providers.libvirt.pools import Pool, Pools
from providers.libvirt.store import Store, StoredObject
from providers.names import is_backend_name


@dataclass(frozen=True)
class Layout:
    """Which pools there are, and how long to wait for others; the same for every connection."""

    pool: str
    """Name of the default pool."""
    directories: tuple[str, ...]
    """Those of the older Go driver."""
    patience: float
    """Seconds; see :class:`Store`."""


class Rooms:
    """Where the objects are, over one connection."""

    def __init__(self, connection: libvirt.virConnect, layout: Layout) -> None:
        self.connection = connection
        self.pools = Pools(connection, layout.pool)
        self._layout = layout

    def volumes(self, pool: Pool) -> Store:
        """The volumes in a pool."""
        return Store(self.connection, pool, VOLUME_PREFIX, of_volumes=True, patience=self._layout.patience)

    def snapshots(self, pool: Pool) -> Store:
        """The snapshots in a pool."""
        return Store(self.connection, pool, SNAPSHOT_PREFIX, of_volumes=False, patience=self._layout.patience)

    def find_volume(self, handle: Handle) -> StoredObject | None:
        """The volume.

        One that is not in the default pool is looked for where the Go driver, whose ids tell no location, and
        StorageClasses with a directory put theirs: a CSI name is one volume, wherever it is.
        """
        pool = self.pools.at(handle.location)
        if pool is None:
            return None
        found = self.volumes(pool).find(handle.base)
        if found is None and pool.name == self._layout.pool:
            found = self.find_volume_elsewhere(handle.base, pool)
        return found

    def find_volume_elsewhere(self, base: str, pool: Pool) -> StoredObject | None:
        """The volume, in another pool of the driver's than ``pool``."""
        found = (self.volumes(other).find(base) for other in self.driver_pools() if other.name != pool.name)
        return next((one for one in found if one is not None), None)

    def find_snapshot_anywhere(self, base: str, pool: Pool) -> StoredObject | None:
        """The snapshot, in ``pool`` or another of the driver's."""
        others = (other for other in self.driver_pools() if other.name != pool.name)
        found = (self.snapshots(one).find(base) for one in (pool, *others))
        return next((one for one in found if one is not None), None)

    def volume(self, text: str) -> StoredObject:
        """The volume with the handle ``text``.

        Raises:
            VolumeNotFoundError: there is none.
        """
        handle = handles.parse(VOLUME_PREFIX, text)
        found = None if handle is None else self.find_volume(handle)
        if found is None:
            raise VolumeNotFoundError("there is no such volume in the storage pool")
        return found

    def disk(self, disk_id: str) -> StoredObject:
        """The volume with that disk id: its handle, or the path of a disk that the Go driver made.

        Raises:
            VolumeNotFoundError: there is none.
        """
        if not disk_id.startswith("/"):
            return self.volume(disk_id)
        found = self.pools.volume_at(disk_id) if disk_id.isprintable() else None
        base = "" if found is None else found[1].removesuffix(GO_DISK)
        stored = None
        if found is not None and is_backend_name(VOLUME_PREFIX, base):
            stored = self.volumes(found[0]).look(base)
        if stored is None or stored.path != disk_id:
            raise VolumeNotFoundError(f"{disk_id[:200]!r} is no disk of the older driver in a storage pool")
        return stored

    def snapshot(self, text: str) -> StoredObject:
        """The snapshot with the handle ``text``.

        Raises:
            SnapshotNotFoundError: there is none.
        """
        handle = handles.parse(SNAPSHOT_PREFIX, text)
        pool = None if handle is None else self.pools.at(handle.location)
        found = None if handle is None or pool is None else self.snapshots(pool).find(handle.base)
        if found is None:
            raise SnapshotNotFoundError("there is no such snapshot in the storage pool")
        return found

    def source(self, source: ContentSource) -> StoredObject:
        """What a new volume's content is copied from.

        Raises:
            VolumeNotFoundError, SnapshotNotFoundError: it does not exist.
        """
        if source.kind is SourceKind.VOLUME:
            return self.volume(source.handle)
        return self.snapshot(source.handle)

    def pool_for(self, directory: str | None) -> Pool:
        """The pool for new volumes of a StorageClass that names ``directory``, or none.

        Raises:
            InvalidParameterError: the directory is that of a pool which is none of this driver's.
            UnavailableError: the pool is not active, or can't be made.
        """
        if directory is None:
            return self.pools.default()
        pool = self.pools.of_directory(directory)
        if directory not in self._layout.directories and pool.name not in (
            known.name for known in self.driver_pools()
        ):
            raise InvalidParameterError(
                f"the directory {directory!r} is that of the storage pool {pool.name!r}, which was not made "
                "for this driver; add it to CONFIDENTIAL_CSI_LIBVIRT_DIRECTORIES, so that it is looked "
                "through for volumes"
            )
        return pool

    def unusable_pool(self) -> str | None:
        """What is wrong with the pools for new volumes; None if nothing is."""
        try:
            self.pools.default()
            self.pools.own()
        except UnavailableError as error:
            return str(error)
        return None

    def driver_pools(self) -> list[Pool]:
        """The default pool, those of the Go driver's directories, and those that this driver defined.

        Raises:
            UnavailableError: one is not active, or can't be made.
        """
        pools = [self.pools.default()]
        pools += [self.pools.of_directory(directory) for directory in self._layout.directories]
        pools += self.pools.own()
        return list({pool.name: pool for pool in pools}.values())
