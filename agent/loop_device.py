"""Read-only loop devices over files in memory, by the kernel's own calls (``linux/loop.h``)."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from agent.errors import Unavailable

_CONTROL: Final = Path("/dev/loop-control")
_GET_FREE: Final = 0x4C82
_CONFIGURE: Final = 0x4C0A
_READ_ONLY: Final = 1
_CLEAR_WHEN_UNUSED: Final = 4
#: ``struct loop_config``: file and block size, then of ``struct loop_info64`` only the flags, then nothing.
_CONFIGURATION: Final = struct.Struct("=I I 52x I 176x 64x")
_ATTEMPTS: Final = 100


@contextmanager
def loop_over(file: int) -> Iterator[str]:
    """A loop device over the open file; its kernel name, such as ``loop0``.

    It lives as long as anybody has it open or mapped, and in this block: an agent that is killed leaves none.

    Raises:
        Unavailable: the kernel has no free one, or refused (``loop-device``).
    """
    try:
        name, device = _attach(file)
    except OSError as error:
        raise Unavailable("loop-device", f"no loop device can be made: {error.strerror}") from None
    try:
        yield name
    finally:
        os.close(device)


def _attach(file: int) -> tuple[str, int]:
    configuration = _CONFIGURATION.pack(file, 0, _READ_ONLY | _CLEAR_WHEN_UNUSED)
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            name = f"loop{fcntl.ioctl(control, _GET_FREE)}"
            device = os.open(f"/dev/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _CONFIGURE, configuration)
            except OSError as error:
                os.close(device)
                # Another volume's took it first.
                if error.errno != errno.EBUSY:
                    raise
            else:
                return name, device
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, f"none was free in {_ATTEMPTS} attempts")
