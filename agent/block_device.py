"""Reading and writing a raw disk past the page cache, so that what is read is what the disk says now."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from agent.errors import Refused, Unavailable

#: Everything read or written is a multiple of this many bytes, at a multiple of it: the largest logical
#: block size of the disks we meet, and the encryption sector size of the on-disk format.
BLOCK_BYTES = 4096
_CHUNK_BYTES = 1024 * 1024


def all_zero(data: bytes | bytearray) -> bool:
    """Whether every byte is zero (quickly: the data may be several MiB, and mostly it is not)."""
    return not any(data[:BLOCK_BYTES]) and data == bytes(len(data))


class BlockDevice(Protocol):
    """A disk, addressed in bytes. Offsets and lengths are multiples of ``BLOCK_BYTES``.

    A write may be lost, in whole or in 512-byte parts and in any order, until ``flush`` has returned.
    """

    @property
    def size(self) -> int:
        """Usable bytes: the disk's size rounded down to ``BLOCK_BYTES``."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``.

        Raises:
            Unavailable: the disk returned an error or fewer bytes.
        """

    def write(self, offset: int, data: bytes) -> None:
        """Write ``data`` at ``offset``.

        Raises:
            Unavailable: the disk returned an error; some of ``data`` may have been written.
        """

    def flush(self) -> None:
        """Return when everything written so far would survive a power cut.

        Raises:
            Unavailable: the disk returned an error.
        """


class DirectDevice:
    """A real disk (or, in tests, a file) opened with O_DIRECT; a context manager."""

    def __init__(self, path: Path, *, writable: bool, exclusive: bool, number: str | None = None) -> None:
        """Open ``path``. ``exclusive`` claims the disk: it fails while the disk, or a part of it, is
        mounted or held by device-mapper, and keeps others from mounting it until closed.

        ``number`` is the ``major:minor`` that the disk had when it was found: the host can take it away
        meanwhile and attach another one, which then gets its name.

        Raises:
            Refused: ``exclusive``, and the disk is in use (rule ``device-in-use``); or it is another one than
                was found (``device-exchanged``).
            Unavailable: it can't be opened.
        """
        self._path = path
        flags = os.O_DIRECT | os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY)
        if exclusive:
            flags |= os.O_EXCL
        try:
            self._fd = os.open(path, flags)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise Refused(
                    "device-in-use",
                    f"{path} is mounted or held by something else; expected a disk that nothing uses",
                ) from None
            raise Unavailable("device-unreadable", f"cannot open {path}: {error.strerror}") from None
        opened = os.fstat(self._fd).st_rdev
        if number is not None and number != f"{os.major(opened)}:{os.minor(opened)}":
            os.close(self._fd)
            raise Refused(
                "device-exchanged",
                f"{path} was the device {number} when it was found, and is "
                f"{os.major(opened)}:{os.minor(opened)} now: the disk was exchanged meanwhile",
            )
        self._size = os.lseek(self._fd, 0, os.SEEK_END) // BLOCK_BYTES * BLOCK_BYTES

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        with _aligned_buffer(length) as buffer:
            with memoryview(buffer) as view:
                for start in range(0, length, _CHUNK_BYTES):
                    wanted = min(length - start, _CHUNK_BYTES)
                    try:
                        got = os.preadv(self._fd, [view[start : start + wanted]], offset + start)
                    except OSError as error:
                        raise self._failure("read", offset + start, error.strerror) from None
                    if got != wanted:
                        raise self._failure("read", offset + start, f"only {got} of {wanted} bytes")
            return buffer[:]

    def write(self, offset: int, data: bytes) -> None:
        with _aligned_buffer(_CHUNK_BYTES) as buffer, memoryview(buffer) as view:
            for start in range(0, len(data), _CHUNK_BYTES):
                part = data[start : start + _CHUNK_BYTES]
                view[: len(part)] = part
                try:
                    written = os.pwritev(self._fd, [view[: len(part)]], offset + start)
                except OSError as error:
                    raise self._failure("write", offset + start, error.strerror) from None
                if written != len(part):
                    raise self._failure("write", offset + start, f"only {written} of {len(part)} bytes")

    def flush(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._failure("flush", 0, error.strerror) from None

    def _failure(self, action: str, offset: int, why: str | None) -> Unavailable:
        return Unavailable("device-io", f"{action} of {self._path} at byte {offset} failed: {why}")


def _aligned_buffer(length: int) -> mmap.mmap:
    """Memory that direct I/O accepts, its pages there at once: each fault would cost more than the copy."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return mmap.mmap(-1, length, flags=flags)
