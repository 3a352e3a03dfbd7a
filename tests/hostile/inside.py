"""Runs in the guest: clients that break the rules of ttrpc, and a disk that grows under a volume."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.annotation import CloudVolume
from agent.block_device import DirectDevice
from agent.cdh import DataHubClient
from agent.clock import SystemClock
from agent.commands import SystemRunner
from agent.devices import DeviceFinder, Disk
from agent.growth import Growth
from agent.policy import DEFAULT_POLICY
from agent.volumes import Volumes
from proto import ttrpc_pb2
from tests.guest.inside.kata import call
from tests.peers.kata import SERVICE
from tests.peers.ttrpc_raw import REQUEST, RawFrame, connected, frame, read_frame, request

_MAX_DATA = 4 << 20
_STREAMS = 60


def _answer(got: RawFrame) -> list[Any]:
    """Stream id, status code and payload."""
    return [got.stream_id, got.response.status.code, got.response.payload.hex()]


def _noise(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.sendall(b"\xff" * 4000)


def malformed(socket_path: str, create: str, other: dict[str, Any]) -> dict[str, Any]:
    """A request that is no protobuf, a truncated CreateContainer, flags nobody knows; at last, noise."""
    truncated = ttrpc_pb2.Request(
        service=SERVICE, method="CreateContainer", payload=bytes.fromhex(create)[:-1]
    )
    with connected(Path(socket_path), 60.0) as connection:
        connection.sendall(frame(1, REQUEST, b"\xff\xff\xff"))
        connection.sendall(frame(3, REQUEST, truncated.SerializeToString()))
        connection.sendall(frame(5, REQUEST, truncated.SerializeToString(), flags=1))
        answers = [_answer(read_frame(connection)) for _ in range(3)]
        _noise(connection)
        return {"answers": sorted(answers), "other": call(**other)}


def oversized(socket_path: str, create: str, other: dict[str, Any]) -> dict[str, Any]:
    """One frame just too large, one whose header promises 4 GiB; both for CreateContainer."""
    payload = bytes.fromhex(create) + bytes(_MAX_DATA)
    with connected(Path(socket_path), 60.0) as connection:
        connection.sendall(request(1, "CreateContainer", payload, service=SERVICE))
        answers = [_answer(read_frame(connection))]
        with connected(Path(socket_path), 60.0) as second:
            second.sendall(frame(1, REQUEST, bytes(1000), length=(1 << 32) - 1))
            return {"answers": answers, "other": call(**other)}


def interleaved(socket_path: str, create: str, other: dict[str, Any]) -> dict[str, Any]:
    """Many streams of two connections at once, a refused CreateContainer among them, an id used twice."""
    with connected(Path(socket_path), 60.0) as first, connected(Path(socket_path), 60.0) as second:
        for number in range(1, 2 * _STREAMS, 2):
            method, payload = ("StartContainer", b"%d" % number)
            if number == 1:
                method, payload = "CreateContainer", bytes.fromhex(create)
            data = request(number, method, payload, service=SERVICE)
            for connection in (first, second):
                # The one's frame is complete only after the other's has begun.
                connection.sendall(data[:7])
            for connection in (first, second):
                connection.sendall(data[7:])
        answers = [
            sorted(_answer(read_frame(connection)) for _ in range(_STREAMS)) for connection in (first, second)
        ]
        first.sendall(request(3, "StartContainer", b"again", service=SERVICE))
        return {"answers": answers, "other": call(**other)}


def slow(socket_path: str, create: str, other: dict[str, Any]) -> dict[str, Any]:
    """One sends half a header and stops, one drips its CreateContainer, one never reads its answers."""
    data = request(1, "CreateContainer", bytes.fromhex(create), service=SERVICE)
    with (
        connected(Path(socket_path), 60.0) as stalled,
        connected(Path(socket_path), 60.0) as dripping,
        connected(Path(socket_path), 60.0) as deaf,
    ):
        stalled.sendall(data[:5])
        for number in range(1, 200, 2):
            deaf.sendall(request(number, "StartContainer", bytes(10_000), service=SERVICE))
        for byte in data[:20]:
            dripping.sendall(bytes([byte]))
            time.sleep(0.01)
        answered = call(**other)
        dripping.sendall(data[20:])
        return {"answers": [_answer(read_frame(dripping))], "other": answered}


class _GrowingDisk(DeviceFinder):
    """Finds a linear mapping over the real disk, which can grow while it is in use, as the disk can't."""

    name = "growing"

    def resize(self, device: str, size: int) -> None:
        """Make it ``size`` bytes of ``device``."""
        table = f"0 {size // 512} linear {device} 0"
        if Path("/dev/mapper", self.name).exists():
            script = f"dmsetup reload {self.name} --table '{table}'; dmsetup resume {self.name}"
        else:
            script = f"dmsetup create {self.name} --table '{table}'"
        subprocess.run(["sh", "-ec", script], check=True)

    def find(self, volume: CloudVolume) -> Disk:
        assert volume.name == "vol-0"
        path = Path("/dev/mapper", self.name)
        number = path.stat().st_rdev
        with path.open("rb") as file:
            return Disk(path, f"{os.major(number)}:{os.minor(number)}", file.seek(0, os.SEEK_END))


def _growing(key_id: str) -> tuple[_GrowingDisk, Volumes, Growth, CloudVolume]:
    clock = SystemClock()
    finder = _GrowingDisk(clock)
    parts: dict[str, Any] = {
        "hub": DataHubClient(),
        "runner": SystemRunner(),
        "clock": clock,
        "finder": finder,
        "open_device": DirectDevice,
    }
    volume = CloudVolume(0, "/data", "ext4", None, "disk", None, "luks2", key_id)
    return finder, Volumes(**parts), Growth(**parts), volume


def mount_smaller(device: str, size: int, key_id: str) -> None:
    """Mount the first ``size`` bytes of a disk."""
    finder, volumes, _, volume = _growing(key_id)
    finder.resize(device, size)
    volumes.mount([volume], DEFAULT_POLICY)


def grow(device: str, size: int, key_id: str) -> None:
    """Let the disk grow, and the volume with it, while it is mounted."""
    finder, _, growth, volume = _growing(key_id)
    finder.resize(device, size)
    growth.grow(volume, size)


def unmount_grown(key_id: str) -> None:
    """Close both."""
    finder, volumes, _, volume = _growing(key_id)
    volumes.unmount([volume.name])
    subprocess.run(["dmsetup", "remove", finder.name], check=True)
