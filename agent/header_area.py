"""The header area of one disk, each byte of it read once, and the most of it only if it is needed."""

from __future__ import annotations

from functools import cached_property
from typing import Final

from agent.block_device import BlockDevice
from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES, SLOT_BYTES, SLOT_OFFSETS

_SLOTS: Final = SLOT_OFFSETS[0]


class HeaderArea:
    """What a disk says its first ``HEADER_AREA_BYTES`` are; what a smaller one lacks reads as zeros.

    The image in place and the records are read at once: of a volume that was closed in order they are all
    that matters, and a mount waits for them.

    Raises:
        Unavailable: the disk returned an error.
    """

    def __init__(self, device: BlockDevice) -> None:
        self.device = device
        self.image_in_place = self._read(0, IMAGE_BYTES)
        self.slots = self._read(_SLOTS, 2 * SLOT_BYTES)

    @cached_property
    def whole(self) -> bytes:
        """All of it; what was not read before is read now.

        Raises:
            Unavailable: the disk returned an error.
        """
        return self.image_in_place + self._read(IMAGE_BYTES, _SLOTS - IMAGE_BYTES) + self.slots

    def _read(self, offset: int, length: int) -> bytes:
        there = min(length, max(0, min(self.device.size, HEADER_AREA_BYTES) - offset))
        return self.device.read(offset, there).ljust(length, b"\0") if there else bytes(length)
