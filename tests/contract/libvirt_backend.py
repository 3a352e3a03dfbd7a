"""A storage pool of a real libvirtd behind the libvirt provider."""

from __future__ import annotations

import atexit
import functools
import gc
import hashlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from xml.sax.saxutils import quoteattr

import libvirt

from providers.libvirt import LibvirtProvider
from providers.libvirt.parts import MARK_CHARACTERS
from tests.contract.backend import Backend
from tests.lab.hypervisor import Hypervisor
from tests.lab.watched_libvirt import Watched

#: Seconds after which the provider takes an attempt for abandoned. Where processes race, a busy machine can
#: keep one of them waiting between two steps; after a kill there is only one.
_PATIENCE = 0.05
_PATIENCE_OF_RACERS = 20.0

POOL = "contract"

_numbers = itertools.count()


@functools.cache
def shared_libvirtd() -> Hypervisor:
    """One libvirtd for all backends of the run."""
    os.register_at_fork(before=_EndedThreads().wait)
    hypervisor = Hypervisor()
    hypervisor.__enter__()
    owner = os.getpid()
    atexit.register(lambda: hypervisor.close() if os.getpid() == owner else None)
    return hypervisor


class _EndedThreads:
    """A thread that Python has joined may still hold a lock of libvirt's; a fork would keep that for ever."""

    def __init__(self) -> None:
        #: Threads of libraries that do not end, by their ids.
        self._lasting: set[int] = set()

    def wait(self) -> None:
        """Wait until the threads that end have ended."""
        give_up = time.monotonic() + 20.0
        while ending := self._ending():
            if time.monotonic() >= give_up:
                self._lasting |= ending
                break
            time.sleep(0.0005)

    def _ending(self) -> set[int]:
        """Those that Python has forgotten. They have its name; those of gRPC, which stay, have their own."""
        known = self._lasting | {thread.native_id or 0 for thread in threading.enumerate()}
        name, found = Path("/proc/self/comm").read_text(), set()
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has ended
                if int(task.name) not in known and (task / "comm").read_text() == name:
                    found.add(int(task.name))
        return found


class LibvirtBackend(Backend):
    """A pool of the files in a directory. Always of one name, as it is part of handles: one at a time."""

    provider_class = LibvirtProvider

    def __init__(self, directory: Path) -> None:
        self.uri = shared_libvirtd().uri
        self.directory = directory / "pool"
        self.directory.mkdir()
        self._before_step: Callable[[], None] = lambda: None
        self._process = os.getpid()
        with self._connected() as connection:
            for pool in connection.listAllStoragePools():
                if pool.isActive():
                    pool.destroy()
                pool.undefine()
            connection.storagePoolDefineXML(
                f"<pool type='dir'><name>{POOL}</name><target><path>{self.directory}</path></target></pool>"
            ).create()

    def connect(self) -> LibvirtProvider:
        if os.getpid() != self._process:
            # Forked: the connections that came along are the parent's. One that is garbage would be closed
            # by this process, on a socket where only the parent hears the answer.
            gc.freeze()
        patience = _PATIENCE_OF_RACERS if self.races else _PATIENCE
        return LibvirtProvider(self._open, POOL, patience=patience)

    def _open(self) -> Watched:
        def after(name: str) -> None:
            if name == "resize":  # all of an expansion: let it be seen done, too
                self._before_step()

        return Watched(libvirt.open(self.uri), lambda _name: self._before_step(), after)

    def objects(self) -> list[str]:
        names = {path.name for path in self.directory.iterdir()}
        whole = {}
        for name in names:
            if name.endswith("~tags"):
                base = name.removesuffix("~tags")
                content = (self.directory / name).read_bytes()[65:]
                disk = f"{base}~{hashlib.sha256(content).hexdigest()[:MARK_CHARACTERS]}.raw"
                if disk in names:
                    whole[base] = {name, disk, f"{base}~note"}
        return sorted([*whole, *names.difference(*whole.values())])

    def disk(self, handle: str) -> Path:
        """Where the object's bytes are."""
        (path,) = self.directory.glob(f"{handle.partition('@')[0]}~*.raw")
        return path

    @contextmanager
    def attached(self, handle: str) -> Iterator[None]:
        with running_with(self.uri, self.disk(handle)):
            yield

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        with self._connected() as connection:
            pool = connection.storagePoolLookupByName(POOL)
            pool.destroy()
            try:
                yield
            finally:
                pool.create()

    @contextmanager
    def watched(self, before_step: Callable[[], None]) -> Iterator[None]:
        self._before_step = before_step
        try:
            yield
        finally:
            self._before_step = lambda: None

    @contextmanager
    def _connected(self) -> Iterator[libvirt.virConnect]:
        connection = libvirt.open(self.uri)
        try:
            yield connection
        finally:
            connection.close()


@contextmanager
def running_with(uri: str, disk: Path) -> Iterator[libvirt.virDomain]:
    """A virtual machine that has the disk; it is paused before its first instruction."""
    domain = libvirt.open(uri).createXML(
        f"""
<domain type='qemu'>
  <name>podvm-holder-{next(_numbers)}</name>
  <memory unit='MiB'>16</memory>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/>
      <source file={quoteattr(str(disk))}/>
      <target dev='vdb' bus='virtio'/>
    </disk>
    <memballoon model='none'/>
  </devices>
</domain>
""",
        libvirt.VIR_DOMAIN_START_PAUSED,
    )
    try:
        yield domain
    finally:
        domain.destroy()
