"""Whether a virtual machine uses an image: QEMU's own lock protocol, spoken from outside.

QEMU takes open-file-description locks on a raw image (``file.locking``, on by default). A shared lock on
byte 100 + p says "I use permission p", one on byte 200 + p says "I let nobody else use p" (QEMU,
``block/file-posix.c``, ``RAW_LOCK_PERM_BASE`` and ``RAW_LOCK_SHARED_BASE``). Each side first takes its own
locks and then looks for the other's, so that of two that start together at least one sees the other. The
locks taken here also keep a machine from being started on the image until the descriptor is closed.

A user that takes no such locks (a loop device, QEMU with ``locking=off``) is not seen.
"""

from __future__ import annotations

import fcntl
import os
import struct

from providers.errors import InUseError

_READ, _WRITE, _WRITE_UNCHANGED, _RESIZE = range(4)
_PERMISSIONS = (_READ, _WRITE, _WRITE_UNCHANGED, _RESIZE)
_USES = 100
_REFUSES = 200

# struct flock on 64-bit Linux: type, whence, start, length, pid
_FLOCK = "@hhqqi4x"


def hold_for_removal(disk: int) -> None:
    """Keep everyone off the image open as ``disk`` until that descriptor is closed.

    Raises:
        InUseError: a virtual machine has it, or another call is copying it.
    """
    _hold(disk, uses=_PERMISSIONS, refuses=_PERMISSIONS)


def hold_for_copy(disk: int) -> None:
    """Keep writers off the image open as ``disk`` until that descriptor is closed; readers are welcome.

    Raises:
        InUseError: a virtual machine can write to it, or another call is deleting it.
    """
    _hold(disk, uses=(_READ,), refuses=(_WRITE, _WRITE_UNCHANGED, _RESIZE))


def _hold(disk: int, *, uses: tuple[int, ...], refuses: tuple[int, ...]) -> None:
    try:
        for byte in [_USES + use for use in uses] + [_REFUSES + refusal for refusal in refuses]:
            fcntl.fcntl(disk, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK, byte))
    except BlockingIOError as error:
        raise _in_use() from error
    if any(_others_hold(disk, _REFUSES + use) for use in uses):
        raise _in_use()
    if any(_others_hold(disk, _USES + refusal) for refusal in refuses):
        raise _in_use()


def _others_hold(disk: int, byte: int) -> bool:
    answer = fcntl.fcntl(disk, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, byte))
    lock_type: int = struct.unpack(_FLOCK, answer)[0]
    return lock_type != fcntl.F_UNLCK


def _lock(lock_type: int, byte: int) -> bytes:
    return struct.pack(_FLOCK, lock_type, os.SEEK_SET, byte, 1, 0)


def _in_use() -> InUseError:
    return InUseError(
        "the disk is in use by a virtual machine or by another copy or deletion; "
        "try again when the pod that uses it has stopped"
    )
