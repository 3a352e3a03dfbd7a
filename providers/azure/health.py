"""What Azure says about a disk's health, in words."""

from __future__ import annotations

from providers.azure.records import FAILED, DiskRecord
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
