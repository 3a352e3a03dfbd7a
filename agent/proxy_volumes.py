"""GetVolumeStats and ResizeVolume for the volumes that this agent mounted; kata-agent knows nothing of them.

A volume is addressed by its disk, ``/run/cloud-volumes/by-disk/<url-safe base64 of the disk id>``, as the
node plugin knows it, or by the directory where it is mounted. All other paths go on to the upstream.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from agent.annotation import CloudVolume
from agent.container_mounts import normalized
from agent.errors import Refused
from agent.filesystem import mounted_at
from agent.holds import Holds
from agent.proxy import Forward, Takeover
from agent.proxy_calls import AGENT_SERVICE, Workers, read_message, status_of
from agent.ttrpc_frame import Code, TtrpcError
from proto import agent_pb2, ttrpc_pb2

MOUNT_ROOT: Final = "/run/cloud-volumes/"
BY_DISK: Final = "/run/cloud-volumes/by-disk/"


class GrowsVolumes(Protocol):
    """What is needed of ``agent.growth.Growth``."""

    def grow(self, volume: CloudVolume, wanted: int) -> None:
        """Let a mounted volume fill its disk of at least ``wanted`` bytes."""


class VolumeCalls:
    """Takes over the calls of the agent protocol that are about volumes."""

    def __init__(self, holds: Holds, growth: GrowsVolumes, workers: Workers) -> None:
        self._holds = holds
        self._growth = growth
        self._workers = workers

    def takeovers(self) -> Mapping[tuple[str, str], Takeover]:
        """The calls to give to the proxy."""
        return {
            (AGENT_SERVICE, "GetVolumeStats"): self.stats,
            (AGENT_SERVICE, "ResizeVolume"): self.resize,
        }

    async def stats(self, request: ttrpc_pb2.Request, forward: Forward) -> ttrpc_pb2.Response:
        """GetVolumeStats: bytes and inodes as statfs gives them, unless the policy keeps them back."""
        call = read_message(agent_pb2.VolumeStatsRequest, request.payload)
        volume = self._find(call.volume_guest_path)
        if volume is None:
            if not self._holds.all_show_usage():
                # By a path that is not known here, such as /proc/42/root/data, the volume could be meant.
                raise status_of(
                    Refused(
                        "usage-withheld",
                        "the policy keeps from the host how full volumes are; only volumes that containers "
                        "have are answered for",
                    )
                )
            return await forward(request)
        figures = self._holds.shows_usage(volume.name)
        stats = await self._workers.run(partial(_stats, Path(volume.mount_directory), figures=figures))
        return ttrpc_pb2.Response(payload=stats.SerializeToString())

    async def resize(self, request: ttrpc_pb2.Request, forward: Forward) -> ttrpc_pb2.Response:
        """ResizeVolume: answered when the filesystem has grown, and not before."""
        call = read_message(agent_pb2.ResizeVolumeRequest, request.payload)
        volume = self._find(call.volume_guest_path)
        if volume is None:
            return await forward(request)
        await self._workers.run(partial(self._grow, volume, call.size))
        return ttrpc_pb2.Response()

    def _grow(self, volume: CloudVolume, size: int) -> None:
        with self._holds.working_on([volume.name]):
            self._growth.grow(volume, size)

    def _find(self, path: str) -> CloudVolume | None:
        """The volume that ``path`` stands for; None where the upstream is to decide.

        Raises:
            TtrpcError: NOT_FOUND: it would be one of ours, but no container has it.
        """
        path = normalized(path)
        if not f"{path}/".startswith(MOUNT_ROOT):
            return None
        for volume in self._holds.volumes():
            encoded = base64.urlsafe_b64encode(volume.disk_id.encode()).decode().rstrip("=")
            if path == volume.mount_directory or path.rstrip("=") == BY_DISK + encoded:
                return volume
        raise TtrpcError(
            Code.NOT_FOUND, f"[volume-not-mounted] no container of this VM has a volume at {path[:300]!a}"
        )


def _stats(directory: Path, *, figures: bool) -> agent_pb2.VolumeStatsResponse:
    stats = agent_pb2.VolumeStatsResponse()
    if mounted_at(directory) is None:
        # The directory itself would answer with the guest's own disk.
        stats.volume_condition.CopyFrom(_condition(f"nothing is mounted at {directory}"))
        return stats
    try:
        found = os.statvfs(directory)
    except OSError as error:
        stats.volume_condition.CopyFrom(_condition(f"the filesystem does not answer: {error.strerror}"))
        return stats
    stats.volume_condition.CopyFrom(agent_pb2.VolumeCondition(abnormal=False, message="mounted"))
    if not figures:
        return stats
    stats.usage.add(
        available=found.f_bavail * found.f_frsize,
        total=found.f_blocks * found.f_frsize,
        used=(found.f_blocks - found.f_bfree) * found.f_frsize,
        unit=agent_pb2.VolumeUsage.BYTES,
    )
    stats.usage.add(
        available=found.f_favail,
        total=found.f_files,
        used=found.f_files - found.f_ffree,
        unit=agent_pb2.VolumeUsage.INODES,
    )
    return stats


def _condition(problem: str) -> agent_pb2.VolumeCondition:
    return agent_pb2.VolumeCondition(abnormal=True, message=problem)
