"""What the host has: files in the directory of each pool, and libvirt's own idea of them."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

import libvirt

from tests.fakes.crash import Crash

_STORAGE = 18
_RPC = 7
BLOCK_BYTES = 64 * 1024


def failure(code: int, system_error: int = -1, domain: int = _STORAGE) -> libvirt.libvirtError:
    """An error with libvirt's number, and nothing in its words that tells what it is."""
    error = libvirt.libvirtError("the fake refuses")
    error.err = (code, domain, "the fake refuses", 2, None, None, None, system_error, -1)
    return error


def lost() -> libvirt.libvirtError:
    """What a call ends with when the connection breaks."""
    return failure(libvirt.VIR_ERR_INTERNAL_ERROR, domain=_RPC)


@dataclass
class File:
    """A sparse file: blocks that were written, by number."""

    size: int
    blocks: dict[int, bytes] = field(default_factory=dict)

    def write(self, offset: int, data: bytes) -> None:
        """Data that lies within one block."""
        number, start = divmod(offset, BLOCK_BYTES)
        assert start + len(data) <= BLOCK_BYTES
        old = self.blocks.get(number, bytes(BLOCK_BYTES))
        self.blocks[number] = old[:start] + data + old[start + len(data) :]
        self.size = max(self.size, offset + len(data))

    def read(self) -> bytes:
        """All of a small file."""
        assert self.size <= 1024 * 1024
        data = b"".join(
            self.blocks.get(number, bytes(BLOCK_BYTES)) for number in range(self.size // BLOCK_BYTES + 1)
        )
        return data[: self.size]


@dataclass
class PoolState:
    """A pool: what is in the directory, and which of it libvirt knows."""

    name: str
    directory: str
    files: dict[str, File] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    is_active: bool = True
    total_bytes: int = 1 << 40

    def file(self, name: str) -> File:
        """The file behind a storage volume that libvirt knows.

        Raises:
            libvirt.libvirtError: libvirt knows none, or its file is gone.
        """
        if name not in self.known:
            raise failure(libvirt.VIR_ERR_NO_STORAGE_VOL)
        if name not in self.files:
            raise failure(libvirt.VIR_ERR_SYSTEM_ERROR, errno.ENOENT)
        return self.files[name]

    def require_active(self) -> None:
        """Raises libvirt.libvirtError unless the pool is active."""
        if not self.is_active:
            raise failure(libvirt.VIR_ERR_OPERATION_INVALID)

    def check_new(self, name: str, *, copied: bool) -> None:
        """Raises libvirt.libvirtError if there is such a storage volume, or a file in its place.

        libvirt's number for the first depends on how the volume was to be made.
        """
        self.require_active()
        if name in self.known:
            raise failure(libvirt.VIR_ERR_INTERNAL_ERROR if copied else libvirt.VIR_ERR_STORAGE_VOL_EXIST)
        if name in self.files:
            raise failure(libvirt.VIR_ERR_OPERATION_INVALID)

    def add(self, name: str, file: File) -> None:
        """A new storage volume."""
        self.files[name] = file
        self.known.add(name)


@dataclass(frozen=True)
class Fault:
    """What befalls the call of that number (from 0), and all that follow on the same connection.

    ``when``: before it is done, half-way through (where it has a middle), or after it was done but before the
    answer. ``kills``: the process is gone; else the connection is.
    """

    call: int
    when: str
    kills: bool


class Host:
    """One libvirt host; its connections come and go."""

    def __init__(self, *pools: PoolState) -> None:
        self.pools = {pool.name: pool for pool in pools}


class Wire:
    """The faults of one process's connections. One process: what is dead stays dead."""

    def __init__(self, fault: Fault | None = None) -> None:
        self._fault = fault
        self._calls = 0
        self.has_struck = False

    def strikes(self, when: str) -> bool:
        """Whether the fault is due now, at that moment of the current call."""
        return self._fault is not None and (self._fault.call, self._fault.when) == (self._calls - 1, when)

    def begin(self) -> None:
        """A call arrives."""
        if self.has_struck and self._fault is not None and self._fault.kills:
            raise Crash
        self._calls += 1

    def strike(self) -> None:
        """Raises what the fault is."""
        assert self._fault is not None
        self.has_struck = True
        if self._fault.kills:
            raise Crash
        raise lost()
