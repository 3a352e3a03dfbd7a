"""libvirt's objects, as far as the provider uses them, on a :class:`Host`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from xml.etree import ElementTree

import libvirt

from tests.fakes.libvirt_host.host import BLOCK_BYTES, File, Host, PoolState, Wire, failure, lost

_Result = TypeVar("_Result")
_AT_HOLE = -3


def _nothing() -> None:
    """A call without a middle."""


class FakeConnection:
    """``virConnect``."""

    def __init__(self, host: Host, wire: Wire) -> None:
        self._host = host
        self.wire = wire
        self._is_alive = True

    def call(self, work: Callable[[], _Result], half: Callable[[], None] = _nothing) -> _Result:
        """Do the work of one call, with the fault that is due; ``half``: what one in its middle leaves."""
        if not self._is_alive:
            raise lost()
        self.wire.begin()
        try:
            if self.wire.strikes("before"):
                self.wire.strike()
            if self.wire.strikes("during"):
                half()
                self.wire.strike()
            result = work()
            if self.wire.strikes("after"):
                self.wire.strike()
        finally:
            self._is_alive = not self.wire.has_struck
        return result

    def isAlive(self) -> int:
        return int(self._is_alive)

    def close(self) -> int:
        return 0

    def storagePoolLookupByName(self, name: str) -> FakePool:
        def look() -> FakePool:
            if name not in self._host.pools:
                raise failure(libvirt.VIR_ERR_NO_STORAGE_POOL)
            return FakePool(self, self._host.pools[name])

        return self.call(look)

    def listAllStoragePools(self, flags: int = 0) -> list[FakePool]:
        assert flags == 0
        return self.call(lambda: [FakePool(self, pool) for pool in self._host.pools.values()])

    def listAllDomains(self, flags: int) -> list[Any]:
        assert flags == libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
        return self.call(list)

    def newStream(self, flags: int) -> FakeStream:
        assert flags == 0
        return FakeStream(self)


class FakePool:
    """``virStoragePool``."""

    def __init__(self, connection: FakeConnection, state: PoolState) -> None:
        self._connection = connection
        self._state = state

    def name(self) -> str:
        return self._state.name

    def isActive(self) -> int:
        return self._connection.call(lambda: int(self._state.is_active))

    def XMLDesc(self) -> str:
        return self._connection.call(
            lambda: f"<pool type='dir'><target><path>{self._state.directory}</path></target></pool>"
        )

    def info(self) -> list[int]:
        return self._connection.call(lambda: [2, self._state.total_bytes, 0, self._state.total_bytes])

    def refresh(self, flags: int) -> int:
        def refresh() -> int:
            self._state.require_active()
            self._state.known = set(self._state.files)
            return 0

        assert flags == 0
        return self._connection.call(refresh)

    def listVolumes(self) -> list[str]:
        def names() -> list[str]:
            self._state.require_active()
            return sorted(self._state.known)

        return self._connection.call(names)

    def storageVolLookupByName(self, name: str) -> FakeVolume:
        def look() -> FakeVolume:
            self._state.require_active()
            if name not in self._state.known:
                raise failure(libvirt.VIR_ERR_NO_STORAGE_VOL)
            return FakeVolume(self._connection, self._state, name)

        return self._connection.call(look)

    def createXML(self, document: str, flags: int) -> FakeVolume:
        assert flags == 0
        name, size = _wanted(document)

        def create() -> FakeVolume:
            self._state.check_new(name, copied=False)
            self._state.add(name, File(size))
            return FakeVolume(self._connection, self._state, name)

        def create_empty() -> None:
            self._state.check_new(name, copied=False)
            self._state.add(name, File(0))

        return self._connection.call(create, create_empty)

    def createXMLFrom(self, document: str, source: FakeVolume, flags: int) -> FakeVolume:
        name, size = _wanted(document)

        def copy() -> FakeVolume:
            if flags & libvirt.VIR_STORAGE_VOL_CREATE_REFLINK:
                raise failure(libvirt.VIR_ERR_SYSTEM_ERROR, 95)
            self._state.check_new(name, copied=True)
            original = source.file()
            # A copy asked smaller gets the source's size, and no word of it.
            self._state.add(name, File(max(size, original.size), dict(original.blocks)))
            return FakeVolume(self._connection, self._state, name)

        def copy_half() -> None:
            if flags == 0:
                self._state.check_new(name, copied=True)
                self._state.add(name, File(max(size, source.file().size)))

        return self._connection.call(copy, copy_half)


class FakeVolume:
    """``virStorageVol``."""

    def __init__(self, connection: FakeConnection, pool: PoolState, name: str) -> None:
        self._connection = connection
        self._pool = pool
        self._name = name

    def file(self) -> File:
        return self._pool.file(self._name)

    def name(self) -> str:
        return self._name

    def path(self) -> str:
        def look() -> str:
            self.file()
            return f"{self._pool.directory}/{self._name}"

        return self._connection.call(look)

    def XMLDesc(self) -> str:
        return self._connection.call(
            lambda: "<volume><target><format type='raw'/></target></volume>" if self.file() else ""
        )

    def info(self) -> list[int]:
        return self._connection.call(lambda: [0, self.file().size, len(self.file().blocks) * BLOCK_BYTES])

    def infoFlags(self, flags: int) -> list[int]:
        assert flags == libvirt.VIR_STORAGE_VOL_GET_PHYSICAL
        return self._connection.call(lambda: [0, self.file().size, self.file().size])

    def delete(self, flags: int) -> int:
        def delete() -> int:
            if self._name not in self._pool.known:
                raise failure(libvirt.VIR_ERR_NO_STORAGE_VOL)
            self._pool.known.discard(self._name)
            self._pool.files.pop(self._name, None)
            return 0

        assert flags == 0
        return self._connection.call(delete)

    def resize(self, size: int, flags: int) -> int:
        def resize() -> int:
            if size < self.file().size:
                raise failure(libvirt.VIR_ERR_INVALID_ARG)
            self.file().size = size
            return 0

        assert flags == 0
        return self._connection.call(resize)

    def upload(self, stream: FakeStream, offset: int, length: int, flags: int) -> int:
        assert offset == 0
        assert flags in (0, libvirt.VIR_STORAGE_VOL_UPLOAD_SPARSE_STREAM)
        del length
        return self._connection.call(lambda: stream.open(self.file()))

    def download(self, stream: FakeStream, offset: int, length: int, flags: int) -> int:
        assert offset == 0
        assert flags in (0, libvirt.VIR_STORAGE_VOL_DOWNLOAD_SPARSE_STREAM)
        del length
        return self._connection.call(lambda: stream.open(self.file()))


class FakeStream:
    """``virStream``: what is sent is in the file at once."""

    def __init__(self, connection: FakeConnection) -> None:
        self._connection = connection
        self._file: File | None = None
        self._position = 0

    def open(self, file: File) -> int:
        self._file = file
        return 0

    def send(self, data: bytes) -> int:
        # As on a wire, less than all may be taken.
        taken = data[: min(len(data), BLOCK_BYTES - self._position % BLOCK_BYTES)]

        def send() -> int:
            self._opened().write(self._position, taken)
            self._position += len(taken)
            return len(taken)

        def send_half() -> None:
            self._opened().write(self._position, taken[: len(taken) // 2])

        return self._connection.call(send, send_half)

    def sendHole(self, length: int, flags: int) -> int:
        def skip() -> int:
            self._position += length
            return 0

        assert flags == 0
        return self._connection.call(skip)

    def recv(self, count: int) -> bytes:
        def receive() -> bytes:
            data = self._opened().read()[self._position : self._position + count]
            self._position += len(data)
            return data

        return self._connection.call(receive)

    def recvFlags(self, count: int, flags: int) -> bytes | int:
        def receive() -> bytes | int:
            file = self._opened()
            if self._position >= file.size:
                return b""
            block = file.blocks.get(self._position // BLOCK_BYTES)
            if block is None:
                return _AT_HOLE
            data = block[self._position % BLOCK_BYTES :][:count]
            self._position += len(data)
            return data

        assert flags == libvirt.VIR_STREAM_RECV_STOP_AT_HOLE
        return self._connection.call(receive)

    def recvHole(self, flags: int) -> int:
        def skip() -> int:
            file = self._opened()
            end = self._position
            while end < file.size and end // BLOCK_BYTES not in file.blocks:
                end += BLOCK_BYTES
            length = min(end, file.size) - self._position
            self._position += length
            return length

        assert flags == 0
        return self._connection.call(skip)

    def finish(self) -> int:
        return self._connection.call(lambda: 0)

    def abort(self) -> int:
        return self._connection.call(lambda: 0)

    def _opened(self) -> File:
        assert self._file is not None, "a stream is used before it was given to a volume"
        return self._file


def _wanted(document: str) -> tuple[str, int]:
    """Name and capacity of the volume that a document describes."""
    volume = ElementTree.fromstring(document)  # noqa: S314 - the provider's own
    capacity = volume.find("capacity")
    assert capacity is not None
    assert capacity.get("unit") == "bytes"
    format_ = volume.find("target/format")
    assert format_ is not None
    assert format_.get("type") == "raw"
    return volume.findtext("name", ""), int(capacity.text or "")
