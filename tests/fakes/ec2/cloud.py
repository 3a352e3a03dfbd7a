"""The state behind the server, and EC2's actions on it."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.fakes.ec2 import checks
from tests.fakes.ec2.objects import Modification, Snapshot, Volume, now_utc
from tests.fakes.ec2.policy import Policy, questions
from tests.fakes.ec2.rules import Ec2Error, Fault, FillState, Rules

Arguments = Mapping[str, Any]


class Cloud:
    """One account in one region. Tests look at it and change it directly; the driver has the server only."""

    def __init__(self, rules: Rules | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.rules = rules or Rules()
        self.clock = clock
        self.lock = threading.RLock()
        self.volumes: dict[str, Volume] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.calls: Counter[str] = Counter()
        """By action, every one that arrived."""
        self.throttled: Counter[str] = Counter()
        self.faults: defaultdict[str, list[Fault]] = defaultdict(list)
        """By action, for the next calls, one each."""
        self.full_zones: set[str] = set()
        self.bad_keys: set[str] = set()
        """KMS keys with which creation fails after it was accepted."""
        self.impaired: set[str] = set()
        self.is_reachable = True
        self.access_keys: frozenset[str] | None = None
        """Ids of the keys that are accepted; None: any."""
        self.policy: Policy | None = None
        """What the caller may do; None: everything."""
        self._tokens: dict[str, tuple[str, str]] = {}
        self._levels = {action: FillState.full(bucket) for action, bucket in self.rules.buckets.items()}

    # What tests do.

    def existing_volumes(self) -> list[Volume]:
        """Those that were not deleted."""
        with self.lock:
            return [volume for volume in self.volumes.values() if volume.exists()]

    def existing_snapshots(self) -> list[Snapshot]:
        """Those that were not deleted."""
        with self.lock:
            return [one for one in self.snapshots.values() if one.deleted_at is None]

    def attach(self, volume_id: str, instance_id: str) -> None:
        """A virtual machine gets the disk; an empty id: it loses it."""
        with self.lock:
            volume = self.volumes[volume_id]
            volume.change(replace(volume.now, attached_to=instance_id), self.clock())

    def settle(self) -> None:
        """Wait until answers show what is true."""
        time.sleep(self.rules.lag)

    # What the server does.

    def fault(self, action: str) -> Fault | None:
        """Count the call, and what happens to it."""
        with self.lock:
            self.calls[action] += 1
            if not self.is_reachable:
                return Fault.LOST_REQUEST
            if self.faults[action]:
                return self.faults[action].pop(0)
            level = self._levels.get(action)
            if level is not None and not level.take():
                self.throttled[action] += 1
                return Fault.THROTTLED
            return None

    def perform(self, action: str, arguments: Arguments) -> dict[str, Any]:
        """The answer to a call.

        Raises:
            Ec2Error: it is an error.
        """
        performed: dict[str, Callable[[Arguments], dict[str, Any]]] = {
            "CreateVolume": self._create_volume,
            "DeleteVolume": self._delete_volume,
            "ModifyVolume": self._modify_volume,
            "CreateSnapshot": self._create_snapshot,
            "DeleteSnapshot": self._delete_snapshot,
            "CreateTags": self._create_tags,
            "DeleteTags": self._delete_tags,
            "DescribeVolumes": self._describe_volumes,
            "DescribeSnapshots": self._describe_snapshots,
            "DescribeVolumesModifications": self._describe_modifications,
            "DescribeVolumeStatus": self._describe_status,
        }
        if action not in performed:
            raise Ec2Error("InvalidAction", f"The action {action} is not valid for this web service")
        with self.lock:
            if self.policy is not None:
                tags_of = {volume_id: volume.now.tags for volume_id, volume in self.volumes.items()}
                tags_of |= {snapshot_id: one.tags for snapshot_id, one in self.snapshots.items()}
                self.policy.check(questions(action, arguments, tags_of))
            if arguments.get("DryRun"):
                raise Ec2Error(
                    "DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412
                )
            return performed[action](arguments)

    def _create_volume(self, arguments: Arguments) -> dict[str, Any]:
        token = arguments.get("ClientToken", "")
        # Every parameter counts (EC2 API reference, "Ensuring idempotency").
        request = json.dumps({**arguments, "ClientToken": ""}, sort_keys=True)
        if token in self._tokens:
            used_for, volume_id = self._tokens[token]
            if used_for != request:
                raise Ec2Error("IdempotentParameterMismatch")
            return self._volume_answer(self.volumes[volume_id])
        checks.client_token(token)
        zone = arguments.get("AvailabilityZone", "")
        if zone not in self.rules.zones:
            raise Ec2Error("InvalidZone.NotFound", f"The zone '{zone}' does not exist.")
        source = self._snapshot_of(arguments["SnapshotId"]) if "SnapshotId" in arguments else None
        if source is not None and source.state(self.clock(), self.rules) != "completed":
            raise Ec2Error("IncorrectState", "Snapshot is in invalid state - pending")
        fields = checks.new_volume(arguments, source.size if source is not None else 0)
        if len(self.existing_volumes()) >= self.rules.volumes:
            raise Ec2Error("VolumeLimitExceeded")
        if zone in self.full_zones:
            raise Ec2Error("InsufficientVolumeCapacity")
        at = self.clock()
        kms_key = arguments.get("KmsKeyId", "")
        if kms_key and not arguments.get("Encrypted"):
            raise Ec2Error("InvalidParameterDependency", "KmsKeyId needs Encrypted")
        volume = Volume(
            volume_id=f"vol-{secrets.token_hex(9)[:17]}",
            zone=zone,
            encrypted=arguments.get("Encrypted", False) or (source is not None and source.encrypted),
            kms_key=kms_key,
            snapshot_id=source.snapshot_id if source is not None else "",
            created=now_utc(),
            created_at=at,
            history=[(at, fields)],
            content=dict(source.content) if source is not None else {},
            fails=kms_key in self.bad_keys,
        )
        self.volumes[volume.volume_id] = volume
        if token:
            self._tokens[token] = (request, volume.volume_id)
        return self._volume_answer(volume)

    def _volume_answer(self, volume: Volume) -> dict[str, Any]:
        at = self.clock()
        answer = volume.answer(volume.now, at, self.rules)
        answer["State"] = answer["State"] or "creating"  # of a token whose volume is gone, the first answer
        del answer["Attachments"]
        return answer

    def _delete_volume(self, arguments: Arguments) -> dict[str, Any]:
        volume = self._volume(arguments.get("VolumeId", ""))
        at = self.clock()
        state = volume.state(volume.now, at, self.rules)
        if state == "in-use":
            raise Ec2Error("VolumeInUse", f"Volume {volume.volume_id} is currently attached")
        if state == "creating":
            raise Ec2Error("IncorrectState", "The volume is being created")
        if state != "deleting":
            volume.change(replace(volume.now, deleted_at=at), at)
        return {}

    def _modify_volume(self, arguments: Arguments) -> dict[str, Any]:
        volume = self._volume(arguments.get("VolumeId", ""))
        at = self.clock()
        if volume.state(volume.now, at, self.rules) not in ("available", "in-use"):
            raise Ec2Error("IncorrectState", "The volume can't be modified now")
        latest = volume.modifications[-1] if volume.modifications else None
        if latest is not None and latest.state(at, self.rules) != "completed":
            raise Ec2Error("IncorrectModificationState", "modification state OPTIMIZING")
        if latest is not None and at - latest.began_at < self.rules.cool_down:
            raise Ec2Error("VolumeModificationRateExceeded")
        target = checks.modified_volume(volume.now, arguments)
        modification = Modification(at, now_utc(), volume.now, target)
        volume.modifications.append(modification)
        volume.change(target, at + self.rules.modifying)
        return {"VolumeModification": self._modification_answer(volume.volume_id, modification, at)}

    def _create_snapshot(self, arguments: Arguments) -> dict[str, Any]:
        volume = self._volume(arguments.get("VolumeId", ""))
        at = self.clock()
        if volume.state(volume.now, at, self.rules) not in ("available", "in-use"):
            raise Ec2Error("IncorrectState", "The volume is not available")
        snapshot = Snapshot(
            snapshot_id=f"snap-{secrets.token_hex(9)[:17]}",
            volume_id=volume.volume_id,
            size=volume.now.size,
            encrypted=volume.encrypted,
            tags=checks.new_tags(arguments, "snapshot"),
            started=now_utc(),
            started_at=at,
            content=dict(volume.content),
        )
        self.snapshots[snapshot.snapshot_id] = snapshot
        return snapshot.answer(at, self.rules)

    def _delete_snapshot(self, arguments: Arguments) -> dict[str, Any]:
        self._snapshot_of(arguments.get("SnapshotId", "")).deleted_at = self.clock()
        return {}

    def _create_tags(self, arguments: Arguments) -> dict[str, Any]:
        added = checks.tags(arguments.get("Tags", ()))
        for volume_id in arguments.get("Resources", ()):
            volume = self._volume(volume_id)
            tags = checks.tag_count({**volume.now.tags, **added})
            volume.change(replace(volume.now, tags=tags), self.clock())
        return {}

    def _delete_tags(self, arguments: Arguments) -> dict[str, Any]:
        for volume_id in arguments.get("Resources", ()):
            volume = self._volume(volume_id)
            left = dict(volume.now.tags)
            for tag in arguments["Tags"]:
                if "Value" not in tag or left.get(tag["Key"]) == tag["Value"]:
                    left.pop(tag["Key"], None)
            volume.change(replace(volume.now, tags=left), self.clock())
        return {}

    def _describe_volumes(self, arguments: Arguments) -> dict[str, Any]:
        at = self.clock() - self.rules.lag
        seen = {
            volume.volume_id: volume.answer(fields, at, self.rules)
            for volume in self.volumes.values()
            if (fields := volume.seen_at(at, self.rules)) is not None
        }
        checks.known(arguments.get("VolumeIds", ()), seen, "vol", "InvalidVolume.NotFound")
        return _page("Volumes", seen, arguments, "VolumeIds", "VolumeId")

    def _describe_snapshots(self, arguments: Arguments) -> dict[str, Any]:
        at = self.clock() - self.rules.lag
        seen = {
            snapshot.snapshot_id: snapshot.answer(at, self.rules)
            for snapshot in self.snapshots.values()
            if snapshot.is_seen_at(at)
        }
        checks.known(arguments.get("SnapshotIds", ()), seen, "snap", "InvalidSnapshot.NotFound")
        return _page("Snapshots", seen, arguments, "SnapshotIds", "SnapshotId")

    def _describe_modifications(self, arguments: Arguments) -> dict[str, Any]:
        at = self.clock() - self.rules.lag
        seen = {
            volume.volume_id: self._modification_answer(volume.volume_id, past[-1], at)
            for volume in self.volumes.values()
            if (past := [one for one in volume.modifications if one.began_at <= at])
        }
        checks.known(arguments.get("VolumeIds", ()), seen, "vol", "InvalidVolumeModification.NotFound")
        return _page("VolumesModifications", seen, arguments, "VolumeIds", "VolumeId")

    def _modification_answer(self, volume_id: str, one: Modification, at: float) -> dict[str, Any]:
        state = one.state(at, self.rules)
        answer: dict[str, Any] = {
            "VolumeId": volume_id,
            "ModificationState": state,
            "StartTime": one.began,
            "Progress": 100 if state == "completed" else 0,
        }
        for word, fields in (("Target", one.target), ("Original", one.original)):
            answer[f"{word}Size"] = fields.size
            answer[f"{word}VolumeType"] = fields.volume_type
            if fields.iops:
                answer[f"{word}Iops"] = fields.iops
            if fields.throughput:
                answer[f"{word}Throughput"] = fields.throughput
        return answer

    def _describe_status(self, arguments: Arguments) -> dict[str, Any]:
        at = self.clock() - self.rules.lag
        seen = {}
        for volume in self.volumes.values():
            if volume.seen_at(at, self.rules) is not None:
                word = "impaired" if volume.volume_id in self.impaired else "ok"
                io = "failed" if word == "impaired" else "passed"
                details = [{"Name": "io-enabled", "Status": io}]
                seen[volume.volume_id] = {
                    "VolumeId": volume.volume_id,
                    "AvailabilityZone": volume.zone,
                    "VolumeStatus": {"Status": word, "Details": details},
                    "Events": [],
                    "Actions": [],
                }
        checks.known(arguments.get("VolumeIds", ()), seen, "vol", "InvalidVolume.NotFound")
        return _page("VolumeStatuses", seen, arguments, "VolumeIds", "VolumeId")

    def _volume(self, volume_id: str) -> Volume:
        checks.object_id(volume_id, "vol")
        volume = self.volumes.get(volume_id)
        if volume is None or volume.state(volume.now, self.clock(), self.rules) == "":
            raise Ec2Error("InvalidVolume.NotFound", f"The volume '{volume_id}' does not exist.")
        return volume

    def _snapshot_of(self, snapshot_id: str) -> Snapshot:
        checks.object_id(snapshot_id, "snap")
        snapshot = self.snapshots.get(snapshot_id)
        if snapshot is None or snapshot.deleted_at is not None:
            raise Ec2Error("InvalidSnapshot.NotFound", f"The snapshot '{snapshot_id}' does not exist.")
        return snapshot


def _page(
    member: str, seen: Mapping[str, Mapping[str, Any]], arguments: Arguments, ids: str, id_name: str
) -> dict[str, Any]:
    """One page of what the arguments select."""
    wanted: Sequence[str] | None = arguments.get(ids)
    chosen = [
        answer
        for answer in seen.values()
        if (wanted is None or answer[id_name] in wanted)
        and all(checks.matches(answer, one, id_name) for one in checks.filters(arguments))
    ]
    size, start = checks.page(arguments, by_id=wanted is not None)
    page: dict[str, Any] = {member: chosen[start : start + size]}
    if start + size < len(chosen):
        page["NextToken"] = f"page-{start + size}"
    return page
