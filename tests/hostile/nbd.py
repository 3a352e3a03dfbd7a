"""A disk whose host lies: an NBD server that decides, for each request, what the guest gets.

The protocol is that of the NetworkBlockDevice project's ``doc/proto.md``: fixed newstyle handshake, simple
replies. Requests are carried out one after the other, so a handler that waits holds up the whole disk.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_GREETING: Final = struct.pack(">8s8sH", b"NBDMAGIC", b"IHAVEOPT", 1)
_OPTION: Final = struct.Struct(">8sII")
_OPTION_REPLY: Final = struct.Struct(">QIII")
_REQUEST: Final = struct.Struct(">IHHQQI")
_REPLY: Final = struct.Struct(">IIQ")

_OPTION_REPLY_MAGIC: Final = 0x3E889045565A9
_REQUEST_MAGIC: Final = 0x25609513
_REPLY_MAGIC: Final = 0x67446698

_GO: Final = 7
_ACK, _INFO, _UNSUPPORTED = 1, 3, 0x80000001
#: HAS_FLAGS, SEND_FLUSH, SEND_FUA: no other requests, so all that is written comes as data.
_FLAGS: Final = 0x01 | 0x04 | 0x08
_READ, _WRITE, _DISCONNECT, _FLUSH = range(4)

OnRead = Callable[[int, int, bytes], bytes]
"""Takes offset, length, and what the disk holds there; gives what the guest sees. OSError is an I/O error."""


@dataclass(frozen=True)
class Write:
    """A write of the guest."""

    offset: int
    data: bytes


class LyingDisk:
    """Serves ``image`` on the Unix socket ``path``; a context manager.

    Attributes:
        on_read: the lie; None for an honest disk.
        before_write: told the number of each write before it is stored; may make the disk vanish instead.
        log: every write that the guest was told had succeeded, in order.
    """

    def __init__(self, image: Path, path: Path) -> None:
        self.path = path
        self.on_read: OnRead | None = None
        self.before_write: Callable[[int], None] | None = None
        self.log: list[Write] = []
        self._gone = threading.Event()
        self._image = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        self._size = os.lseek(self._image, 0, os.SEEK_END)
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._failures: list[Exception] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.vanish()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()
        os.close(self._image)
        assert not self._failures, self._failures

    def vanish(self) -> None:
        """Cut the connection for good: every request from now on is an I/O error."""
        self._gone.set()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="nbd", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._start(partial(self._serve, connection))

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                connection.sendall(_GREETING)
                _exactly(stream.read, 4)
                while self._negotiate(connection, stream.read):
                    pass
                while self._answer(connection, stream.read):
                    pass
            except (EOFError, OSError):
                # The guest's end, or our own, was closed.
                return
            except Exception as error:
                self._failures.append(error)

    def _negotiate(self, connection: socket.socket, read: Callable[[int], bytes]) -> bool:
        """Answer one option; whether more may come."""
        _, option, length = _OPTION.unpack(_exactly(read, _OPTION.size))
        _exactly(read, length)

        def reply(kind: int, data: bytes = b"") -> None:
            head = _OPTION_REPLY.pack(_OPTION_REPLY_MAGIC, option, kind, len(data))
            connection.sendall(head + data)

        if option != _GO:
            reply(_UNSUPPORTED)
            return True
        reply(_INFO, struct.pack(">HQH", 0, self._size, _FLAGS))
        reply(_ACK)
        return False

    def _answer(self, connection: socket.socket, read: Callable[[int], bytes]) -> bool:
        """Carry out one request; whether more may come."""
        magic, _, kind, handle, offset, length = _REQUEST.unpack(_exactly(read, _REQUEST.size))
        assert magic == _REQUEST_MAGIC
        if kind == _DISCONNECT:
            return False
        failure, data = 0, b""
        if kind == _WRITE:
            written = _exactly(read, length)
            if self.before_write is not None:
                self.before_write(len(self.log))
            if self._gone.is_set():
                return False
            os.pwrite(self._image, written, offset)
            self.log.append(Write(offset, written))
        elif kind == _READ:
            try:
                data = self._read(offset, length)
            except OSError:
                failure = errno.EIO
        else:
            # Nothing is cached here, so there is nothing to flush.
            assert kind == _FLUSH, f"a request of kind {kind}"
        connection.sendall(_REPLY.pack(_REPLY_MAGIC, failure, handle) + data)
        return True

    def _read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._image, length, offset)
        return data if self.on_read is None else self.on_read(offset, length, data)


def _exactly(read: Callable[[int], bytes], length: int) -> bytes:
    data = read(length)
    if len(data) != length:
        raise EOFError
    return data
