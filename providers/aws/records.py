"""EC2's answers as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from providers.aws import tags as tag_keys
from providers.aws.tags import Facts

GONE = frozenset({"deleting", "deleted"})
USABLE = frozenset({"available", "in-use"})


@dataclass(frozen=True)
class VolumeRecord:
    """One volume of DescribeVolumes or CreateVolume."""

    volume_id: str
    state: str
    size_gib: int
    volume_type: str
    iops: int | None
    throughput: int | None
    zone: str
    encrypted: bool
    created_at: datetime
    attached_to: str
    """The instance that has it, or is getting or losing it; empty if none."""
    tags: Mapping[str, str] = field(repr=False)

    @property
    def facts(self) -> Facts:
        """What the tags say.

        Raises:
            CorruptStateError: nothing that this driver can have written.
        """
        return tag_keys.read(self.tags, tag_keys.VOLUME_KEY)

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> VolumeRecord:
        """The record in EC2's ``answer``."""
        attached = [
            one["InstanceId"] for one in answer.get("Attachments", ()) if one.get("State") != "detached"
        ]
        return cls(
            volume_id=answer["VolumeId"],
            state=answer["State"],
            size_gib=answer["Size"],
            volume_type=answer.get("VolumeType", ""),
            iops=answer.get("Iops"),
            throughput=answer.get("Throughput"),
            zone=answer.get("AvailabilityZone", ""),
            encrypted=answer.get("Encrypted", False),
            created_at=answer["CreateTime"],
            attached_to=attached[0] if attached else "",
            tags=_tags(answer),
        )


@dataclass(frozen=True)
class SnapshotRecord:
    """One snapshot of DescribeSnapshots or CreateSnapshot."""

    snapshot_id: str
    state: str
    volume_id: str
    size_gib: int
    started_at: datetime
    tags: Mapping[str, str] = field(repr=False)

    @property
    def facts(self) -> Facts:
        """As for volumes."""
        return tag_keys.read(self.tags, tag_keys.SNAPSHOT_KEY)

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> SnapshotRecord:
        """The record in EC2's ``answer``."""
        return cls(
            snapshot_id=answer["SnapshotId"],
            state=answer["State"],
            volume_id=answer.get("VolumeId", ""),
            size_gib=answer["VolumeSize"],
            started_at=answer["StartTime"],
            tags=_tags(answer),
        )


@dataclass(frozen=True)
class ModificationRecord:
    """The latest modification of a volume."""

    volume_id: str
    state: str
    size_gib: int
    volume_type: str
    iops: int | None
    throughput: int | None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> ModificationRecord:
        """The record in EC2's ``answer``."""
        return cls(
            volume_id=answer["VolumeId"],
            state=answer["ModificationState"],
            size_gib=answer.get("TargetSize", 0),
            volume_type=answer.get("TargetVolumeType", ""),
            iops=answer.get("TargetIops"),
            throughput=answer.get("TargetThroughput"),
        )


def _tags(answer: Mapping[str, Any]) -> dict[str, str]:
    # An object without tags has no such member (field case B5).
    return {tag["Key"]: tag["Value"] for tag in answer.get("Tags", ())}
