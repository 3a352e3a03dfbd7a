"""The KBS stand-in: a folder of keys on the host that only the CDH stand-in in a guest can ask for.

The channel is a virtio-serial port of its own. A port has one opener at a time, and the CDH stand-in keeps
it open: nothing else in the guest, above all not the agent, can read a key but through CDH. The folder is
not visible in the guest as long as it lies where :mod:`tests.lab.hypervisor` hides things (``/tmp`` is one).
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from http import HTTPStatus
from pathlib import Path

from tests.lab.domain import KBS_PORT
from tests.lab.frames import Frame, pack, read_frame, write_frame
from tests.lab.podvm import PodVm

_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*){2}", re.ASCII)


class Kbs:
    """Releases keys to guests.

    Attributes:
        denied: resource paths that the policy does not release (status 403).
        delay: seconds before each answer.
        requests: what was asked, as (guest, resource path), in order.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.denied: set[str] = set()
        self.delay = 0.0
        self.requests: list[tuple[str, str]] = []

    def put(self, path: str, key: bytes) -> None:
        """Store a key under ``repository/type/tag``, replacing what is there."""
        file = self._file(path)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.touch(mode=0o600)
        file.write_bytes(key)

    def remove(self, path: str) -> None:
        """Forget a key, as KBS's administrator can: status 404 from now on."""
        self._file(path).unlink()

    def serve(self, vm: PodVm) -> None:
        """Answer the guest's CDH stand-in until the guest is destroyed."""
        connection = vm.connect(KBS_PORT)
        threading.Thread(
            target=self._serve, args=(vm.name, connection), name=f"kbs-{vm.name}", daemon=True
        ).start()

    def _serve(self, name: str, connection: socket.socket) -> None:
        stream = connection.makefile("rwb")
        # The guest may be destroyed at any moment.
        with contextlib.suppress(EOFError, OSError), contextlib.closing(connection), stream:
            while True:
                request = read_frame(stream)
                self.requests.append((name, request["path"]))
                time.sleep(self.delay)
                write_frame(stream, {"id": request["id"], **self.answer(request["path"])})

    def answer(self, path: str) -> Frame:
        """What KBS answers to a request for ``path``: the key, or an HTTP status."""
        if path in self.denied:
            return {"status": HTTPStatus.FORBIDDEN}
        try:
            return {"status": HTTPStatus.OK, "key": pack(self._file(path).read_bytes())}
        except ValueError:
            return {"status": HTTPStatus.BAD_REQUEST}
        except FileNotFoundError:
            return {"status": HTTPStatus.NOT_FOUND}

    def _file(self, path: str) -> Path:
        if not _PATH.fullmatch(path):
            raise ValueError(f"a resource path is repository/type/tag, not {path!r}")
        return self._folder / path
