"""A PodVM as the worker sees it: cloud-api-adaptor's socket for its pod, and an agent that answers there.

Real frames on a real Unix socket. It is strict about what it is asked, and takes no growth for granted: a
file system is never larger than the disk below it.
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from proto import agent_pb2, ttrpc_pb2
from tests.peers.ttrpc_raw import REQUEST, RawFrame, read_frame, response, scripted_server

HEADER_AREA = 4 << 20
_BY_DISK = "/run/cloud-volumes/by-disk/"

Reply = tuple[int, str, bytes]
"""Status code, message and payload."""


@dataclass
class PodVm:
    """The agent in one PodVM.

    Attributes:
        disk_size: the size in bytes of an attached disk by its id, as the VM sees it now.
        mounted: by disk id, the size in bytes that the volume's file system fills; how large the disk was.
        figures: whether the policy lets the host know usage.
        override: by method, what is answered in place of the truth.
    """

    disk_size: Callable[[str], int]
    mounted: dict[str, int] = field(default_factory=dict)
    figures: bool = True
    override: dict[str, Reply] = field(default_factory=dict)
    calls: list[tuple[str, str, int]] = field(default_factory=list)
    """Method, disk id (the path, if it names none) and size asked for."""

    def mount(self, disk_id: str) -> None:
        """A container with the volume starts: the file system fills the disk."""
        self.mounted[disk_id] = self.disk_size(disk_id)

    @contextmanager
    def serving(self, pods_root: Path, sandbox_id: str) -> Iterator[Path]:
        """Run behind ``<pods_root>/<sandbox_id>/agent.ttrpc``."""
        folder = pods_root / sandbox_id
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "agent.ttrpc"
        try:
            with scripted_server(path, self._serve):
                yield path
        finally:
            path.unlink(missing_ok=True)
            folder.rmdir()

    def _serve(self, connection: socket.socket) -> None:
        while True:
            asked = read_frame(connection)
            code, message, payload = self._answer(asked)
            connection.sendall(response(asked.stream_id, payload, code, message))

    def _answer(self, asked: RawFrame) -> Reply:
        assert (asked.type, asked.flags, asked.stream_id % 2) == (REQUEST, 0, 1)
        request = ttrpc_pb2.Request.FromString(asked.data)
        assert request.service == "grpc.AgentService"
        assert request.timeout_nano > 0, "the guest would not know when its caller gives up"
        handlers: Mapping[str, Callable[[bytes], Reply]] = {
            "GetVolumeStats": self._stats,
            "ResizeVolume": self._resize,
        }
        reply = handlers[request.method](request.payload)
        return self.override.get(request.method, reply)

    def _stats(self, payload: bytes) -> Reply:
        disk = self._disk(
            "GetVolumeStats", agent_pb2.VolumeStatsRequest.FromString(payload).volume_guest_path
        )
        if disk not in self.mounted:
            return 5, "[volume-not-mounted] no container of this VM has it", b""
        stats = agent_pb2.VolumeStatsResponse()
        stats.volume_condition.message = "mounted"
        if self.figures:
            total = self.mounted[disk] - HEADER_AREA
            used = total // 4
            stats.usage.add(
                total=total, used=used, available=total - used - 4096, unit=agent_pb2.VolumeUsage.BYTES
            )
            stats.usage.add(total=1000, used=11, available=989, unit=agent_pb2.VolumeUsage.INODES)
        return 0, "", stats.SerializeToString()

    def _resize(self, payload: bytes) -> Reply:
        request = agent_pb2.ResizeVolumeRequest.FromString(payload)
        disk = self._disk("ResizeVolume", request.volume_guest_path, request.size)
        if disk not in self.mounted:
            return 5, "[volume-not-mounted] no container of this VM has it", b""
        if "ResizeVolume" not in self.override:
            if self.disk_size(disk) < request.size:
                return 14, "[disk-not-grown] the cloud may need a moment", b""
            self.mount(disk)
        return 0, "", b""

    def _disk(self, method: str, path: str, size: int = 0) -> str:
        assert path.startswith(_BY_DISK)
        disk = base64.b64decode(path.removeprefix(_BY_DISK), altchars=b"-_", validate=True).decode()
        self.calls.append((method, disk, size))
        return disk
