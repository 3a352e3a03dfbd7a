"""Growing a volume while containers use it, after its disk grew.

From the bottom up: the shield's linear table, the crypt mapping, the filesystem, and at last the minimum
size in the record, from which on the host can't present a smaller disk. Each step looks at what is there, so
one that was cut short is finished by the next call.
"""

from __future__ import annotations

import os
from pathlib import Path

from agent import crypt_mapping
from agent.annotation import CloudVolume
from agent.block_device import BLOCK_BYTES
from agent.cdh import DataHub
from agent.clock import Clock
from agent.commands import Runner
from agent.device_mapper import DeviceMapper, Mapping, Target
from agent.devices import DeviceFinder, Disk
from agent.disk_format import RecordKey, State
from agent.errors import Refused, Unavailable
from agent.filesystem import Filesystems, mounted_at
from agent.header_area import HeaderArea
from agent.header_guard import GenuineHeader, judge, update_record
from agent.keys import fetch_key
from agent.shield import Shield, Shields
from agent.volume_lock import volume_lock
from agent.volumes import OpenDevice


class Growth:
    """Grows the volumes of this VM."""

    def __init__(
        self,
        *,
        hub: DataHub,
        runner: Runner,
        clock: Clock,
        finder: DeviceFinder,
        open_device: OpenDevice,
        sysfs: Path = Path("/sys"),
    ) -> None:
        self._hub = hub
        self._runner = runner
        self._clock = clock
        self._finder = finder
        self._open_device = open_device
        self._blocks = sysfs / "block"
        self._mapper = DeviceMapper(runner)
        self._shields = Shields(self._mapper)
        self._filesystems = Filesystems(runner)

    def grow(self, volume: CloudVolume, wanted: int) -> None:
        """Let a mounted volume fill its disk, which must have ``wanted`` bytes at least.

        Raises:
            Unavailable: it is not mounted (``volume-not-mounted``), this VM does not see the disk's new size
                yet (``disk-not-grown``), the key is not released (nothing changed), or a tool failed.
            Refused: what is mounted is not the volume, or not ours to grow.
        """
        with volume_lock(volume.name, self._clock):
            disk = self._rescan(volume)
            if disk.size < wanted // BLOCK_BYTES * BLOCK_BYTES:
                raise Unavailable(
                    "disk-not-grown",
                    f"the disk of {volume.name} has {disk.size} bytes in this VM, not the {wanted} that are "
                    "asked for; the cloud may need a moment",
                )
            mapping, shield = self._mounted(volume, disk)
            key = fetch_key(self._hub, volume.key_id)
            header = self._header(disk, key, shield)
            if shield.size < disk.size:
                self._shields.grow(volume.mapper_name, disk)
            self._grow_mapping(mapping, shield, disk, key)
            self._filesystems.grow(mapping.path, disk.size - shield.header.data_offset_bytes)
            if disk.size > header.record.minimum_size:
                # Not exclusive: the shield holds the disk.
                with self._open_device(
                    disk.path, writable=True, exclusive=False, number=disk.number
                ) as device:
                    update_record(device, RecordKey(key), header, minimum_size=disk.size)

    def _rescan(self, volume: CloudVolume) -> Disk:
        """The disk, after asking a SCSI one for its size (virtio and NVMe tell by themselves)."""
        disk = self._finder.find(volume)
        rescan = self._blocks / disk.path.name / "device/rescan"
        if not rescan.exists():
            return disk
        rescan.write_text("1")
        return self._finder.find(volume)

    def _mounted(self, volume: CloudVolume, disk: Disk) -> tuple[Mapping, Shield]:
        """The volume's mapping and shield, after verifying them as a mount would."""
        directory = Path(volume.mount_directory)
        mount = mounted_at(directory)
        mapping = self._mapper.find(volume.mapper_name)
        shield = self._shields.find(volume.mapper_name)
        if mount is None or mapping is None or shield is None:
            raise Unavailable(
                "volume-not-mounted", f"{volume.name} is not mounted, or not encrypted; it grows when mounted"
            )
        if mount.number != mapping.number or shield.disk_number != disk.number:
            raise Refused("foreign-mount", f"what is mounted at {directory} is not {volume.name}")
        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            raise Refused("volume-read-only", f"{volume.name} is mounted read-only and can't grow")
        if disk.size < shield.size:
            raise Refused(
                "device-too-small",
                f"the disk of {volume.name} has {disk.size} bytes, but had {shield.size} when it was mounted",
            )
        table = self._mapper.table(mapping.name)
        size = crypt_mapping.backing_bytes(table, shield.header, shield.size)
        self._require_same(mapping, table, shield, size)
        return mapping, shield

    def _header(self, disk: Disk, key: bytes, shield: Shield) -> GenuineHeader:
        """The disk's record, which must vouch for the very header that the volume is open with."""
        with self._open_device(disk.path, writable=False, exclusive=False, number=disk.number) as device:
            header = judge(HeaderArea(device), RecordKey(key))
        if (
            not isinstance(header, GenuineHeader)
            or header.audited != shield.header
            # A mounted volume was finished: an older record was brought back, and must not be written anew.
            or header.record.state is not State.READY
        ):
            raise Refused(
                "header-not-authenticated",
                f"the header or record on {disk.path} is not the one the volume is open with",
            )
        return header

    def _grow_mapping(self, mapping: Mapping, shield: Shield, disk: Disk, key: bytes) -> None:
        # Its exit code says nothing: the active table is what counts.
        self._runner.run(["cryptsetup", "resize", "--key-file", "-", mapping.name], stdin=key)
        self._require_same(mapping, self._mapper.table(mapping.name), shield, disk.size)

    def _require_same(
        self, mapping: Mapping, table: tuple[Target, ...], shield: Shield, backing_size: int
    ) -> None:
        # Whether discards may go through was checked when the volume was mounted.
        crypt_mapping.require_same(mapping, table, shield.header, shield.mapping.number, backing_size)
