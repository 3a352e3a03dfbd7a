"""Volumes and snapshots as they are, and as they were a moment ago."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.fakes.ec2.rules import Rules


@dataclass(frozen=True)
class VolumeFields:
    """What can change of a volume."""

    size: int
    volume_type: str
    iops: int | None
    throughput: int | None
    tags: Mapping[str, str]
    attached_to: str = ""
    deleted_at: float | None = None


@dataclass(frozen=True)
class Modification:
    """A ModifyVolume that was accepted."""

    began_at: float
    began: datetime
    original: VolumeFields
    target: VolumeFields

    def state(self, at: float, rules: Rules) -> str:
        """At that time."""
        age = at - self.began_at
        if age < rules.modifying:
            return "modifying"
        return "optimizing" if age < rules.modifying + rules.optimizing else "completed"


@dataclass
class Volume:
    """One volume, with its history."""

    volume_id: str
    zone: str
    encrypted: bool
    kms_key: str
    snapshot_id: str
    created: datetime
    created_at: float
    history: list[tuple[float, VolumeFields]]
    content: dict[int, int] = field(default_factory=dict)
    """What was written: by block, a mark."""
    modifications: list[Modification] = field(default_factory=list)
    fails: bool = False
    """It will be in state ``error`` instead of ``available``."""

    @property
    def now(self) -> VolumeFields:
        """The truth."""
        return self.history[-1][1]

    def change(self, fields: VolumeFields, at: float) -> None:
        """From that time on."""
        self.history.append((at, fields))
        self.history.sort(key=lambda entry: entry[0])

    def seen_at(self, at: float, rules: Rules) -> VolumeFields | None:
        """What is seen at that time; None if nothing is."""
        seen = [fields for since, fields in self.history if since <= at]
        if not seen or self.state(seen[-1], at, rules) == "":
            return None
        return seen[-1]

    def state(self, fields: VolumeFields, at: float, rules: Rules) -> str:
        """The state at that time; empty when it is gone."""
        if fields.deleted_at is not None:
            return "deleting" if at - fields.deleted_at < rules.deleting else ""
        if at - self.created_at < rules.creating:
            return "creating"
        if self.fails:
            return "error"
        return "in-use" if fields.attached_to else "available"

    def exists(self) -> bool:
        """Whether it was not deleted."""
        return self.now.deleted_at is None

    def answer(self, fields: VolumeFields, at: float, rules: Rules) -> dict[str, Any]:
        """As DescribeVolumes shows it."""
        found: dict[str, Any] = {
            "VolumeId": self.volume_id,
            "Size": fields.size,
            "SnapshotId": self.snapshot_id,
            "AvailabilityZone": self.zone,
            "State": self.state(fields, at, rules),
            "CreateTime": self.created,
            "Attachments": [],
            "Encrypted": self.encrypted,
            "VolumeType": fields.volume_type,
            "MultiAttachEnabled": False,
        }
        if fields.attached_to:
            found["Attachments"] = [
                {
                    "VolumeId": self.volume_id,
                    "InstanceId": fields.attached_to,
                    "Device": "/dev/sdf",
                    "State": "attached",
                    "AttachTime": self.created,
                    "DeleteOnTermination": False,
                }
            ]
        for name, value in (
            ("Iops", fields.iops),
            ("Throughput", fields.throughput),
            ("KmsKeyId", self.kms_key),
            ("Tags", tag_list(fields.tags)),
        ):
            if value:
                found[name] = value
        return found


@dataclass
class Snapshot:
    """One snapshot; its tags never change here."""

    snapshot_id: str
    volume_id: str
    size: int
    encrypted: bool
    tags: Mapping[str, str]
    started: datetime
    started_at: float
    content: dict[int, int]
    deleted_at: float | None = None

    def is_seen_at(self, at: float) -> bool:
        """Whether answers show it."""
        return self.started_at <= at and (self.deleted_at is None or at < self.deleted_at)

    def state(self, at: float, rules: Rules) -> str:
        """At that time."""
        return "pending" if at - self.started_at < rules.snapshot else "completed"

    def answer(self, at: float, rules: Rules) -> dict[str, Any]:
        """As DescribeSnapshots shows it."""
        state = self.state(at, rules)
        found: dict[str, Any] = {
            "SnapshotId": self.snapshot_id,
            "VolumeId": self.volume_id,
            "State": state,
            "StartTime": self.started,
            "Progress": "100%" if state == "completed" else "42%",
            "OwnerId": "123456789012",
            "Description": "",
            "VolumeSize": self.size,
            "Encrypted": self.encrypted,
            "StorageTier": "standard",
        }
        if self.tags:
            found["Tags"] = tag_list(self.tags)
        return found


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """As answers show them; in no useful order."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items(), reverse=True)]


def now_utc() -> datetime:
    """With milliseconds, as EC2's answers have them."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)
