"""Kata's direct-volume root: one directory per published target path, each with a ``mountInfo.json``.

The directory is the only state of the node plugin. Other programs read it at any moment: CAA lists it for
each new PodVM and counts the records it can read, Kata writes an empty file named after the sandbox beside
``mountInfo.json`` and reads the first such file back. So a record appears and disappears as a whole
directory, by one rename, and is prepared or taken apart under a name that no reader decodes.
"""

from __future__ import annotations

import base64
import binascii
import errno
import fcntl
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from driver import mountinfo
from driver.errors import Internal, InvalidArgument, Unavailable
from driver.mountinfo import MountInfo
from driver.observation import Observer
from driver.pod_sockets import is_sandbox_id

DEFAULT_ROOT = Path("/run/kata-containers/shared/direct-volumes")
MAXIMUM_NAME_BYTES = 255
_MAXIMUM_FILE_BYTES = 64 * 1024
_MAXIMUM_SANDBOXES = 16
_VOLUMES_OF_POD = "/volumes/kubernetes.io~csi/"
"""In a target path of kubelet's, this follows the pod's directory."""
WORK_PREFIX = ".confidential-csi-"
"""Starts with a character outside the base64 alphabet: CAA and Kata can't take it for a record."""


class TargetPathTooLong(InvalidArgument):
    """The directory name would be longer than a file system allows."""


def directory_name(target_path: str) -> str:
    """The record's directory name: URL-safe base64, with padding, of the raw bytes of the path.

    Raises:
        TargetPathTooLong: the name would exceed 255 bytes (the path 189).
    """
    name = base64.urlsafe_b64encode(target_path.encode()).decode("ascii")
    if len(name) > MAXIMUM_NAME_BYTES:
        raise TargetPathTooLong(
            f"target_path is {len(target_path.encode())} bytes long; Kata's record of it fits a file name "
            "only up to 189 bytes: use a shorter kubelet root directory or PersistentVolume name"
        )
    return name


