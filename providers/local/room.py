"""Objects of one kind in one directory: each a sub-directory that holds a disk and its tags.

An object appears and disappears whole, by one rename. It is built in, and taken apart in, a sub-directory
with a temporary name, locked (``flock``) by whoever works there; the kernel drops the lock when that process
dies, however it dies, and the next call that changes something removes what was left.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from providers.deadline import Deadline
from providers.errors import CorruptStateError, OutcomeUnknownError, QuotaExceededError, UnavailableError
from providers.local.image_locks import hold_for_removal

DISK = "disk.raw"
TAGS = "tags.json"
TEMPORARY_PREFIX = ".tmp-"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking: a pipe in place of a file would keep its opener waiting.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAXIMUM_TAGS_BYTES = 256 * 1024
_LOCK_POLL_SECONDS = 0.02
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredObject:
    """An object as it is on disk now."""

    tags: bytes
    size_bytes: int


@dataclass(frozen=True)
class OpenedDisk:
    """An object, and the descriptor of its disk."""

    stored: StoredObject
    descriptor: int


Check = Callable[[bytes], object]
"""Raises CorruptStateError if an object's tags do not belong to its name."""


class Room:
    """One directory of objects. Thread-safe, and safe beside other processes on the same directory.

    Names come from :func:`providers.names.backend_name`: the caller never passes text from outside.
    All methods raise UnavailableError if the directory can't be read, which says nothing of the object.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def prepare(self) -> None:
        """Make the directory, in an existing one, unless it is there; remove what killed calls left in it.

        Raises:
            OSError: there is no directory to make it in, or it can't be used.
        """
        self._path.mkdir(mode=0o700, exist_ok=True)
        with _closing(os.open(self._path.parent, _DIRECTORY)) as parent:
            os.fsync(parent)
        with _closing(os.open(self._path, _DIRECTORY)) as room:
            _sweep(room)

    def names(self) -> list[str]:
        """The names of all entries, foreign and temporary ones included."""
        with self._opened() as room:
            return _entries(room)

    def read(self, name: str) -> StoredObject | None:
        """The object of that name, None if there is none.

        Raises:
            CorruptStateError: something else has its name.
        """
        with self._opened() as room:
            try:
                directory = _open_object(room, name)
            except FileNotFoundError:
                return None
            with _closing(directory):
                return _read(room, name, directory)

    @contextmanager
    def open_disk(self, name: str) -> Iterator[OpenedDisk | None]:
        """The object of that name, its disk open for reading; None if there is none.

        The disk stays readable if the object is deleted meanwhile.

        Raises:
            CorruptStateError: something else has its name.
        """
        with self._opened() as room:
            try:
                directory = _open_object(room, name)
            except FileNotFoundError:
                yield None
                return
            with _closing(directory):
                stored = _read(room, name, directory)
                if stored is None:
                    yield None
                    return
                with _closing(os.open(DISK, os.O_RDONLY | _FILE, dir_fd=directory)) as disk:
                    yield OpenedDisk(stored, disk)

    def create(self, name: str, tags: bytes, fill: Callable[[int], None]) -> bool:
        """Make the object, its disk filled by ``fill`` (given the open, empty file); False if it is there.

        Raises:
            QuotaExceededError: no space; nothing was created. OutcomeUnknownError: it may exist.
        """
        with self._opened() as room:
            _sweep(room)
            temporary, directory = _make_temporary(room)
            with _closing(directory):
                try:
                    _write_object(directory, tags, fill)
                    os.rename(temporary, name, src_dir_fd=room, dst_dir_fd=room)
                except BaseException as error:
                    _clear(room, temporary, directory)
                    if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                        return False
                    raise
            try:
                os.fsync(room)
            except OSError as error:
                raise OutcomeUnknownError(f"{name} was created but not yet made durable: {error}") from error
            return True

    def settle(self) -> None:
        """Make durable what another call, perhaps one that was killed, has created or deleted."""
        with self._opened() as room:
            _sweep(room)
            os.fsync(room)

    def delete(self, name: str, check: Check, deadline: Deadline) -> None:
        """Delete the object of that name, or find that there is none.

        Raises:
            InUseError, CorruptStateError: nothing was changed. DeadlineError: someone holds its lock.
        """
        with self._opened() as room:
            _sweep(room)
            directory = _lock_object(room, name, deadline)
            if directory is not None:
                with _closing(directory):
                    self._delete_locked(room, name, directory, check)
            os.fsync(room)

    def _delete_locked(self, room: int, name: str, directory: int, check: Check) -> None:
        stored = _read(room, name, directory)
        if stored is None:
            return
        check(stored.tags)
        foreign = set(_entries(directory)) - {DISK, TAGS}
        if foreign:
            raise CorruptStateError(f"{name} holds files that are not this driver's; a person must look")
        with _closing(os.open(DISK, os.O_RDWR | _FILE, dir_fd=directory)) as disk:
            hold_for_removal(disk)
            grave = _temporary_name()
            os.rename(name, grave, src_dir_fd=room, dst_dir_fd=room)
            os.fsync(room)
            _remove(room, grave, directory)

    def grow(self, name: str, size_bytes: int, check: Check, deadline: Deadline) -> int | None:
        """Make the disk at least ``size_bytes`` long; its length then, or None if there is no such object.

        Raises:
            CorruptStateError, QuotaExceededError: nothing was changed. DeadlineError: someone holds its lock.
        """
        with self._opened() as room:
            directory = _lock_object(room, name, deadline)
            if directory is None:
                return None
            with _closing(directory):
                stored = _read(room, name, directory)
                if stored is None:
                    return None
                check(stored.tags)
                with _closing(os.open(DISK, os.O_RDWR | _FILE, dir_fd=directory)) as disk:
                    if stored.size_bytes < size_bytes:
                        os.ftruncate(disk, size_bytes)
                    os.fsync(disk)
                    return max(stored.size_bytes, size_bytes)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            with _closing(os.open(self._path, _DIRECTORY)) as room:
                yield room
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise QuotaExceededError(
                    f"no space left for this in {self._path} ({error.strerror}); delete volumes or snapshots"
                ) from error
            raise UnavailableError(
                f"{self._path} could not be used ({error.strerror}); check that it is mounted and writable"
            ) from error


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _entries(directory: int) -> list[str]:
    return os.listdir(directory)


def _open_object(room: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=room)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise CorruptStateError(
                f"{name} is not a directory of this driver's; a person must look"
            ) from error
        raise


def _read(room: int, name: str, directory: int) -> StoredObject | None:
    """The object open as ``directory``; None if it was deleted while it was read."""
    try:
        with _closing(os.open(TAGS, os.O_RDONLY | _FILE, dir_fd=directory)) as file:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise CorruptStateError(f"the tags of {name} are not a regular file; a person must look")
            tags = os.read(file, _MAXIMUM_TAGS_BYTES)
        disk = os.stat(DISK, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError as error:
        if not _is_at(room, name, directory):
            return None
        raise CorruptStateError(f"{name} lacks its disk or its tags; a person must look") from error
    if not stat.S_ISREG(disk.st_mode):
        raise CorruptStateError(f"the disk of {name} is not a regular file; a person must look")
    return StoredObject(tags, disk.st_size)


def _write_object(directory: int, tags: bytes, fill: Callable[[int], None]) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE
    with _closing(os.open(DISK, flags, 0o600, dir_fd=directory)) as disk:
        fill(disk)
        os.fsync(disk)
    with _closing(os.open(TAGS, flags, 0o600, dir_fd=directory)) as file:
        if os.write(file, tags) != len(tags):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)
    os.fsync(directory)


def _lock_object(room: int, name: str, deadline: Deadline) -> int | None:
    """The object's directory, open and locked; None if there is no such object. Closing it unlocks."""
    while True:
        try:
            directory = _open_object(room, name)
        except FileNotFoundError:
            return None
        try:
            while not _try_lock(directory):
                deadline.check()
                time.sleep(min(_LOCK_POLL_SECONDS, deadline.remaining()))
            if _is_at(room, name, directory):  # not deleted, or deleted and made again, while we waited
                return directory
        except BaseException:
            os.close(directory)
            raise
        os.close(directory)


