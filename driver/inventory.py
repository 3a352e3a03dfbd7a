"""Counts the provider's volumes now and then, for the metrics alone."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Final

from driver.background import repeat
from driver.observation import Observer, VolumeCount, VolumeKind
from providers.deadline import Deadline
from providers.errors import ProviderError
from providers.interface import BlockVolumeProvider, Volume, VolumeHealth, VolumeLister

_LOG = logging.getLogger(__name__)

#: Seconds. A listing costs EC2 two calls for each 500 volumes; the time for it is its bound.
_FIRST_AFTER: Final = 2.0
_BETWEEN: Final = 300.0
_AFTER_A_FAULT: Final = 60.0
_LONGEST: Final = 60.0


class Inventory:
    """The volumes of one provider."""

    def __init__(self, provider: BlockVolumeProvider, observer: Observer) -> None:
        self._provider = provider
        self._observer = observer

    def start(self) -> None:
        """Count from now on, in the background; nothing if the provider can't list."""
        if isinstance(self._provider, VolumeLister):
            repeat("volume-count", self.count, _FIRST_AFTER)

    def count(self) -> float:
        """List the volumes once; the seconds until they are to be listed again."""
        try:
            self._count(Deadline.after(_LONGEST))
        except ProviderError as error:
            self._observer.volumes_not_counted()
            _LOG.info("volumes could not be counted", extra={"fields": {"reason": str(error)}})
            return _AFTER_A_FAULT
        return _BETWEEN

    def _count(self, deadline: Deadline) -> None:
        if not isinstance(self._provider, VolumeLister):
            return
        # In one piece: some providers list everything for each page.
        volumes = self._provider.list_volumes(0, "", deadline).items
        counts: defaultdict[VolumeKind, VolumeCount] = defaultdict(VolumeCount)
        for volume in volumes:
            kind = kind_of(volume)
            before = counts[kind]
            counts[kind] = VolumeCount(before.volumes + 1, before.size_bytes + volume.size_bytes)
        abnormal = 0
        if volumes and isinstance(self._provider, VolumeHealth):
            conditions = self._provider.volume_conditions(volumes, deadline)
            abnormal = sum(condition.abnormal for condition in conditions.values())
        self._observer.volumes_counted(counts, abnormal)


def kind_of(volume: Volume) -> VolumeKind:
    """What the volume is counted as."""
    used = "attached" if volume.attached_to else "published" if volume.published_node_id else "available"
    return VolumeKind(used, "luks2" if volume.encryption is not None else "none")
