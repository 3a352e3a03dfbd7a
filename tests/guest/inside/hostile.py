"""A disk that changes under the agent, at the moment that hurts most."""

from __future__ import annotations

from agent.annotation import CloudVolume
from agent.block_device import DirectDevice
from agent.cdh import DataHubClient
from agent.clock import SystemClock
from agent.commands import SystemRunner
from agent.devices import DeviceFinder
from agent.disk_format import REDO_OFFSET
from agent.policy import DEFAULT_POLICY
from agent.volumes import Volumes, VolumesFailed


def _volume(disk_id: str, key_id: str) -> CloudVolume:
    return CloudVolume(0, "/data", "ext4", None, disk_id, None, "luks2", key_id)


def mount_with_header_swapped_before_open(disk_id: str, key_id: str, image: str) -> None:
    """Mount; when the agent has read and checked the header, the disk gets another one."""
    clock = SystemClock()
    finder = DeviceFinder(clock)
    volume = _volume(disk_id, key_id)
    forged = bytes.fromhex(image)

    class SwappingHub(DataHubClient):
        def open_encrypted(self, *, device_path: str, key_uri: str, mapper_name: str, link_path: str) -> None:
            with DirectDevice(finder.find(volume).path, writable=True, exclusive=False) as disk:
                disk.write(0, forged)
                disk.write(REDO_OFFSET, forged)
                disk.flush()
            super().open_encrypted(
                device_path=device_path, key_uri=key_uri, mapper_name=mapper_name, link_path=link_path
            )

    Volumes(
        hub=SwappingHub(),
        runner=SystemRunner(),
        clock=clock,
        finder=finder,
        open_device=DirectDevice,
    ).mount([volume], DEFAULT_POLICY)


def mount_while_data_arrives(disk_id: str, key_id: str, source_id: str) -> str:
    """Mount a disk that reads all zero at first, and shows its data before the third look; the error."""
    finder = DeviceFinder(SystemClock())
    target = finder.find(_volume(disk_id, key_id))
    source = finder.find(_volume(source_id, key_id))

    class ArrivingClock(SystemClock):
        looks = 0

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if seconds > 1:
                self.looks += 1
            if self.looks == 2:
                with (
                    DirectDevice(source.path, writable=False, exclusive=False) as origin,
                    DirectDevice(target.path, writable=True, exclusive=False) as disk,
                ):
                    for offset in range(0, origin.size, 1 << 20):
                        disk.write(offset, origin.read(offset, 1 << 20))
                    disk.flush()

    volumes = Volumes(
        hub=DataHubClient(),
        runner=SystemRunner(),
        clock=ArrivingClock(),
        finder=finder,
        open_device=DirectDevice,
    )
    try:
        volumes.mount([_volume(disk_id, key_id)], DEFAULT_POLICY)
    except VolumesFailed as failed:
        return str(failed)
    raise AssertionError("the disk was taken for a new one")