def target_path_of(name: str) -> str | None:
    """The path behind a directory name; None for a name that is not of our making."""
    try:
        path = base64.b64decode(name.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        return None
    return path or None


def pod_directory(target_path: str) -> str | None:
    """kubelet's directory of the pod that a target path belongs to; None if the path is not as kubelet's."""
    pod, is_kubelets, _ = target_path.partition(_VOLUMES_OF_POD)
    return pod if is_kubelets else None


class DirectVolumes:
    """The records under one root. Thread-safe; callers keep two calls off one target path."""

    def __init__(self, root: Path, observer: Observer | None = None) -> None:
        self.root = root
        self._observer = observer or Observer()
        self._mutex = threading.Lock()
        self._disk_ids: dict[str, str | None] = {}
        """Disk id per directory name, to find a disk without reading every record; see find()."""
        self._examined: tuple[int, int] | None = None
        """Device and inode of the root last found good: a node's mount table is long, and is read once."""

    def readiness(self, *, for_writing: bool = True) -> str | None:
        """None if records written here reach Kata and CAA, or these are theirs to read; else why not.

        A root that is missing, or lies on the container's own overlay, means that the host's directory is
        not mounted: records would land in the container, and pods run on an empty host directory.
        """
        try:
            status = self.root.stat()
            if not stat.S_ISDIR(status.st_mode):
                return f"direct-volume root {self.root} is not a directory; {_MOUNT_IT}"
            identity = (status.st_dev, status.st_ino)
            if identity != self._examined and _file_system_type(self.root) == "overlay":
                return f"direct-volume root {self.root} is on the container's overlayfs; {_MOUNT_IT}"
            self._examined = identity
        except FileNotFoundError:
            return f"direct-volume root {self.root} is missing; {_MOUNT_IT}"
        except OSError as error:
            return f"direct-volume root {self.root} can't be examined: {error.strerror}"
        if not os.access(self.root, os.R_OK | os.X_OK | (os.W_OK if for_writing else 0)):
            lacking = "writable" if for_writing else "readable"
            return f"direct-volume root {self.root} is not {lacking} for this process"
        return None

    def require_ready(self, *, for_writing: bool = True) -> None:
        """Return if :meth:`readiness` finds no fault.

        Raises:
            Unavailable: it does.
        """
        reason = self.readiness(for_writing=for_writing)
        if reason is not None:
            raise Unavailable(reason)

    def read(self, target_path: str) -> MountInfo | None:
        """The record of a target path; None if there is none (as for a path too long to have one).

        Raises:
            mountinfo.Damaged: the directory is there, but ``mountInfo.json`` is missing or no valid record.
        """
        try:
            name = directory_name(target_path)
        except TargetPathTooLong:
            return None
        return self._read(name)

    def target_paths(self) -> list[str]:
        """The target paths of all records, sorted; empty also if the root is missing."""
        return sorted(path for name in _entry_names(self.root) if (path := target_path_of(name)) is not None)

    def sandbox_ids(self, target_path: str) -> tuple[str, ...]:
        """The sandboxes that Kata noted beside the record, by an empty file each.

        None is noted before the pod's sandbox exists, and none ever by Kata's Rust runtime. More than one is
        left when a pod's sandbox was made anew.

        Raises:
            mountinfo.Damaged: there is something that Kata does not write.
        """
        found = []
        try:
            with os.scandir(self.root / directory_name(target_path)) as entries:
                for entry in entries:
                    if entry.name == mountinfo.FILE_NAME:
                        continue
                    if not (is_sandbox_id(entry.name) and entry.is_file(follow_symlinks=False)):
                        raise mountinfo.Damaged(f"beside it is {entry.name[:80]!r}, which notes no sandbox")
                    found.append(entry.name)
        except FileNotFoundError:
            return ()
        if len(found) > _MAXIMUM_SANDBOXES:
            raise mountinfo.Damaged(f"{len(found)} sandboxes are noted beside it")
        return tuple(sorted(found))

    def sandboxes_of_other_pods(self, target_path: str) -> frozenset[str]:
        """Sandboxes that are noted beside records of other pods than this path's: they are not its own."""
        pod = target_path.partition(_VOLUMES_OF_POD)[0]
        found: set[str] = set()
        for name in _entry_names(self.root):
            path = target_path_of(name)
            if path is not None and path.partition(_VOLUMES_OF_POD)[0] != pod:
                with suppress(OSError):  # no directory: no record
                    found |= _entry_names(self.root / name)
        return frozenset(found)

    def published_at(self, target_path: str) -> int:
        """When the record was put in place, in nanoseconds since the epoch; 0 when it was repaired since, or
        is gone: "some time ago"."""
        path = self.root / directory_name(target_path) / mountinfo.FILE_NAME
        try:
            return path.lstat().st_mtime_ns
        except OSError:
            return 0

    def find(self, disk_id: str) -> list[str]:
        """The target paths at which a disk is published, sorted.

        The root is listed each time, so records made or removed by another process count; only names
        that this process has not seen yet are read.
        """
        names = _entry_names(self.root)
        with self._mutex:
            for gone in self._disk_ids.keys() - names:
                del self._disk_ids[gone]
            unseen = names - self._disk_ids.keys()
        for name in unseen:
            if target_path_of(name) is None:
                self._remember(name, None)
                continue
            try:
                info = self._read(name)
            except mountinfo.Damaged:
                continue  # no disk id to know it by; read again next time
            if info is not None:
                self._remember(name, info.device)
        with self._mutex:
            candidates = [name for name, known in self._disk_ids.items() if known == disk_id]
        return sorted(path for name in candidates if (path := self._confirm(name, disk_id)) is not None)

    def write(self, target_path: str, info: MountInfo) -> None:
        """Put the record in place, durably. Readers see the old state or the new one, nothing between.

        A directory that exists (a damaged record, or one whose sandbox Kata noted) keeps its other files.

        Raises:
            Internal: the system refused; nothing of the new record is left.
            TargetPathTooLong: nothing was done.
        """
        name = directory_name(target_path)
        directory = self.root / name
        existed = directory.is_dir()
        try:
            with self._work_directory() as work:
                _write_durably(work / mountinfo.FILE_NAME, info.encode())
                if existed:  # since when, nobody knows: see published_at()
                    os.utime(work / mountinfo.FILE_NAME, ns=(0, 0))
                _sync_directory(work)
                try:
                    _move_into_place(work, directory)
                    _sync_directory(self.root)
                except BaseException:
                    if not existed:
                        with suppress(OSError):  # take it back, if it got that far
                            directory.rename(work)
                    raise
        except OSError as error:
            self._observer.record_written(done=False)
            raise Internal(f"can't write the record of {target_path!r}: {error.strerror}") from error
        self._observer.record_written(done=True)
        self._remember(name, info.device)

    def sync(self, target_path: str) -> None:
        """Make a record durable that an earlier, perhaps interrupted, call put in place."""
        _sync_directory(self.root / directory_name(target_path))
        _sync_directory(self.root)

    def remove(self, target_path: str) -> None:
        """Remove the record, damaged or not, with the sandbox ids beside it; a missing one is fine.

        Raises:
            Internal: its directory holds a directory (nothing was removed), or the system refused.
        """
        try:
            directory = self.root / directory_name(target_path)
        except TargetPathTooLong:
            return
        try:
            with os.scandir(directory) as entries:
                if any(entry.is_dir(follow_symlinks=False) for entry in entries):
                    self._observer.record_removed(done=False)
                    raise Internal(f"{directory} holds a directory, which no record does; look at it")
            with self._work_directory() as work:
                directory.rename(work)
                _sync_directory(self.root)
        except FileNotFoundError:
            return
        except OSError as error:
            self._observer.record_removed(done=False)
            raise Internal(f"can't remove the record of {target_path!r}: {error.strerror}") from error
        self._observer.record_removed(done=True)

    def _read(self, name: str) -> MountInfo | None:
        path = self.root / name / mountinfo.FILE_NAME
        try:
            content = read_regular(path)
        except FileNotFoundError:
            if not path.parent.is_dir():
                return None
            raise mountinfo.Damaged(f"{mountinfo.FILE_NAME} is missing") from None
        except NotADirectoryError:
            return None
        except IsADirectoryError:
            raise mountinfo.Damaged(f"{mountinfo.FILE_NAME} is a directory") from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise mountinfo.Damaged(f"{mountinfo.FILE_NAME} is a link or a socket") from None
            raise Internal(f"can't read {path}: {error.strerror}") from error
        if len(content) > _MAXIMUM_FILE_BYTES:
            raise mountinfo.Damaged(f"larger than {_MAXIMUM_FILE_BYTES} bytes")
        return mountinfo.decode(content)

    def _confirm(self, name: str, disk_id: str) -> str | None:
        """The target path, if the record still is that disk's."""
        try:
            info = self._read(name)
        except mountinfo.Damaged:
            info = None
        if info is not None and info.device == disk_id:
            return target_path_of(name)
        with self._mutex:
            self._disk_ids.pop(name, None)
        return None

    def _remember(self, name: str, disk_id: str | None) -> None:
        with self._mutex:
            self._disk_ids[name] = disk_id

    def clear_leftovers(self) -> None:
        """Clear away what killed processes were preparing or taking apart, not what a live one is."""
        try:
            names = _entry_names(self.root)
        except OSError:
            return  # not there yet: readiness() says so, and there is nothing to clear
        for name in names:
            if name.startswith(WORK_PREFIX):
                with suppress(OSError), _locked(self.root / name, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    _discard(self.root / name)

    @contextmanager
    def _work_directory(self) -> Iterator[Path]:
        """A directory that no reader decodes; what is in it at the end is discarded.

        Its lock keeps other processes from clearing it away. One that did so before the lock was taken
        makes the next step fail, never end in an empty record.
        """
        work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=self.root))
        try:
            with _locked(work, fcntl.LOCK_EX):
                yield work
        finally:
            _discard(work)


