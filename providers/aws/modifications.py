"""Size, type, iops and throughput of existing volumes, changed by as few calls as possible.

EC2 lets a volume be modified again only hours later, so what arrives together goes into one ModifyVolume.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from providers.aws.calls import sleep
from providers.aws.disk_types import DiskType, check_figures
from providers.aws.failures import NO_VOLUME, NoAnswer, Refused, as_provider_error
from providers.aws.records import ModificationRecord, VolumeRecord
from providers.aws.region import Region
from providers.bounded import wait_for
from providers.deadline import Deadline
from providers.errors import (
    InvalidParameterError,
    OutcomeUnknownError,
    UnavailableError,
    VolumeNotFoundError,
)
from providers.observation import waiting

_IN_EFFECT = frozenset({"optimizing", "completed"})
_UNDER_WAY = frozenset({"modifying", "optimizing"})


@dataclass(frozen=True)
class Change:
    """What a volume shall have; None where it stays as it is."""

    size_gib: int | None = None
    volume_type: str | None = None
    iops: int | None = None
    throughput: int | None = None

    def merged(self, other: Change) -> Change | None:
        """Both; None if they contradict each other. Of two sizes the larger is meant: none ever shrinks."""
        for one, two in (
            (self.volume_type, other.volume_type),
            (self.iops, other.iops),
            (self.throughput, other.throughput),
        ):
            if one is not None and two is not None and one != two:
                return None
        return Change(
            size_gib=max(self.size_gib or 0, other.size_gib or 0) or None,
            volume_type=self.volume_type or other.volume_type,
            iops=self.iops or other.iops,
            throughput=self.throughput or other.throughput,
        )

    def left(self, current: VolumeRecord | ModificationRecord) -> Change:
        """What of it ``current`` does not have yet."""
        return Change(
            size_gib=self.size_gib if (self.size_gib or 0) > current.size_gib else None,
            volume_type=_unless_equal(self.volume_type, current.volume_type),
            iops=_unless_equal(self.iops, current.iops),
            throughput=_unless_equal(self.throughput, current.throughput),
        )

    def arguments(self) -> dict[str, object]:
        """As ModifyVolume takes it."""
        return {
            name: value
            for name, value in (
                ("Size", self.size_gib),
                ("VolumeType", self.volume_type),
                ("Iops", self.iops),
                ("Throughput", self.throughput),
            )
            if value is not None
        }


def _unless_equal(wanted: str | int | None, current: object) -> Any:
    return None if wanted == current else wanted


@dataclass
class _Round:
    """One ModifyVolume to come, and those who wait for it."""

    change: Change
    result: Future[int] = field(default_factory=Future)


class Modifications:
    """The modifications of one region's volumes."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._gathering: dict[str, _Round] = {}

    def apply(self, volume_id: str, change: Change, deadline: Deadline) -> int:
        """Make the change; the volume's size afterwards, in GiB.

        Raises:
            As ``VolumeExpander.expand_volume`` and ``VolumeModifier.modify_volume``.
        """
        current = self._current(volume_id, deadline)
        if not change.left(current).arguments():
            return current.size_gib
        with self._lock:
            joined = self._gathering.get(volume_id)
            merged = joined.change.merged(change) if joined is not None else None
            if joined is not None and merged is not None:
                joined.change = merged
            elif joined is not None:
                raise UnavailableError("a contradicting modification of the volume is under way; call again")
            else:
                own = self._gathering[volume_id] = _Round(change)
        if joined is not None:
            return wait_for(joined.result, deadline)
        return self._lead(volume_id, own, deadline)

    def _lead(self, volume_id: str, own: _Round, deadline: Deadline) -> int:
        try:
            try:
                sleep(self._region.settings.timings.merge, deadline)
            finally:
                with self._lock:
                    del self._gathering[volume_id]
            size = self._modify(volume_id, own.change, deadline)
        except BaseException as error:
            own.result.set_exception(error)
            raise
        own.result.set_result(size)
        return size

    def _modify(self, volume_id: str, change: Change, deadline: Deadline) -> int:
        current = self._current(volume_id, deadline)
        left = change.left(current)
        if not left.arguments():
            return current.size_gib
        # A modification that is under way shows in the volume only when it is in effect.
        latest = self._region.modifications.get(volume_id, deadline)
        if latest is None or latest.state not in _UNDER_WAY:
            latest = None
        elif left.left(latest).arguments():
            raise UnavailableError(
                f"volume {volume_id} is being modified, and EC2 takes the next modification only when that "
                "has ended; this can take hours"
            )
        if latest is None:
            _check(current, left)
            try:
                self._send(volume_id, left, deadline)
            except InvalidParameterError:
                self._check_unchanged(current, deadline)
                raise
        return self._wait_until_in_effect(volume_id, left, deadline)

    def _check_unchanged(self, seen: VolumeRecord, deadline: Deadline) -> None:
        """Another controller may have enlarged the volume, which answers show late: EC2 then refuses this
        change as making it smaller, and the caller must not take it for impossible.

        Raises:
            UnavailableError: the volume is not as it was seen.
        """
        until = time.monotonic() + self._region.settings.timings.consistency
        is_last = False
        while not is_last:
            is_last = time.monotonic() >= until  # so that the last answer is not one that lags behind
            current = self._current(seen.volume_id, deadline)
            if _figures(current) != _figures(seen):
                raise UnavailableError("the volume was modified by another call meanwhile; call again")

    def _send(self, volume_id: str, change: Change, deadline: Deadline) -> None:
        try:
            self._region.ec2.change(
                "modify_volume", deadline, repeatable=False, VolumeId=volume_id, **change.arguments()
            )
        except NoAnswer as error:
            # Sent again, it would be refused as too early; whether it was done shows on the replay.
            raise OutcomeUnknownError(f"ModifyVolume: {error}; it may have been done, call again") from error
        except Refused as error:
            if error.code in NO_VOLUME:
                raise _no_volume() from error
            raise as_provider_error("ModifyVolume", error) from error

    def _wait_until_in_effect(self, volume_id: str, change: Change, deadline: Deadline) -> int:
        try:
            with waiting("modification-in-effect"):
                return self._look_until_in_effect(volume_id, change, deadline)
        except UnavailableError as error:
            raise OutcomeUnknownError(f"{error}; the volume is being modified, call again") from error

    def _look_until_in_effect(self, volume_id: str, change: Change, deadline: Deadline) -> int:
        while True:
            current = self._region.volumes_by_id.get(volume_id, deadline)
            if current is not None and not change.left(current).arguments():
                return current.size_gib
            latest = self._region.modifications.get(volume_id, deadline)
            if latest is None or change.left(latest).arguments():
                continue  # not seen yet
            if latest.state == "failed":
                raise OutcomeUnknownError(f"EC2 failed to modify volume {volume_id}; call again")
            if latest.state in _IN_EFFECT and change.size_gib is None:
                return latest.size_gib

    def _current(self, volume_id: str, deadline: Deadline) -> VolumeRecord:
        record = self._region.volumes_by_id.get(volume_id, deadline)
        if record is None:
            raise _no_volume()
        return record


def _figures(record: VolumeRecord) -> tuple[object, ...]:
    return record.size_gib, record.volume_type, record.iops, record.throughput


def _check(current: VolumeRecord, change: Change) -> None:
    """Check the result of the change against the type's limits, without a call.

    Raises:
        InvalidParameterError, SizeOutOfRangeError: it can't be.
    """
    name = change.volume_type or current.volume_type
    is_same_type = name == current.volume_type
    wanted = DiskType(
        name,
        iops=change.iops or (current.iops if is_same_type else None),
        throughput=change.throughput or (current.throughput if is_same_type else None),
    )
    limits = wanted.limits()
    # EC2 reports figures also for types where they can't be chosen.
    wanted = replace(
        wanted,
        iops=wanted.iops if limits.iops or change.iops else None,
        throughput=wanted.throughput if limits.throughput or change.throughput else None,
    )
    check_figures(wanted)
    wanted.check_size(change.size_gib or current.size_gib)


def _no_volume() -> VolumeNotFoundError:
    return VolumeNotFoundError("EC2 says that there is no such volume")
