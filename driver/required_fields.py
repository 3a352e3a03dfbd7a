"""Fields that no request may leave empty, for every RPC this driver serves (CSI 1.12, "REQUIRED")."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from google.protobuf.message import Message

from driver.errors import InvalidArgument

REQUIRED_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "CreateVolumeRequest": ("name",),
        "DeleteVolumeRequest": ("volume_id",),
        "ValidateVolumeCapabilitiesRequest": ("volume_id",),
        "ControllerGetVolumeRequest": ("volume_id",),
        "ControllerExpandVolumeRequest": ("volume_id",),
        "ControllerModifyVolumeRequest": ("volume_id",),
        "ControllerPublishVolumeRequest": ("volume_id", "node_id"),
        "ControllerUnpublishVolumeRequest": ("volume_id",),
        "CreateSnapshotRequest": ("source_volume_id", "name"),
        "DeleteSnapshotRequest": ("snapshot_id",),
        "NodeStageVolumeRequest": ("volume_id", "staging_target_path"),
        "NodeUnstageVolumeRequest": ("volume_id", "staging_target_path"),
        "NodePublishVolumeRequest": ("volume_id", "target_path"),
        "NodeUnpublishVolumeRequest": ("volume_id", "target_path"),
        "NodeGetVolumeStatsRequest": ("volume_id", "volume_path"),
        "NodeExpandVolumeRequest": ("volume_id", "volume_path"),
    }
)


def check_required_fields(request: Message) -> None:
    """Refuse a request whose id, name or path is empty.

    Raises:
        InvalidArgument: one is.
    """
    for name in REQUIRED_FIELDS.get(request.DESCRIPTOR.name, ()):
        if not getattr(request, name):
            raise InvalidArgument(f"{name} is empty; {request.DESCRIPTOR.name} needs it")
