"""What histories of the libvirt provider run on: a host in memory with every fault, and a real libvirtd."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import libvirt

from providers.libvirt import LibvirtProvider
from tests.contract.libvirt_backend import POOL, LibvirtBackend
from tests.fakes.crash import Crash
from tests.fakes.libvirt_host.connection import FakeConnection
from tests.fakes.libvirt_host.host import BLOCK_BYTES, Fault, File, Host, PoolState, Wire, lost
from tests.histories.model import Model
from tests.histories.rig import Rig
from tests.lab.watched_libvirt import Watched

MARK_BYTES = 16
MIB = 1 << 20


class LibvirtHost(Rig[Fault]):
    """A libvirt host with one empty pool."""

    unit_bytes = MIB

    @abstractmethod
    def names(self) -> set[str]:
        """Every storage volume that there is, leftovers included."""

    def placed(self, name: str) -> str:
        return f"{name}@{POOL}"

    def bare(self, handle: str) -> str:
        assert handle.endswith(f"@{POOL}")
        return handle.removesuffix(f"@{POOL}")

    def disk(self, name: str) -> str:
        """The storage volume with the bytes of a volume or snapshot."""
        (disk,) = (one for one in self.names() if one.startswith(f"{name}~") and one.endswith(".raw"))
        return disk

    def check_end(self, model: Model) -> None:
        assert sorted(name.partition("~")[0] for name in self.names()) == sorted(
            2 * [*model.volumes, *model.snapshots]
        )


class FakeHost(LibvirtHost):
    """In memory; faults come before, during and after any call, and take the process or the connection."""

    def __init__(self) -> None:
        self._pool = PoolState(POOL, "/pool")
        self._host = Host(self._pool)
        self._wire = Wire()

    def connected(self, fault: Fault | None) -> AbstractContextManager[LibvirtProvider]:
        wire = self._wire = Wire(fault)
        return nullcontext(LibvirtProvider(lambda: FakeConnection(self._host, wire), POOL, patience=0.0))

    def has_struck(self) -> bool:
        return self._wire.has_struck

    def names(self) -> set[str]:
        return set(self._pool.files)

    def marks(self, name: str) -> dict[int, int]:
        file = self._pool.files[self.disk(name)]
        blocks = {number: block for number, block in file.blocks.items() if any(block)}
        assert all(not any(block[MARK_BYTES:]) for block in blocks.values())
        return {number: int.from_bytes(block[:MARK_BYTES], "big") for number, block in blocks.items()}

    def mark(self, name: str, block: int, mark: int) -> None:
        file: File = self._pool.files[self.disk(name)]
        file.write(block * BLOCK_BYTES, mark.to_bytes(MARK_BYTES, "big"))


class RealHost(LibvirtHost):
    """A real libvirtd; faults come before and after the calls that change something."""

    def __init__(self, directory: Path) -> None:
        self._backend = LibvirtBackend(directory)
        self._directory = self._backend.directory
        self._struck = False

    def connected(self, fault: Fault | None) -> AbstractContextManager[LibvirtProvider]:
        self._struck = False
        calls = itertools.count()
        number = -1

        def before(_name: str) -> None:
            nonlocal number
            number = next(calls)
            strike("before")

        def strike(when: str) -> None:
            if fault is None:
                return
            if self._struck and fault.kills:
                raise Crash
            if (fault.call, fault.when) == (number, when):
                self._struck = True
                if fault.kills:
                    raise Crash
                raise lost()

        def connect() -> Any:
            return Watched(libvirt.open(self._backend.uri), before, lambda _name: strike("after"))

        return nullcontext(LibvirtProvider(connect, POOL, patience=0.0))

    def has_struck(self) -> bool:
        return self._struck

    def names(self) -> set[str]:
        return {path.name for path in self._directory.iterdir()}

    def marks(self, name: str) -> dict[int, int]:
        data = (self._directory / self.disk(name)).read_bytes()
        blocks = {
            start // BLOCK_BYTES: data[start : start + BLOCK_BYTES]
            for start in range(0, len(data), BLOCK_BYTES)
        }
        assert all(not any(block[MARK_BYTES:]) for block in blocks.values())
        return {
            number: int.from_bytes(block[:MARK_BYTES], "big")
            for number, block in blocks.items()
            if any(block)
        }

    def mark(self, name: str, block: int, mark: int) -> None:
        with (self._directory / self.disk(name)).open("r+b") as file:
            file.seek(block * BLOCK_BYTES)
            file.write(mark.to_bytes(MARK_BYTES, "big"))
