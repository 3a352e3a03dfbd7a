"""Volumes without encryption, which only a policy can ask for: whose host may read and change everything.

They get a mapping like encrypted ones, a linear one over the disk, so that looking, unmounting and closing
are the same for both. A blank disk is formatted after the same blank check; a disk that holds anything but
ext4 is left alone.
"""

from __future__ import annotations

from agent.blank_check import require_blank
from agent.block_device import BlockDevice
from agent.classification import EXT_FILE_SYSTEM, Kind, classify
from agent.clock import Clock
from agent.device_mapper import SECTOR_BYTES, DeviceMapper, Mapping, Target
from agent.devices import Disk
from agent.disk_format import HEADER_AREA_BYTES
from agent.errors import Refused
from agent.policy import VolumeRules

_UUID_PREFIX = "CONFIDENTIAL-CSI-PLAIN-"


def needs_filesystem(device: BlockDevice, rules: VolumeRules, clock: Clock) -> bool:
    """Whether the disk is blank, and is to be formatted; False when it holds ext4.

    Raises:
        Refused: it is blank and must not be formatted (``format-forbidden``), or it holds something else
            (``not-plain-ext4``, ``not-blank``).
    """
    found = classify(device.read(0, min(HEADER_AREA_BYTES, device.size)), device.size)
    if found.kind is Kind.BLANK:
        rules.require_format()
        require_blank(device, clock, claimed=False)
        return True
    if found.kind is not Kind.OTHER_DATA or not found.detail.startswith(EXT_FILE_SYSTEM):
        raise Refused(
            "not-plain-ext4",
            f"the disk holds {found.kind.value} ({found.detail}); the policy says that the volume here is an "
            "ext4 without encryption",
        )
    return False


class PlainMappings:
    """Makes and recognizes the mappings of unencrypted volumes."""

    def __init__(self, mapper: DeviceMapper) -> None:
        self._mapper = mapper

    def build(self, name: str, disk: Disk) -> Mapping:
        """Map the whole of ``disk``.

        Raises:
            Unavailable: it can't be made.
        """
        return self._mapper.create(name, _UUID_PREFIX + name, _table(disk.number, disk.size))

    def is_plain(self, mapping: Mapping) -> bool:
        """Whether a mapping was made here."""
        return mapping.uuid == _UUID_PREFIX + mapping.name

    def size_over(self, mapping: Mapping, disk: Disk) -> int | None:
        """The size in bytes of a mapping that was made here over ``disk``; None for another one."""
        table = self._mapper.table(mapping.name)
        if not self.is_plain(mapping) or len(table) != 1:
            return None
        size = table[0].length * SECTOR_BYTES
        return size if table == _table(disk.number, size) else None


def _table(disk: str, size: int) -> tuple[Target, ...]:
    return (Target(0, size // SECTOR_BYTES, "linear", (disk, "0")),)
