"""Copies disk images: by reflink where the file system can, else block by block, holes kept."""

from __future__ import annotations

import errno
import fcntl
import os

from providers.deadline import Deadline
from providers.local.image_locks import hold_for_copy

_FICLONE = 0x40049409  # linux/fs.h; the fcntl module knows it from Python 3.12 on only
_NO_REFLINK = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS}
_CHUNK_BYTES = 4 * 1024 * 1024
_SYNC_BYTES = 64 * 1024 * 1024


def copy_disk(source: int, target: int, deadline: Deadline) -> None:
    """Make the empty file ``target`` a copy of ``source``, as it is at one point in time.

    A reflink is such a point by itself, whoever writes to the source. Without one, the source must not
    change while it is read, so a virtual machine that can write to it is an error.

    Raises:
        InUseError: no reflink here, and something uses the source. DeadlineError. OSError.
    """
    if not _reflink(source, target):
        hold_for_copy(source)
        _copy_data(source, target, deadline)


def _reflink(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno not in _NO_REFLINK:
            raise
        return False
    return True


def _copy_data(source: int, target: int, deadline: Deadline) -> None:
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    unsynced = 0
    offset = _next_data(source, 0)
    while offset < size:
        end = min(os.lseek(source, offset, os.SEEK_HOLE), size)
        while offset < end:
            deadline.check()
            chunk = os.pread(source, min(_CHUNK_BYTES, end - offset), offset)
            if not chunk:
                raise OSError(errno.EIO, "the disk became shorter while it was read")
            _write(target, chunk, offset)
            offset += len(chunk)
            unsynced += len(chunk)
            if unsynced >= _SYNC_BYTES:  # so that no single flush outlasts the deadline by much
                os.fdatasync(target)
                unsynced = 0
        offset = _next_data(source, offset)


def _next_data(source: int, offset: int) -> int:
    try:
        return os.lseek(source, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return os.fstat(source).st_size  # nothing but a hole up to the end


def _write(target: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(target, view, offset)
        view = view[written:]
        offset += written
