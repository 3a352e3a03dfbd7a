"""Where in a container a volume may be mounted: a place that hides nothing of what the container runs."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from agent.errors import Refused, quoted

MAX_PATH: Final = 1024
"""Bytes of a mount point."""


_CLOSED_TREES: Final = {
    # What the kernel and the runtime put in place: device nodes, process state, sockets, injected secrets.
    **dict.fromkeys(("/dev", "/proc", "/sys", "/run", "/var/run"), "holds what the runtime provides"),
    # Programs and libraries of the measured image: a volume must not replace what is executed.
    **dict.fromkeys(
        ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot"), "holds the image's programs"
    ),
    **dict.fromkeys(
        ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/libexec"),
        "holds the image's programs",
    ),
}
# Whole system directories; directories below them (/etc/gitlab, /var/lib/postgresql) are common and fine.
_CLOSED_DIRECTORIES: Final = frozenset({"/", "/etc", "/usr", "/var", "/usr/local"})


def checked_mount_point(path: str, owner: str) -> str:
    """``path`` without a trailing slash; ``owner`` says in messages whose mount point it is.

    Raises:
        Refused: rule ``mount-point``: not an absolute, normalized path, or one that holds what the image
            or the runtime provides.
    """
    what = f"the mount point {quoted(path)} of {owner}"
    path = checked_path(path, owner)
    if path in _CLOSED_DIRECTORIES:
        raise Refused("mount-point", f"{what} would cover a whole system directory")
    for tree, reason in _CLOSED_TREES.items():
        if path == tree or path.startswith(tree + "/"):
            raise Refused("mount-point", f"{what} is refused: {tree} {reason}")
    return path


def checked_path(path: str, owner: str) -> str:
    """``path`` without a trailing slash, wherever it leads.

    Raises:
        Refused: rule ``mount-point``: not an absolute, normalized path.
    """
    what = f"the mount point {quoted(path)} of {owner}"
    if not path.startswith("/") or len(path.encode("utf-8", "replace")) > MAX_PATH or not path.isprintable():
        raise Refused(
            "mount-point",
            f"{what} must be an absolute path of printable characters, at most {MAX_PATH} bytes",
        )
    # As many pods write it, and the kernel reads it.
    path = path.removesuffix("/") or "/"
    # PurePosixPath keeps a double slash at the beginning, which POSIX lets systems interpret.
    if str(PurePosixPath(path)) != path or path.startswith("//") or ".." in path.split("/"):
        raise Refused("mount-point", f"{what} is not normalized; write no '.', no '..' and no double slash")
    return path
