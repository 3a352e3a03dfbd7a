"""Objects of one kind in a pool: each a disk and its tags, which appear and disappear as one.

Of an object ``csi-vol-x`` the tags are the storage volume ``csi-vol-x~tags``; the disk is
``csi-vol-x~<mark>.raw``, where the mark comes from the tags' content. To make one: fill a disk, write the
tags as a draft, then let libvirt copy the draft to ``csi-vol-x~tags``, which it does for one caller only.
That copy is the moment at which the object exists. Disks and drafts of other marks are of attempts that lost
or died: none can be taken for the object's. To delete one: the disk first, then its tags; tags without their
disk are no object.

A disk that the older Go driver made is ``csi-vol-x.raw``, without tags. Names of ours hold a ``~``, which no
object's name does, so the two never meet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import libvirt

from providers.deadline import Deadline
from providers.errors import (
    CorruptStateError,
    InUseError,
    OutcomeUnknownError,
    ProviderError,
    UnavailableError,
)
from providers.libvirt import notes, sidecar
from providers.libvirt.documents import volume_xml
from providers.libvirt.failures import is_busy, is_missing
from providers.libvirt.parts import GO_DISK, NOTE, TAGS, disk_name, draft_name, parts_by_object
from providers.libvirt.pools import Pool
from providers.libvirt.sidecar import Sidecar

_POLL_SECONDS = 0.02
_SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class StoredObject:
    """An object as the pool has it."""

    base: str
    tags: bytes | None
    """None: the Go driver made it."""
    disk: libvirt.virStorageVol
    path: str
    """Of the disk, on the libvirt host."""
    size_bytes: int
    pool: Pool
    note: str
    """The node it is published to; empty if it is none, or a snapshot."""


class Store:
    """The objects of one kind in one pool.

    Args:
        prefix: of the objects' names, which come from :func:`providers.names.backend_name`.
        of_volumes: disks of the older Go driver are objects of this kind, and there are notes.
        patience: seconds after which an attempt that makes no progress counts as abandoned. One that goes on
            later than that does no harm: its caller is told to call again.
    """

    def __init__(
        self,
        connection: libvirt.virConnect,
        pool: Pool,
        prefix: str,
        *,
        of_volumes: bool,
        patience: float,
    ) -> None:
        self._connection = connection
        self.pool = pool
        self.prefix = prefix
        self.of_volumes = of_volumes
        self._patience = patience

    def bases(self) -> Iterator[str]:
        """Names of the objects that there may be; :meth:`look` tells."""
        self.pool.refresh()
        return iter(sorted(parts_by_object(self.pool.names(), self.prefix)))

    def look(self, base: str) -> StoredObject | None:
        """The object, as libvirt last saw the pool.

        Raises:
            CorruptStateError: its tags are damaged. UnavailableError: it is just being made.
        """
        give_up = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                return self._look(base)
            except UnavailableError:  # the moment in which libvirt copies its tags
                if time.monotonic() > give_up:
                    raise
                time.sleep(_POLL_SECONDS)

    def find(self, base: str) -> StoredObject | None:
        """The object, also if it was put there behind libvirt's back (unless a long copy hides that)."""
        found = self.look(base)
        if found is None and self.pool.refresh():
            found = self.look(base)
        return found

    def create(
        self, base: str, tags: bytes, make_disk: Callable[[str], None], deadline: Deadline
    ) -> StoredObject:
        """Make the object, its disk by ``make_disk`` (given the storage volume's name), or find it made.

        Raises:
            OutcomeUnknownError: it was deleted as it was made. Whatever ``make_disk`` raises.
        """
        found = self._wait_for_others(base, deadline)
        if found is not None:
            return found
        new = Sidecar(tags)
        disk, draft = disk_name(base, new.mark), draft_name(base, new.mark)
        try:
            make_disk(disk)
            # From here on to the end, whatever the deadline: a long copy is not made in vain.
            written = sidecar.write(self._connection, self.pool, draft, new)
            self.pool.handle.createXMLFrom(volume_xml(base + TAGS, len(new.encoded())), written, 0)
        except (libvirt.libvirtError, ProviderError):
            found = self._found_after_failure(base)
            if found is None or found.tags != tags:
                self._discard(disk)
            self._discard(draft)
            if found is None:
                raise
            return found
        self._discard(draft)
        found = self.find(base)
        if found is None:
            raise OutcomeUnknownError(f"{base} was deleted by another call as it was created; call again")
        return found

    def clear(self, base: str) -> None:
        """Remove the parts that make no object."""
        found = self.find(base)
        if found is None:
            self._sweep(base, keep=())
        else:
            self.tidied(found)

    def tidied(self, stored: StoredObject) -> StoredObject:
        """The object, once what lost attempts to make it have left is removed (or is in use)."""
        self._sweep(stored.base, keep=(stored.base + TAGS, stored.base + NOTE, stored.disk.name()))
        return stored

    def delete(self, base: str, check: Callable[[StoredObject], None], deadline: Deadline) -> None:
        """Delete the object, and what attempts to make it have left.

        Raises:
            InUseError: a copy of it is being made; nothing was changed. UnavailableError: it could not be
                looked up, or one of the attempts is still running. Whatever ``check`` raises.
        """
        found = self.look(base)
        if found is None:
            self._refresh(deadline)
            found = self.look(base)
        if found is not None:
            check(found)
            try:
                _delete(found.disk)
            except libvirt.libvirtError as error:
                if not is_busy(error):
                    raise
                raise InUseError(f"{base} is being copied; it can be deleted when that has ended") from error
        if not self._sweep(base, keep=()):
            raise UnavailableError(f"{base} is still being made by another call; call again")

    def _look(self, base: str) -> StoredObject | None:
        tags = self.pool.find(base + TAGS)
        if tags is None:
            disk = self.pool.find(base + GO_DISK) if self.of_volumes else None
            return None if disk is None else self._stored(base, None, disk)
        found = sidecar.read(self._connection, tags)
        if found is not None and not found.content:
            if any(name.endswith(".draft") for name in self._left(base)):
                return None  # what it was to be copied from is still there: it never was an object's
            raise CorruptStateError(f"the tags of {base} are all zeros; a person must look")
        disk = None if found is None else self.pool.find(disk_name(base, found.mark))
        return None if found is None or disk is None else self._stored(base, found.content, disk)

    def _stored(self, base: str, tags: bytes | None, disk: libvirt.virStorageVol) -> StoredObject | None:
        size = disk_size(disk)
        if size is None:
            return None
        try:
            path = disk.path()
        except libvirt.libvirtError as error:
            if is_missing(error):
                return None
            raise
        note = notes.read(self._connection, self.pool, base) if self.of_volumes else ""
        return StoredObject(base, tags, disk, path, size, self.pool, note)

    def _wait_for_others(self, base: str, deadline: Deadline) -> StoredObject | None:
        """The object, once no other attempt to make it is left: it made it, or is abandoned and cleared."""
        seen: set[str] = set()
        since = time.monotonic()
        while True:
            found = self.find(base)
            if found is not None:
                return self.tidied(found)
            left = set(self._left(base))
            if not left:
                return None
            if left != seen:
                seen, since = left, time.monotonic()
            elif time.monotonic() - since >= self._patience and not self._sweep(base, keep=()):
                since = time.monotonic()  # a copy that goes on, whoever began it
            deadline.check()
            time.sleep(_POLL_SECONDS)

    def _found_after_failure(self, base: str) -> StoredObject | None:
        """The object, if it exists although an attempt to make it failed: made by another one, or by this."""
        with suppress(libvirt.libvirtError, UnavailableError):
            return self.find(base)
        return None

    def _left(self, base: str) -> list[str]:
        """The storage volumes of the object and of attempts to make it, tags first; never a Go disk."""
        parts = parts_by_object(self.pool.names(), self.prefix).get(base)
        ends = set() if parts is None else parts.ends - {GO_DISK}
        return [base + end for end in sorted(ends, key=lambda end: (end != TAGS, end))]

    def _sweep(self, base: str, keep: tuple[str, ...]) -> bool:
        """Remove the storage volumes of the object but ``keep``; False if one is being written to or read."""
        done = True
        for name in self._left(base):
            if name not in keep:
                done = self._remove(name) and done
        return done

    def _remove(self, name: str) -> bool:
        volume = self.pool.find(name)
        try:
            if volume is not None:
                _delete(volume)
        except libvirt.libvirtError as error:
            if not is_busy(error):
                raise
            return False
        return True

    def _discard(self, name: str) -> None:
        """As :meth:`_remove`, but a failure is left to a later call: it is not what this one is about."""
        with suppress(libvirt.libvirtError):
            self._remove(name)

    def _refresh(self, deadline: Deadline) -> None:
        while not self.pool.refresh():
            if deadline.remaining() < _POLL_SECONDS:
                raise UnavailableError(
                    f"pool {self.pool.name!r} can't be looked through while a copy is made in it; call again"
                )
            time.sleep(_POLL_SECONDS)


def disk_size(disk: libvirt.virStorageVol) -> int | None:
    """The length of the disk in bytes; None if its file is gone.

    The file's own length: what libvirt takes its content for, which the guest chooses, says nothing.
    """
    try:
        return int(disk.infoFlags(libvirt.VIR_STORAGE_VOL_GET_PHYSICAL)[2])
    except libvirt.libvirtError as error:
        if is_missing(error):
            return None
        raise


def _delete(volume: libvirt.virStorageVol) -> None:
    try:
        volume.delete(0)
    except libvirt.libvirtError as error:
        if not is_missing(error):
            raise
