"""mount(2) and umount2(2), which Python lacks: a ``mount`` process costs more than the mount itself."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

READ_ONLY: Final = 1
NO_SET_USER_ID: Final = 2
NO_DEVICES: Final = 4
NO_ACCESS_TIME: Final = 1024
_DO_NOT_FOLLOW: Final = 8

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


def mount(device: Path, directory: Path, filesystem: str, flags: int, options: str) -> None:
    """Mount ``device`` at ``directory``.

    Raises:
        OSError: the kernel refused.
    """
    source, target = os.fsencode(device), os.fsencode(directory)
    _check(_libc.mount(source, target, filesystem.encode(), flags, options.encode()), directory)


def unmount(directory: Path) -> None:
    """Unmount what is mounted at ``directory``, which is no symbolic link.

    Raises:
        OSError: it is in use (``EBUSY``), or nothing is mounted there.
    """
    _check(_libc.umount2(os.fsencode(directory), _DO_NOT_FOLLOW), directory)


def _check(result: int, directory: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(directory))
