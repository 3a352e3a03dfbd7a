"""What histories of the libvirt provider run on: a host in memory with every fault, and a real libvirtd."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from pathlib import Path

import libvirt

from providers.libvirt import LibvirtProvider
from tests.contract.libvirt_backend import POOL, LibvirtBackend
from tests.fakes.libvirt_host.connection import FakeConnection
from tests.fakes.libvirt_host.host import BLOCK_BYTES, Crash, Fault, File, Host, PoolState, Wire, lost
from tests.lab.watched_libvirt import Watched

MARK_BYTES = 16


class LibvirtHost(ABC):
    """A libvirt host with one empty pool, seen from behind the provider's back."""

    @abstractmethod
    def provider(self, fault: Fault | None) -> LibvirtProvider:
        """A provider that knows nothing of earlier ones; ``fault`` befalls it."""

    @abstractmethod
    def has_struck(self) -> bool:
        """Whether the fault of the last provider has come."""

    @abstractmethod
    def names(self) -> set[str]:
        """Every storage volume that there is, leftovers included."""

    @abstractmethod
    def marks(self, name: str) -> dict[int, int]:
        """The marks on a disk, by block."""

    @abstractmethod
    def mark(self, name: str, block: int, mark: int) -> None:
        """Write as the guest would."""


class FakeHost(LibvirtHost):
    """In memory; faults come before, during and after any call, and take the process or the connection."""

    def __init__(self) -> None:
        self._pool = PoolState(POOL, "/pool")
        self._host = Host(self._pool)
        self._wire = Wire()

    def provider(self, fault: Fault | None) -> LibvirtProvider:
        wire = self._wire = Wire(fault)
        return LibvirtProvider(lambda: FakeConnection(self._host, wire), POOL, patience=0.0)

    def has_struck(self) -> bool:
        return self._wire.has_struck

    def names(self) -> set[str]:
        return set(self._pool.files)

    def marks(self, name: str) -> dict[int, int]:
        file = self._pool.files[name]
        blocks = {number: block for number, block in file.blocks.items() if any(block)}
        assert all(not any(block[MARK_BYTES:]) for block in blocks.values())
        return {number: int.from_bytes(block[:MARK_BYTES], "big") for number, block in blocks.items()}

    def mark(self, name: str, block: int, mark: int) -> None:
        file: File = self._pool.files[name]
        file.write(block * BLOCK_BYTES, mark.to_bytes(MARK_BYTES, "big"))


class RealHost(LibvirtHost):
    """A real libvirtd; faults come before and after the calls that change something."""

    def __init__(self, directory: Path) -> None:
        self._backend = LibvirtBackend(directory)
        self._directory = self._backend.directory
        self._struck = False

    def provider(self, fault: Fault | None) -> LibvirtProvider:
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

        return LibvirtProvider(
            lambda: Watched(libvirt.open(self._backend.uri), before, lambda _name: strike("after")),
            POOL,
            patience=0.0,
        )

    def has_struck(self) -> bool:
        return self._struck

    def names(self) -> set[str]:
        return {path.name for path in self._directory.iterdir()}

    def marks(self, name: str) -> dict[int, int]:
        data = (self._directory / name).read_bytes()
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
        with (self._directory / name).open("r+b") as file:
            file.seek(block * BLOCK_BYTES)
            file.write(mark.to_bytes(MARK_BYTES, "big"))