def _make_temporary(room: int) -> tuple[str, int]:
    """A new temporary directory: its name, and the descriptor whose lock keeps :func:`_sweep` off it."""
    while True:
        name = _temporary_name()
        os.mkdir(name, 0o700, dir_fd=room)
        with suppress(FileNotFoundError):
            directory = os.open(name, _DIRECTORY, dir_fd=room)
            try:
                if _try_lock(directory) and _is_at(room, name, directory):
                    return name, directory
            except BaseException:
                os.close(directory)
                raise
            os.close(directory)
        # Swept before it was locked: make another.


def _sweep(room: int) -> None:
    """Remove the temporary directories of calls that are no longer running."""
    for name in _entries(room):
        if not name.startswith(TEMPORARY_PREFIX):
            continue
        try:
            with _closing(os.open(name, _DIRECTORY, dir_fd=room)) as directory:
                if _try_lock(directory) and _is_at(room, name, directory):
                    _remove(room, name, directory)
        except FileNotFoundError:
            continue  # someone else was faster
        except OSError as error:
            _log_leftover(name, error)


def _clear(room: int, name: str, directory: int) -> None:
    """As :func:`_remove`, but a failure is left to a later sweep: it is not what the call is about."""
    try:
        _remove(room, name, directory)
    except OSError as error:
        _log_leftover(name, error)


def _log_leftover(name: str, error: OSError) -> None:
    _log.warning("leftover %s could not be removed: %s", name, error.strerror)


def _remove(room: int, name: str, directory: int) -> None:
    """Remove the temporary directory ``name``, which is open and locked as ``directory``."""
    for file in (DISK, TAGS):
        with suppress(FileNotFoundError):
            os.unlink(file, dir_fd=directory)
    os.rmdir(name, dir_fd=room)


def _try_lock(directory: int) -> bool:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(room: int, name: str, directory: int) -> bool:
    try:
        found = os.stat(name, dir_fd=room, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(directory))


def _temporary_name() -> str:
    return TEMPORARY_PREFIX + secrets.token_hex(8)
