"""An example of a provider: each volume is a sparse file, and its tags are the file's extended attribute.

Every rule of ``providers/interface.py`` is kept in the shortest way there is: a file gets its name by one
exclusive link when it is whole, loses it by one unlink, and until then, or after, it has no name to be left
over under. It needs a file system with O_TMPFILE and user attributes (ext4, XFS, Btrfs). A machine that has a
disk holds a shared ``flock`` on it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from providers import errors
from providers.deadline import Deadline
from providers.interface import BlockVolumeProvider, Page, Volume, VolumeExpander, VolumeLister, VolumeRequest
from providers.names import backend_name, is_backend_name
from providers.paging import page
from providers.tags import VolumeTags, decode_volume, encode

SETTING = "CONFIDENTIAL_CSI_EXAMPLE_DIRECTORY"
PREFIX = "csi-vol-"
TAGS = "user.confidential-csi"

_is_ours = partial(is_backend_name, PREFIX)


class ExampleProvider(BlockVolumeProvider, VolumeExpander, VolumeLister):
    """Disks in ``directory``, an existing one."""

    name: ClassVar[str] = "example"
    size_step_bytes: ClassVar[int] = 1 << 20
    minimum_size_bytes: ClassVar[int] = 1 << 20
    maximum_size_bytes: ClassVar[int] = 1 << 40
    parameter_names: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        directory = Path(settings.get(SETTING, ""))
        if not (directory.is_absolute() and directory.is_dir()):
            raise errors.ConfigurationError(f"{SETTING} must be the absolute path of an existing directory")
        return cls(directory)

    def validate_parameters(self, parameters: Mapping[str, str]) -> None:
        for parameter in parameters:
            raise errors.InvalidParameterError(f"no parameter {parameter!r} is known here; remove it")

    def handle_for_name(self, name: str) -> str:
        return backend_name(PREFIX, name)

    def create_volume(self, request: VolumeRequest, deadline: Deadline) -> Volume:
        handle = self.handle_for_name(request.name)
        size = request.size_bytes
        with self._changing(deadline) as room:
            if (existing := _read(room, handle)) is not None:
                _settle(room)  # whoever linked it may have been killed before this
                return existing
            if size % self.size_step_bytes or not self.minimum_size_bytes <= size <= self.maximum_size_bytes:
                raise errors.SizeOutOfRangeError(f"{size} bytes: not whole MiB, or not 1 MiB to 1 TiB")
            tags = VolumeTags(
                name=request.name,
                created_size_bytes=size,
                encryption=request.encryption,
                fs_type=request.fs_type,
                source=None,
                labels=dict(request.labels),
                created_at=datetime.now(UTC),
            )
            with _opened(".", os.O_RDWR | os.O_TMPFILE, room) as disk:
                os.ftruncate(disk, size)
                os.setxattr(disk, TAGS, encode(tags))
                os.fsync(disk)
                os.link(f"/proc/self/fd/{disk}", handle, dst_dir_fd=room)  # fails if the name is taken
            _settle(room)
            return _volume(handle, size, tags)

    def delete_volume(self, handle: str, deadline: Deadline) -> None:
        with self._changing(deadline) as room:
            if _read(room, handle) is not None:
                with _opened(handle, os.O_RDONLY, room) as disk:
                    try:
                        fcntl.flock(disk, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError as error:
                        raise errors.InUseError(f"a machine has {handle}; stop it first") from error
                    os.unlink(handle, dir_fd=room)
            _settle(room)

    def get_volume_info(self, handle: str, deadline: Deadline) -> Volume:
        deadline.check()
        with self._room() as room:
            return self._found(_read(room, handle))

    def volume_exists(self, handle: str, deadline: Deadline) -> bool:
        deadline.check()
        with self._room() as room:
            return _read(room, handle) is not None

    def expand_volume(self, handle: str, size_bytes: int, deadline: Deadline) -> int:
        with self._changing(deadline) as room:
            size = self._found(_read(room, handle)).size_bytes
            with _opened(handle, os.O_RDWR, room) as disk:
                if size < size_bytes:
                    os.ftruncate(disk, size_bytes)
                os.fsync(disk)
            return max(size, size_bytes)

    def list_volumes(self, max_entries: int, token: str, deadline: Deadline) -> Page[Volume]:
        deadline.check()
        with self._room() as room:
            names = [path.name for path in self._directory.iterdir()]
            return page(_is_ours, names, lambda name: _read(room, name), max_entries, token)

    @staticmethod
    def _found(volume: Volume | None) -> Volume:
        if volume is None:
            raise errors.VolumeNotFoundError("there is no such volume in the example directory")
        return volume

    @contextmanager
    def _room(self) -> Iterator[int]:
        """The directory. One that is not there says nothing of the volumes in it."""
        try:
            with _opened(self._directory, os.O_RDONLY | os.O_DIRECTORY) as room:
                yield room
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise errors.QuotaExceededError(f"no space in {self._directory}; delete volumes") from error
            raise errors.UnavailableError(f"can't use {self._directory} ({error.strerror})") from error

    @contextmanager
    def _changing(self, deadline: Deadline) -> Iterator[int]:
        """The directory, for one change at a time; the kernel lets go of it when a process dies."""
        with self._room() as room:
            while True:
                deadline.check()
                try:
                    fcntl.flock(room, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.01)
            yield room


@contextmanager
def _opened(path: str | Path, flags: int, room: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=room)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _settle(room: int) -> None:
    """Make names durable. That fails when the change is made already, so the caller must ask again."""
    try:
        os.fsync(room)
    except OSError as error:
        raise errors.OutcomeUnknownError(f"made, but not yet durable ({error.strerror})") from error


def _read(room: int, handle: str) -> Volume | None:
    """The volume; None if there is none, or no volume can have that handle."""
    if not _is_ours(handle):
        return None
    try:
        with _opened(handle, os.O_RDONLY | os.O_NONBLOCK, room) as disk:
            size, tags = os.fstat(disk).st_size, decode_volume(os.getxattr(disk, TAGS))
    except FileNotFoundError:
        return None
    if backend_name(PREFIX, tags.name) != handle:
        raise errors.CorruptStateError(f"{handle} has another volume's tags; a person must look")
    return _volume(handle, size, tags)


def _volume(handle: str, size: int, tags: VolumeTags) -> Volume:
    return Volume(
        handle=handle,
        name=tags.name,
        size_bytes=size,
        created_size_bytes=tags.created_size_bytes,
        encryption=tags.encryption,
        fs_type=tags.fs_type,
        source=None,
        disk_id=handle,
    )
