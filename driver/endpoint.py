"""The Unix socket on which the driver serves."""

from __future__ import annotations

import errno
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

#: ``sun_path`` of Linux, in bytes, with its final NUL.
_MAXIMUM_PATH = 107

_PROBE_SECONDS = 1.0


class EndpointError(Exception):
    """The driver can't serve on this endpoint; the message says why and what to do."""


@dataclass(frozen=True)
class Endpoint:
    """A Unix socket's absolute path."""

    path: Path

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """The endpoint written as ``unix:///absolute/path`` (or ``unix:/absolute/path``).

        Raises:
            EndpointError: it is written otherwise, or too long for a socket.
        """
        path = text.removeprefix("unix:")
        if path.startswith("///"):
            path = path[2:]
        if not text.startswith("unix:") or not path.startswith("/") or path.startswith("//") or path == "/":
            raise EndpointError(f"endpoint {text!r}: expected unix:///absolute/path/of/the/socket")
        if len(path.encode()) > _MAXIMUM_PATH:
            raise EndpointError(f"endpoint {text!r}: the path is longer than {_MAXIMUM_PATH} bytes")
        return cls(Path(path))

    @property
    def target(self) -> str:
        """As gRPC writes it."""
        return f"unix:{self.path}"

    def clear(self) -> None:
        """Make way for a new socket: remove one that nobody serves any more.

        Raises:
            EndpointError: the folder is missing, the path is not a socket, or a process serves on it.
        """
        if not self.path.parent.is_dir():
            raise EndpointError(
                f"{self.path.parent} is not a directory; create it, or choose another --endpoint"
            )
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise EndpointError(
                f"{self.path} exists and is not a socket; remove it, or choose another --endpoint"
            )
        if self._is_served():
            raise EndpointError(
                f"another process serves on {self.path}; stop it first, or choose another --endpoint"
            )
        self.path.unlink(missing_ok=True)

    def _is_served(self) -> bool:
        """Whether a process listens. Only a refused connection proves that none does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_PROBE_SECONDS)
            try:
                probe.connect(str(self.path))
            except OSError as error:
                return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
        return True
