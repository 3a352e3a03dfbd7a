"""Copies of disks as they are at one point in time: by reflink where the file system can, else in full."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import libvirt

from providers.errors import CorruptStateError, InUseError
from providers.libvirt.documents import volume_format, volume_xml
from providers.libvirt.domains import require_free
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
    connection: libvirt.virConnect,
    source: StoredObject,
    pool: Pool,
    name: str,
    size_bytes: int,
) -> None:
    """Make the storage volume ``name`` of at least ``size_bytes``, beginning with the source's content.

    Raises:
        InUseError: no reflink here, and a virtual machine could write to the source; nothing is left.
        CorruptStateError: libvirt takes the source for something else than a raw disk.
    """
    if volume_format(source.disk.XMLDesc()) != "raw":
        # libvirt would have it converted by qemu-img, and follow what the guest wrote into its first block.
        raise CorruptStateError(
            f"the content of {source.base} looks like a disk image of another format to libvirt; copying it "
            "would follow that image's references, so it is refused"
        )
    document = volume_xml(name, size_bytes)
    with _reported(pool, name, source):
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
    try:
        require_free(connection, source)
        copy = _copied(connection, source, pool, volume_xml(name, size_bytes))
        try:
            require_free(connection, source)  # nor was it attached meanwhile
        except InUseError:
            with suppress(libvirt.libvirtError):
                copy.delete(0)
            raise
    except InUseError as error:
        raise InUseError(
            f"{error}: the file system of pool {pool.name!r} has no reflinks, and a full copy of a disk in "
            "use would be of no point in time"
        ) from error


def _copied(
    connection: libvirt.virConnect, source: StoredObject, pool: Pool, document: str
) -> libvirt.virStorageVol:
    if source.disk.info()[2] > _STREAMED_BYTES:
        return pool.handle.createXMLFrom(document, source.disk, 0)
    copy = pool.handle.createXML(document, 0)
    try:
        copy_sparse(connection, source.disk, copy)
    except BaseException:
        with suppress(libvirt.libvirtError):
            copy.delete(0)
        raise
    return copy


@contextmanager
def _reported(pool: Pool, name: str, source: StoredObject) -> Iterator[None]:
    """Log the progress of a long copy."""
    ended = threading.Event()
    began = time.monotonic()

    def report() -> None:
        while not ended.wait(_REPORT_SECONDS):
            with suppress(libvirt.libvirtError):
                copy = pool.find(name)
                if copy is not None:
                    _log.info(
                        "copying %s: %d MiB written of %d MiB allocated, after %.0f s",
                        source.base,
                        copy.info()[2] >> 20,
                        source.disk.info()[2] >> 20,
                        time.monotonic() - began,
                    )

    reporter = threading.Thread(target=report, name="libvirt-copy-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()
