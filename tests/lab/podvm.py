"""A running guest, seen from the host."""

from __future__ import annotations

import itertools
import queue
import socket
import string
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libvirt

from tests.lab.domain import CONTROL_PORT, MAX_DISKS, channel_socket, console_log, disk_xml
from tests.lab.frames import Frame, pack, read_frame, unpack, write_frame

#: That a command in a guest may take. A machine that is slow and busy can need many times what is usual.
COMMAND_SECONDS = 150.0

#: Seconds that an answer may be late beyond the time granted in the guest: the host may be overloaded.
_GRACE = 60.0

_POLL_INTERVAL = 0.02


class GuestFailed(Exception):
    """The guest did not do what was asked: it did not come up, died, or raised. Says why."""


class GuestTimeout(GuestFailed):
    """A command did not end in its time; it was killed."""


@dataclass(frozen=True)
class Completed:
    """What a program left."""

    returncode: int
    stdout: bytes
    stderr: bytes


class PodVm:
    """A guest. Its methods may be used from several threads.

    Args:
        folder: of this guest, with the sockets and the console log.
        on_destroyed: told once, at the end.
    """

    def __init__(
        self,
        name: str,
        domain: libvirt.virDomain,
        folder: Path,
        *,
        on_destroyed: Callable[[PodVm], None],
    ) -> None:
        self.name = name
        self._domain = domain
        self._folder = folder
        self._on_destroyed = on_destroyed
        self._targets: dict[str, str] = {}
        self._disks: dict[str, str] = {}
        self._ids = itertools.count()
        self._pending: dict[int, queue.SimpleQueue[Frame | None]] = {}
        self._lock = threading.Lock()
        self._alive = True
        self._destroyed = False
        self._socket = self.connect(CONTROL_PORT)
        self._stream = self._socket.makefile("rwb")
        self._reader = threading.Thread(target=self._read_answers, name=f"{name}-answers", daemon=True)
        self._reader.start()

    def connect(self, port: str) -> socket.socket:
        """Connect to the host's end of a virtio-serial port."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(channel_socket(self._folder, port)))
        return connection

    def wait_until_ready(self, *, timeout: float) -> None:
        """Wait for the server in the guest.

        Raises:
            GuestFailed: it does not answer; holds the end of the console log.
        """
        self._ask({"argv": ["true"], "environment": {}}, timeout=timeout)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = COMMAND_SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a program in the guest as root, in the checkout, and wait for its end.

        What it leaves running in the background is left alone.

        Args:
            timeout: seconds; then the program's process group is killed.
            environment: added to the server's.

        Raises:
            GuestTimeout: it did not end in time.
            GuestFailed: it could not be started, or the guest died.
        """
        request = {"argv": list(argv), "stdin": pack(stdin), "environment": dict(environment or {})}
        answer = self._ask(request, timeout=timeout)
        return Completed(answer["returncode"], unpack(answer["stdout"]), unpack(answer["stderr"]))

    def check(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = COMMAND_SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> bytes:
        """:meth:`run` that gives back the standard output; :class:`GuestFailed` unless it exits with 0."""
        done = self.run(argv, stdin=stdin, timeout=timeout, environment=environment)
        if done.returncode != 0:
            output = (done.stdout + done.stderr).decode(errors="replace")
            raise GuestFailed(f"{' '.join(argv)} exited with {done.returncode} in {self.name}:\n{output}")
        return done.stdout

    def call(self, function: str, *, timeout: float = COMMAND_SECONDS, **arguments: Any) -> Any:
        """Call a Python function in the guest, in a forked child of the resident server.

        Args:
            function: ``package.module:name``. The module is imported in the server, once: it must not start
                threads or touch the guest when imported.
            timeout: seconds; then the child is killed.
            arguments: and the returned value: whatever JSON can carry.

        Raises:
            GuestTimeout: it did not end in time.
            GuestFailed: it raised; the message holds the traceback and what it printed.
        """
        answer = self._ask({"function": function, "arguments": arguments}, timeout=timeout)
        if "value" not in answer:
            printed = (unpack(answer["stdout"]) + unpack(answer["stderr"])).decode(errors="replace")
            raise GuestFailed(f"{function} ended with {answer['returncode']} in {self.name}:\n{printed}")
        return answer["value"]

    def _ask(self, request: Frame, *, timeout: float) -> Frame:
        number = next(self._ids)
        answers: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        with self._lock:
            if not self._alive:
                raise GuestFailed(f"{self.name} is gone")
            self._pending[number] = answers
            write_frame(self._stream, {"id": number, "timeout": timeout, **request})
        what = request.get("function") or " ".join(request["argv"])
        try:
            answer = answers.get(timeout=timeout + _GRACE)
        except queue.Empty:
            answer = None
        if answer is None:
            raise GuestFailed(f"{self.name} did not answer to {what}. Its console:\n{self.console()}")
        output = "".join(
            unpack(answer.get(name, "")).decode(errors="replace") for name in ("stdout", "stderr")
        )
        if answer.get("timed_out"):
            raise GuestTimeout(f"{what} did not end within {timeout} s in {self.name}; it printed:\n{output}")
        if "traceback" in answer:
            raise GuestFailed(f"{what} failed in {self.name}:\n{answer['traceback']}{output}")
        return answer

    def _read_answers(self) -> None:
        try:
            while True:
                answer = read_frame(self._stream)
                with self._lock:
                    waiting = self._pending.pop(answer["id"])
                waiting.put(answer)
        except (EOFError, OSError, ValueError):
            with self._lock:
                self._alive = False
                abandoned = list(self._pending.values())
                self._pending.clear()
            for waiting in abandoned:
                waiting.put(None)

    def console(self) -> str:
        """The end of what the guest's kernel and first process printed."""
        return console_log(self._folder).read_text(errors="replace")[-4000:]

    def attach(self, source: Path, serial: str, *, handle: str | None = None) -> None:
        """Attach a disk while the guest runs; the guest may need a moment to see it.

        Args:
            source: a raw image, or the Unix socket of an NBD server.
            serial: at most 20 bytes. Only by it can the disk be found in the guest.
            handle: by which :meth:`detach` knows it, and not in use; the serial, if not given.
        """
        handle = handle or serial
        if not 0 < len(serial.encode()) <= 20:
            raise ValueError(f"a virtio-blk serial holds 1 to 20 bytes: {serial!r} would be cut silently")
        if handle in self._targets:
            raise ValueError(f"a disk called {handle} is attached already")
        names = (f"vd{letter}" for letter in string.ascii_lowercase[1 : MAX_DISKS + 1])
        target = next((name for name in names if name not in self._targets.values()), None)
        if target is None:
            raise ValueError(f"no more than {MAX_DISKS} disks fit into a guest")
        xml = disk_xml(source.resolve(), serial, target)
        self._domain.attachDeviceFlags(xml, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        self._targets[handle] = target
        self._disks[handle] = xml

    def detach(self, handle: str, *, timeout: float = 120.0) -> None:
        """Detach a disk and wait until the guest let go of it.

        Raises:
            GuestTimeout: the guest did not.
        """
        target = self._targets[handle]
        self._domain.detachDeviceFlags(self._disks[handle], libvirt.VIR_DOMAIN_AFFECT_LIVE)
        deadline = time.monotonic() + timeout
        while f"<target dev='{target}'" in self._domain.XMLDesc():
            if time.monotonic() > deadline:
                raise GuestTimeout(f"{self.name} did not release the disk {handle} within {timeout} s")
            time.sleep(_POLL_INTERVAL)
        del self._disks[handle], self._targets[handle]

    def resize_disk(self, handle: str, size: int) -> None:
        """Grow a disk, file and device, to ``size`` bytes: the guest sees it at once."""
        self._domain.blockResize(self._targets[handle], size, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES)

    def destroy(self) -> None:
        """Pull the plug: nothing is unmounted, nothing that the guest still held in memory is written.

        A second call does nothing.
        """
        if self._destroyed:
            return
        self._destroyed = True
        try:
            self._domain.destroy()
        except libvirt.libvirtError as error:
            # It may have ended by itself; while libvirt clears up after it, it is known, but does not run.
            if error.get_error_code() not in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
                raise
        # Wakes the reader, and with it every caller that waits.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(timeout=10)
        self._stream.close()
        self._socket.close()
        self._on_destroyed(self)