_MOUNT_IT = "mount the host's directory there (hostPath)"


@contextmanager
def _locked(directory: Path, operation: int) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


def _entry_names(directory: Path) -> set[str]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries}
    except FileNotFoundError:
        return set()


def _file_system_type(directory: Path) -> str:
    """The type of the mount that ``directory`` is on, as /proc names it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        facts = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    finally:
        os.close(descriptor)
    mount_id = next(line.split()[1] for line in facts.splitlines() if line.startswith("mnt_id:"))
    with Path("/proc/self/mountinfo").open(errors="surrogateescape") as mounts:
        for line in mounts:
            if line.startswith(f"{mount_id} "):
                return line.partition(" - ")[2].split()[0]
    raise OSError(None, "its mount is not listed in /proc/self/mountinfo")


def read_regular(path: Path) -> bytes:
    """The content of a record's file, up to a byte more than a record may have.

    Raises:
        mountinfo.Damaged: not a regular file; a pipe would keep its reader waiting.
        OSError: the system refused.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise mountinfo.Damaged(f"{mountinfo.FILE_NAME} is not a regular file")
        return file.read(_MAXIMUM_FILE_BYTES + 1)


def _write_durably(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move_into_place(work: Path, directory: Path) -> None:
    try:
        work.rename(directory)  # takes the place of an empty directory, too
    except OSError:
        if not directory.is_dir():
            raise
        # It holds a damaged record or a sandbox id: replace the one file that is ours.
        (work / mountinfo.FILE_NAME).rename(directory / mountinfo.FILE_NAME)
        _sync_directory(directory)
        work.rmdir()


def _discard(work: Path) -> None:
    """Remove a working directory and the files in it; what can't be removed waits for the next start."""
    try:
        for name in _entry_names(work):
            (work / name).unlink(missing_ok=True)
        work.rmdir()
    except OSError:
        return
