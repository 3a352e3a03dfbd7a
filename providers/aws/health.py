"""What EC2's status checks say about volumes, in words; and whether EC2 serves this process at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from providers.aws.calls import Ec2
from providers.aws.failures import NO_VOLUME, NotSent, Refused, as_provider_error, lacks_credentials
from providers.deadline import Deadline
from providers.errors import UnavailableError
from providers.interface import VolumeCondition

_IDS = 500
_FEWEST = 5  # the least that MaxResults may be


def conditions(ec2: Ec2, ids: Sequence[str], deadline: Deadline) -> Mapping[str, VolumeCondition]:
    """The condition of each of the volumes that EC2 knows.

    Raises:
        UnavailableError: EC2 could not be asked.
    """
    found: dict[str, VolumeCondition] = {}
    batches = [ids[start : start + _IDS] for start in range(0, len(ids), _IDS)]
    while batches:
        batch = batches.pop()
        try:
            for status in ec2.pages(
                "describe_volume_status", "VolumeStatuses", deadline, VolumeIds=list(batch)
            ):
                found[status["VolumeId"]] = condition_of(status)
        except Refused as error:
            if error.code not in NO_VOLUME:
                raise as_provider_error("DescribeVolumeStatus", error) from error
            # One that was deleted meanwhile spoils the call: it is found by halving.
            middle = len(batch) // 2
            batches += [half for half in (batch[:middle], batch[middle:]) if half and len(batch) > 1]
    return found


def condition_of(status: Mapping[str, Any]) -> VolumeCondition:
    """The condition that one answer describes."""
    checks = status.get("VolumeStatus", {})
    word = checks.get("Status", "insufficient-data")
    details = [f"{detail['Name']}: {detail['Status']}" for detail in checks.get("Details", ())]
    events = [
        f"{event['EventType']}: {event.get('Description', '')}".strip(": ")
        for event in status.get("Events", ())
    ]
    text = "; ".join([f"EC2's status checks say {word}", *details, *events])
    return VolumeCondition(abnormal=word in ("impaired", "warning") or bool(events), message=text[:400])


def refusal(ec2: Ec2, deadline: Deadline) -> str | None:
    """Why EC2 refuses this process, which a person must mend; None if it answers.

    Raises:
        UnavailableError: EC2 could not be asked.
    """
    try:
        ec2.ask("describe_volumes", deadline, MaxResults=_FEWEST)
    except Refused as error:
        return (
            f"EC2 refused DescribeVolumes with {error.code or 'no code'}; check the controller's "
            "credentials, and compare its role with deploy/aws/iam-policy.json"
        )
    except UnavailableError as error:
        cause = error.__cause__
        if isinstance(cause, NotSent) and lacks_credentials(cause):
            return (
                f"the controller has no credentials for AWS ({cause}); give its service account a role: "
                "docs/aws.md"
            )
        raise
    return None
