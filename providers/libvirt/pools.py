"""Storage pools: where volumes are, and how a handle tells it.

A location is part of every handle: the pool's name, or a hash of it if the name is too long or unusual.
``cloudProviderVolumePath``, the directory of the older Go driver, is the pool that has this directory, which
is defined when there is none: libvirt lets no two pools share one.
"""

from __future__ import annotations

import hashlib
import re

import libvirt

from providers.errors import UnavailableError
from providers.libvirt.documents import directory_pool_xml, pool_type_and_path
from providers.libvirt.failures import has_code, is_missing

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,18}", re.ASCII)
_HASHED = re.compile(r"[_+][0-9a-f]{18}", re.ASCII)
_OWN_PREFIX = "csi-dir-"

#: Pools of files: what is in them can be grown, copied, and given to QEMU by its path.
_FILE_POOLS = frozenset({"dir", "fs", "netfs"})


def location_of(pool_name: str) -> str:
    """The location of a pool, at most 19 characters."""
    if _NAME.fullmatch(pool_name):
        return pool_name
    return "_" + hashlib.sha256(pool_name.encode()).hexdigest()[:18]


def location_of_directory(path: str) -> str:
    """The location of whichever pool has this directory, for looking things up."""
    return "+" + hashlib.sha256(path.encode()).hexdigest()[:18]


def is_location(text: str) -> bool:
    """Whether one of the above can have made ``text``."""
    return bool(_NAME.fullmatch(text) or _HASHED.fullmatch(text))


class Pool:
    """An active pool of files."""

    def __init__(self, handle: libvirt.virStoragePool) -> None:
        self.handle = handle
        self.name: str = handle.name()
        self.location = location_of(self.name)

    def find(self, name: str) -> libvirt.virStorageVol | None:
        """The storage volume of that name, as libvirt last saw the pool."""
        try:
            return self.handle.storageVolLookupByName(name)
        except libvirt.libvirtError as error:
            if is_missing(error):
                return None
            raise

    def refresh(self) -> bool:
        """Let libvirt see what was made or removed behind its back; False if it can't while a copy runs.

        Raises:
            UnavailableError: the pool is no longer active.
        """
        try:
            self.handle.refresh(0)
        except libvirt.libvirtError:
            # Its number says nothing. A connection that is lost fails here, too.
            if self.handle.isActive():
                return False
            raise _inactive(self.name) from None
        return True

    def names(self) -> list[str]:
        """The names of all its storage volumes."""
        return list(self.handle.listVolumes())

    def total_bytes(self) -> int:
        """The size of the file system it is on."""
        return int(self.handle.info()[1])

    def available_bytes(self) -> int:
        """What is free of it."""
        return int(self.handle.info()[3])


class Pools:
    """The pools of one connection. ``default`` is the name of the one that StorageClasses need not name."""

    def __init__(self, connection: libvirt.virConnect, default: str) -> None:
        self._connection = connection
        self._default = default

    def default(self) -> Pool:
        """The default pool.

        Raises:
            UnavailableError: it is not there, or not active.
        """
        return self._named(self._default)

    def at(self, location: str) -> Pool | None:
        """The pool at a location; None if that is of a directory that no pool has (yet).

        Raises:
            UnavailableError: there is no such pool (any more), or it is not active: that says nothing of
                what is in it.
        """
        if location == location_of(self._default):
            return self.default()
        if _NAME.fullmatch(location):
            return self._named(location)
        is_of_directory = location.startswith("+")
        for pool in self._connection.listAllStoragePools():
            if is_of_directory:
                found = location_of_directory(pool_type_and_path(pool.XMLDesc())[1])
            else:
                found = location_of(pool.name())
            if found == location:
                return _usable(pool)
        if is_of_directory:
            return None
        raise _no_pool(f"with the location {location!r}")

    def of_directory(self, path: str) -> Pool:
        """The pool that has this directory, defined and started if there is none.

        Raises:
            UnavailableError: it is not active, or can't be made.
        """
        found = self._with_directory(path)
        if found is not None:
            return _usable(found)
        name = _OWN_PREFIX + hashlib.sha256(path.encode()).hexdigest()[:10]
        try:
            pool = self._connection.storagePoolDefineXML(directory_pool_xml(name, path))
        except libvirt.libvirtError as error:
            found = self._with_directory(path)  # another process may have been faster
            if found is None:
                raise _unusable_directory(path, error) from error
            return _usable(found)
        try:
            pool.setAutostart(1)
            pool.create(0)
        except libvirt.libvirtError as error:
            if pool.isActive():
                return Pool(pool)
            pool.undefine()
            raise _unusable_directory(path, error) from error
        return Pool(pool)

    def own(self) -> list[Pool]:
        """The pools that this driver defined.

        Raises:
            UnavailableError: one is not active.
        """
        found = self._connection.listAllStoragePools()
        return [_usable(handle) for handle in found if handle.name().startswith(_OWN_PREFIX)]

    def volume_at(self, path: str) -> tuple[Pool, str] | None:
        """The pool and the name of the storage volume with that path; None if libvirt knows none."""
        try:
            volume = self._connection.storageVolLookupByPath(path)
            return Pool(volume.storagePoolLookupByVolume()), volume.name()
        except libvirt.libvirtError as error:
            if is_missing(error):
                return None
            raise

    def _named(self, name: str) -> Pool:
        try:
            return _usable(self._connection.storagePoolLookupByName(name))
        except libvirt.libvirtError as error:
            if has_code(error, libvirt.VIR_ERR_NO_STORAGE_POOL):
                raise _no_pool(repr(name)) from error
            raise

    def _with_directory(self, path: str) -> libvirt.virStoragePool | None:
        for pool in self._connection.listAllStoragePools():
            kind, directory = pool_type_and_path(pool.XMLDesc())
            if kind in _FILE_POOLS and directory == path:
                return pool
        return None


def _usable(handle: libvirt.virStoragePool) -> Pool:
    name = handle.name()
    if not handle.isActive():
        raise _inactive(name)
    kind, _ = pool_type_and_path(handle.XMLDesc())
    if kind not in _FILE_POOLS:
        raise UnavailableError(
            f"the storage pool {name!r} is of type {kind!r}; use one of {', '.join(sorted(_FILE_POOLS))}"
        )
    return Pool(handle)


def _inactive(name: str) -> UnavailableError:
    return UnavailableError(
        f"the storage pool {name!r} is not active; start it (virsh pool-start), and let it start by "
        "itself (virsh pool-autostart)"
    )


def _no_pool(which: str) -> UnavailableError:
    return UnavailableError(
        f"the libvirt host has no storage pool {which}; define it, or correct LIBVIRT_POOL and LIBVIRT_URI"
    )


def _unusable_directory(path: str, error: libvirt.libvirtError) -> UnavailableError:
    return UnavailableError(
        f"the directory {path!r} can't become a storage pool ({str(error)[:200]}); make it on the libvirt "
        "host"
    )
