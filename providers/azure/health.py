"""What Azure says about a disk's health, in words; and whether it serves this process at all."""

from __future__ import annotations

from azure.core.exceptions import ClientAuthenticationError

from providers.azure.calls import Arm
from providers.azure.failures import NotSent, Refused, Throttled
from providers.azure.places import Place
from providers.azure.records import FAILED, DiskRecord
from providers.deadline import Deadline
from providers.errors import ProviderError
from providers.interface import VolumeCondition

_EXPORTED = "Azure exports the disk by a link (state {state}), so no machine can use it; revoke the access"
_UPLOAD = "Azure waits for data to be uploaded to the disk (state {state}), so no machine can use it"
_ABNORMAL = {
    "ActiveSAS": _EXPORTED,
    "ActiveSASFrozen": _EXPORTED,
    "ReadyToUpload": _UPLOAD,
    "ActiveUpload": _UPLOAD,
    "Frozen": "Azure has frozen the disk (state {state}): the machine that has it was hibernated",
}
_NORMAL = {
    "Attached": "the disk is attached to {machine}",
    "Reserved": "the disk is attached to {machine}, which is stopped",
    "Unattached": "the disk is available",
}


def condition(record: DiskRecord) -> VolumeCondition:
    """The condition of one disk."""
    if record.provisioning_state == FAILED:
        return VolumeCondition(
            True, "Azure's last operation on the disk failed; look at the disk's activity log in Azure"
        )
    words = _ABNORMAL.get(record.disk_state)
    if words is not None:
        return VolumeCondition(True, words.format(state=record.disk_state))
    words = _NORMAL.get(record.disk_state, "Azure says that the disk is {state}")
    return VolumeCondition(
        False,
        words.format(machine=record.attached_to or "a machine", state=record.disk_state or "available"),
    )


#: No name of a disk of ours, and so one question whose answer stays small.
_NO_DISK = "confidential-csi-check"


def refusal(arm: Arm, place: Place, deadline: Deadline) -> str | None:
    """Why Azure refuses this process in a resource group, which a person must mend; None if it answers.

    Raises:
        UnavailableError: it could not be asked.
    """
    try:
        arm.get("disks", place.group, _NO_DISK, deadline)
    except ProviderError as error:
        cause = error.__cause__
        refused = isinstance(cause, Refused) and not isinstance(cause, Throttled)
        nobody = isinstance(cause, NotSent) and isinstance(cause.__cause__, ClientAuthenticationError)
        if refused or nobody:
            return f"resource group {place.group}: {error}"
        raise
    return None
