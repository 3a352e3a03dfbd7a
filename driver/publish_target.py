"""The directory at which kubelet expects a published volume.

The guest puts the volume into the container; on the worker the target stays an empty directory. It is
created and removed here, and nothing below it is ever touched: no recursion, no unmounting.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from driver.errors import FailedPrecondition, Internal, InvalidArgument

_MODE = 0o750
_NOTHING_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})


@dataclass(frozen=True)
class PublishTarget:
    """A target path whose form has been checked; nothing was looked up yet."""

    text: str
    """As the caller sent it. Consumers compare these very bytes: it is never normalized."""
    path: Path
    """For this process's own file operations: without a trailing slash, which would follow a symlink."""

    @classmethod
    def parse(cls, text: str) -> PublishTarget:
        """Check a target path's form.

        Raises:
            InvalidArgument: empty, relative, the root, or with a ``..`` or NUL in it.
        """
        if not text:
            raise InvalidArgument("target_path is empty; it needs an absolute path")
        if "\0" in text:
            raise InvalidArgument("target_path contains a NUL byte")
        if not text.startswith("/") or not text.strip("/"):
            raise InvalidArgument(f"target_path {text[:200]!r} is not an absolute path below /")
        if ".." in text.split("/"):
            raise InvalidArgument(f"target_path {text[:200]!r} contains '..'; send the path itself")
        return cls(text, Path(os.fsdecode(text.encode())))

    def is_below(self, directory: Path) -> bool:
        """Whether the target, its parents' symlinks followed, is ``directory`` or lies in it.

        Raises:
            InvalidArgument: its parents can't be followed, as in a symlink loop.
        """
        try:
            parent = self.path.parent.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno in _NOTHING_THERE:
                return False
            raise InvalidArgument(f"target_path {self.text!r} can't be followed (a symlink loop?)") from error
        return (parent / self.path.name).is_relative_to(directory.resolve())

    def create(self) -> bool:
        """Make sure the directory is there; True if this call made it.

        Raises:
            FailedPrecondition: the parent is missing (the caller's job), or something else is in the way.
            Internal: the directory can't be made.
        """
        try:
            self.path.mkdir(mode=_MODE)
        except FileExistsError:
            if not stat.S_ISDIR(self.path.lstat().st_mode):
                raise FailedPrecondition(
                    f"target_path {self.text!r} exists and is not a directory; remove it and try again"
                ) from None
            return False
        except (FileNotFoundError, NotADirectoryError):
            raise FailedPrecondition(
                f"the parent directory of target_path {self.text!r} does not exist; the caller creates it"
            ) from None
        except OSError as error:
            raise Internal(f"can't create target_path {self.text!r}: {error.strerror}") from error
        return True

    def remove(self) -> None:
        """Remove an empty directory, a file or a symlink (not what it points to); missing is fine.

        Raises:
            FailedPrecondition: a directory with something in it, or a mount point; nothing was changed.
            Internal: the system refused for another reason.
        """
        try:
            if stat.S_ISDIR(self.path.lstat().st_mode):
                self.path.rmdir()
            else:
                self.path.unlink()
        except OSError as error:
            if error.errno in _NOTHING_THERE:
                return
            raise _not_removed(self.text, error) from error


def _not_removed(text: str, error: OSError) -> FailedPrecondition | Internal:
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        return FailedPrecondition(
            f"target_path {text!r} is not empty; this driver puts nothing there: look at the content, "
            "move it away, and unpublish is tried again"
        )
    if error.errno == errno.EBUSY:
        return FailedPrecondition(
            f"target_path {text!r} is busy (a mount point?); unmount it, and unpublish is tried again"
        )
    return Internal(f"can't remove target_path {text!r}: {error.strerror}")
