"""Copies of disks as they are at one point in time: by reflink where the file system can, else in full.

A disk that a virtual machine has is copied in full by that machine, which goes on writing meanwhile.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import libvirt

from providers.deadline import Deadline
from providers.errors import CorruptStateError, ProviderError, QuotaExceededError, UnavailableError
from providers.libvirt.backup import back_up
from providers.libvirt.connections import Connections
from providers.libvirt.documents import volume_format, volume_xml
from providers.libvirt.domains import Attachments
from providers.libvirt.failures import has_code, system_error
from providers.libvirt.pools import Pool
from providers.libvirt.store import StoredObject, disk_size
from providers.libvirt.streamed_copy import copy_sparse

_NO_REFLINK = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM}
)
_REPORT_SECONDS = 10.0

#: Disks that hold no more data than this go through this process, which skips their holes.
_STREAMED_BYTES = 256 * 1024**2

_log = logging.getLogger(__name__)


def copy_disk(
    connections: Connections,
    connection: libvirt.virConnect,
    source: StoredObject,
    pool: Pool,
    *,
    name: str,
    size_bytes: int,
) -> None:
    """Make the storage volume ``name`` of at least ``size_bytes``, beginning with the source's content.

    Raises:
        InUseError: no reflink here, and the virtual machine that has the source can't copy it.
        QuotaExceededError: no room for the copy. UnavailableError: call again. Nothing is left of it.
        CorruptStateError: libvirt takes the source for something else than a raw disk.
    """
    if volume_format(source.disk.XMLDesc()) != "raw":
        # libvirt would have it converted by qemu-img, and follow what the guest wrote into its first block.
        raise CorruptStateError(
            f"the content of {source.base} looks like a disk image of another format to libvirt; copying it "
            "would follow that image's references, so it is refused"
        )
    document = volume_xml(name, size_bytes)
    with _reported(connections, pool.name, name, source):
        if not _reflink(source, pool, document):
            _copy(connection, source, pool, name, size_bytes)
    made = pool.find(name)
    if made is not None and (disk_size(made) or 0) < size_bytes:
        made.resize(size_bytes, 0)


def _reflink(source: StoredObject, pool: Pool, document: str) -> bool:
    try:
        pool.handle.createXMLFrom(document, source.disk, libvirt.VIR_STORAGE_VOL_CREATE_REFLINK)
    except libvirt.libvirtError as error:
        if (
            has_code(error, libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED)
            or system_error(error) in _NO_REFLINK
        ):
            return False
        raise
    return True


def _copy(
    connection: libvirt.virConnect, source: StoredObject, pool: Pool, name: str, size_bytes: int
) -> None:
    uses = Attachments(connection).of(source)
    if uses:
        _check_room(source, pool)
        _make_filled(pool, name, source.size_bytes, lambda copy: back_up(uses[0], copy.path()))
        return
    if source.disk.info()[2] <= _STREAMED_BYTES:
        _make_filled(pool, name, size_bytes, lambda copy: copy_sparse(connection, source.disk, copy))
    else:
        pool.handle.createXMLFrom(volume_xml(name, size_bytes), source.disk, 0)
    if Attachments(connection).of(source):
        _delete(pool.find(name))
        raise UnavailableError(f"{source.base} was attached while it was copied; call again")


def _make_filled(
    pool: Pool, name: str, size_bytes: int, fill: Callable[[libvirt.virStorageVol], None]
) -> None:
    copy = pool.handle.createXML(volume_xml(name, size_bytes), 0)
    try:
        fill(copy)
    except BaseException:
        _delete(copy)
        raise


def _delete(copy: libvirt.virStorageVol | None) -> None:
    with suppress(libvirt.libvirtError):
        if copy is not None:
            copy.delete(0)


def _check_room(source: StoredObject, pool: Pool) -> None:
    # The copy that a machine makes has no holes.
    if pool.available_bytes() < source.size_bytes:
        raise QuotaExceededError(
            f"{source.base} is in use, and a copy of it takes all of its {source.size_bytes} bytes, which "
            f"pool {pool.name!r} does not have; make room, or copy it when no virtual machine has it"
        )


@contextmanager
def _reported(connections: Connections, pool_name: str, name: str, source: StoredObject) -> Iterator[None]:
    """Log the progress of a long copy, over another connection: this one's only call is the copy."""
    ended = threading.Event()
    began = time.monotonic()

    def written(connection: libvirt.virConnect) -> int:
        pool = connection.storagePoolLookupByName(pool_name)
        return int(pool.storageVolLookupByName(name).info()[2])

    def report() -> None:
        while not ended.wait(_REPORT_SECONDS):
            with suppress(ProviderError):
                done = connections.run("copy_progress", written, Deadline.after(_REPORT_SECONDS)) >> 20
                seconds = time.monotonic() - began
                _log.info("copying %s: %d MiB written after %.0f s", source.base, done, seconds)

    reporter = threading.Thread(target=report, name="libvirt-copy-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()
