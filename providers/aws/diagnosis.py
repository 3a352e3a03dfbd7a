"""What the account lets this process do: each call that the driver makes, tried without doing it.

Questions are asked as they are. Changes are sent with ``DryRun``: EC2 then only says whether it would have
allowed them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final

from providers.aws import tags as tag_keys
from providers.aws.calls import Answer, Ec2, api_name
from providers.aws.failures import NoAnswer, NotSent, Refused, Throttled, as_provider_error
from providers.deadline import Deadline
from providers.interface import BackendDiagnosis, Permission

_WOULD_BE_ALLOWED: Final = "DryRunOperation"
_FORBIDDEN: Final = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
#: The least that EC2 takes as the length of a page.
_ONE_PAGE: Final = 5
_NAME: Final = "confidential-csi-doctor"
_NO_VOLUME: Final = "it takes a volume to try it, and there is none of this driver yet"
_NO_SNAPSHOT: Final = "it takes a snapshot to try it, and there is none of this driver yet"


@dataclass(frozen=True)
class _Trial:
    """A call, and the permission for which it is made; ``why_not`` says why it can't be made."""

    permission: str
    action: str
    arguments: Answer = field(default_factory=dict)
    why_not: str = ""


@dataclass(frozen=True)
class Diagnosed:
    """Where to ask."""

    ec2: Ec2
    sts: Callable[[], Ec2]
    """Makes a client of the Security Token Service, which tells everybody who they are."""
    zone: str
    """Where a volume would be made."""


class AwsDiagnosis(BackendDiagnosis):
    """The diagnosis of one account."""

    @abstractmethod
    def _diagnosed(self) -> Diagnosed:
        """Where the volumes of the configured region are."""

    def identity(self, deadline: Deadline) -> str:
        answer = _ask(self._diagnosed().sts(), "get_caller_identity", deadline)
        return str(answer["Arn"])

    def permissions(self, deadline: Deadline) -> tuple[Permission, ...]:
        diagnosed = self._diagnosed()
        ec2 = diagnosed.ec2
        return tuple(_tried(ec2, trial, deadline) for trial in _trials(ec2, diagnosed.zone, deadline))

    def backend_time(self, deadline: Deadline) -> float | None:
        answer = _ask(self._diagnosed().ec2, "describe_volumes", deadline, MaxResults=_ONE_PAGE)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
        try:
            return parsedate_to_datetime(date).timestamp()
        except ValueError:
            return None


def _ask(service: Ec2, action: str, deadline: Deadline, **arguments: Any) -> Answer:
    try:
        return service.ask(action, deadline, **arguments)
    except Refused as error:
        raise as_provider_error(action, error) from error


def _trials(ec2: Ec2, zone: str, deadline: Deadline) -> Iterator[_Trial]:
    page = {"MaxResults": _ONE_PAGE}
    yield _Trial("ec2:DescribeVolumes", "describe_volumes", page)
    yield _Trial("ec2:DescribeVolumeStatus", "describe_volume_status", page)
    yield _Trial("ec2:DescribeVolumesModifications", "describe_volumes_modifications", page)
    yield _Trial("ec2:DescribeSnapshots", "describe_snapshots", {**page, "OwnerIds": ["self"]})
    volume = _first(ec2, "describe_volumes", "Volumes", tag_keys.VOLUME_KEY, deadline)
    snapshot = _first(ec2, "describe_snapshots", "Snapshots", tag_keys.SNAPSHOT_KEY, deadline)
    # Where a volume is already, another one can be: not every account has every zone.
    yield _Trial("ec2:CreateVolume", "create_volume", _new_volume(volume.get("AvailabilityZone", zone)))
    volume_id, snapshot_id = volume.get("VolumeId", ""), snapshot.get("SnapshotId", "")
    no_volume, no_snapshot = "" if volume_id else _NO_VOLUME, "" if snapshot_id else _NO_SNAPSHOT
    new_tags = [_tag_specification("snapshot", tag_keys.SNAPSHOT_KEY)]
    snapping = {"VolumeId": volume_id, "TagSpecifications": new_tags}
    growing = {"VolumeId": volume_id, "Size": volume.get("Size", 0) + 1}
    noting = {"Resources": [volume_id], "Tags": [{"Key": tag_keys.NODE, "Value": _NAME}]}
    yield _Trial("ec2:ModifyVolume", "modify_volume", growing, no_volume)
    yield _Trial("ec2:DeleteVolume", "delete_volume", {"VolumeId": volume_id}, no_volume)
    yield _Trial("ec2:CreateSnapshot", "create_snapshot", snapping, no_volume)
    yield _Trial("ec2:DeleteSnapshot", "delete_snapshot", {"SnapshotId": snapshot_id}, no_snapshot)
    yield _Trial("ec2:CreateTags", "create_tags", noting, no_volume)
    yield _Trial("ec2:DeleteTags", "delete_tags", noting, no_volume)


def _new_volume(zone: str) -> Answer:
    specification = _tag_specification("volume", tag_keys.VOLUME_KEY)
    return {"AvailabilityZone": zone, "Size": 1, "VolumeType": "gp3", "TagSpecifications": [specification]}


def _tag_specification(kind: str, key: str) -> dict[str, Any]:
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": _NAME}]}


def _first(ec2: Ec2, action: str, member: str, tag: str, deadline: Deadline) -> Answer:
    """An object of this driver; empty if there is none, or none can be seen."""
    arguments: Answer = {"Filters": [{"Name": "tag-key", "Values": [tag]}]}
    if member == "Snapshots":
        arguments["OwnerIds"] = ["self"]
    try:
        return next(ec2.pages(action, member, deadline, **arguments), {})
    except Refused:
        return {}  # that permission is reported itself


def _tried(ec2: Ec2, trial: _Trial, deadline: Deadline) -> Permission:
    if trial.why_not:
        return Permission(trial.permission, None, trial.why_not)
    changes = not trial.action.startswith("describe_")
    try:
        ec2.send(trial.action, deadline, **trial.arguments, **({"DryRun": True} if changes else {}))
    except Throttled:
        return Permission(trial.permission, None, "EC2 throttles")
    except Refused as error:
        if error.code == _WOULD_BE_ALLOWED:
            return Permission(trial.permission, True)
        if error.code in _FORBIDDEN:
            return Permission(error.permission or trial.permission, False, f"for {api_name(trial.action)}")
        return Permission(trial.permission, None, f"EC2 says {error.code}")
    except (NotSent, NoAnswer) as error:
        raise as_provider_error(trial.action, error) from error
    if changes:
        return Permission(trial.permission, None, "EC2 ignores DryRun")
    return Permission(trial.permission, True)
