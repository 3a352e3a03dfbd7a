"""cloud-api-adaptor's sockets: for each PodVM on this worker one, ``<root>/<sandbox id>/agent.ttrpc``.

What is called there is forwarded to the guest's agent. The root is a directory of the worker's that this
process only reads. No symlink below it is followed, and an id becomes a path only if it looks like one.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from driver import ttrpc

DEFAULT_ROOT: Final = Path("/run/peerpod/pods")
SOCKET_NAME: Final = "agent.ttrpc"

_SANDBOX_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_FLAGS: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def is_sandbox_id(text: str) -> bool:
    """Whether this can be the id of a sandbox, and so one component of a path."""
    return _SANDBOX_ID.fullmatch(text) is not None


class PodSockets:
    """The PodVMs under one root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def made_since(self, time_ns: int) -> tuple[str, ...]:
        """Ids of the sandboxes whose socket is not older than that (nanoseconds since the epoch).

        A directory without a socket is a PodVM that does not run yet, or no more. A root that is missing
        holds none: it comes with the first PodVM.

        Raises:
            ttrpc.NoAnswer: the system does not let us look.
        """
        try:
            with os.scandir(self._root) as entries:
                names = [entry.name for entry in entries if is_sandbox_id(entry.name)]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ttrpc.NoAnswer(f"can't list {self._root}: {error.strerror}") from error
        found = []
        for name in sorted(names):
            try:
                with self._opened(name) as descriptor:
                    if os.fstat(descriptor).st_mtime_ns >= time_ns:
                        found.append(name)
            except OSError:
                continue
        return tuple(found)

    def call(self, sandbox_id: str, service: str, method: str, payload: bytes, seconds: float) -> bytes:
        """Call the agent of that sandbox; see :func:`driver.ttrpc.call`.

        Raises:
            ttrpc.NoAnswer: there is no such socket, or as there.
            ttrpc.Refusal: as there.
        """
        try:
            with self._opened(sandbox_id) as descriptor:
                # Not by its path, which may be longer than the 107 bytes of a socket's address.
                return ttrpc.call(f"/proc/self/fd/{descriptor}", service, method, payload, seconds)
        except OSError as error:
            raise ttrpc.NoAnswer(
                f"{self._root / sandbox_id / SOCKET_NAME}: {error.strerror or 'not a socket'}"
            ) from error

    @contextmanager
    def _opened(self, sandbox_id: str) -> Iterator[int]:
        """A descriptor of the socket's file; raises OSError."""
        if not is_sandbox_id(sandbox_id):
            raise OSError(None, "not the id of a sandbox")
        with ExitStack() as stack:
            root = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, root)
            pod = os.open(sandbox_id, _FLAGS | os.O_DIRECTORY, dir_fd=root)
            stack.callback(os.close, pod)
            descriptor = os.open(SOCKET_NAME, _FLAGS, dir_fd=pod)
            stack.callback(os.close, descriptor)
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                raise OSError(None, "not a socket")
            yield descriptor
