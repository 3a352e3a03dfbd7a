"""What the driver itself says to what the admission policies look at, asked as Kubernetes asks it."""

from __future__ import annotations

from pathlib import Path

from driver.capabilities import DEFAULT_FS_TYPE, check_capability
from driver.encryption import checked_encryption
from driver.errors import InvalidArgument
from driver.parameters import parse_parameters
from proto import csi_pb2
from providers.aws import AwsProvider
from providers.azure import AzureProvider
from providers.errors import InvalidParameterError
from providers.interface import BlockVolumeProvider
from providers.libvirt import LibvirtProvider
from providers.local import LocalProvider
from tests.cluster.admission.policies import FS_TYPE
from tests.cluster.api import Object

_UUID = "11111111-2222-3333-4444-555555555555"

#: As external-provisioner, external-attacher and kubelet tell the driver of a claim's or a volume's modes.
_Mode = csi_pb2.VolumeCapability.AccessMode
MODES = {
    "ReadWriteOnce": _Mode.SINGLE_NODE_WRITER,
    "ReadWriteOncePod": _Mode.SINGLE_NODE_WRITER,
    "ReadOnlyMany": _Mode.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": _Mode.MULTI_NODE_MULTI_WRITER,
}


def provider_of(name: str, folder: Path) -> BlockVolumeProvider:
    if name == "aws":
        return AwsProvider.from_settings({"CONFIDENTIAL_CSI_AWS_REGION": "eu-central-1"})
    if name == "azure":
        return AzureProvider.from_settings(
            {
                "CONFIDENTIAL_CSI_AZURE_SUBSCRIPTION_ID": _UUID,
                "CONFIDENTIAL_CSI_AZURE_RESOURCE_GROUP": "group",
            }
        )
    if name == "libvirt":
        return LibvirtProvider.from_settings({"LIBVIRT_URI": "test:///default"})
    return LocalProvider.from_settings({"CONFIDENTIAL_CSI_LOCAL_DIRECTORY": str(folder)})


def _capability(fs_type: str, flags: list[str], mode: _Mode.Mode.ValueType) -> csi_pb2.VolumeCapability:
    return csi_pb2.VolumeCapability(
        mount=csi_pb2.VolumeCapability.MountVolume(fs_type=fs_type, mount_flags=flags),
        access_mode=csi_pb2.VolumeCapability.AccessMode(mode=mode),
    )


def class_refusal(provider: BlockVolumeProvider, manifest: Object) -> str | None:
    """What the driver says to a volume of such a class, asked as external-provisioner asks."""
    parameters = manifest["parameters"]
    try:
        spec = parse_parameters(parameters, provider, ("aws", "azure", "libvirt", "local"))
        fs_type = parameters.get(FS_TYPE) or parameters.get("fsType") or DEFAULT_FS_TYPE
        flags = manifest.get("mountOptions", [])
        access = check_capability(
            _capability(fs_type, flags, _Mode.SINGLE_NODE_WRITER), encrypted=spec.encryption is not None
        )
    except (InvalidArgument, InvalidParameterError) as refusal:
        return str(refusal)
    given = parameters.get("fsType")
    return None if given in (None, access.fs_type) else f"fsType is {given!r}, not {access.fs_type!r}"


def volume_refusal(manifest: Object) -> str | None:
    """What the driver says to a publish of such a volume."""
    spec = manifest["spec"]
    if spec.get("volumeMode") == "Block":
        return "block"
    try:
        encrypted = checked_encryption(spec["csi"]["volumeAttributes"]) is not None
        for mode in spec["accessModes"]:
            capability = _capability(spec["csi"].get("fsType", ""), spec.get("mountOptions", []), MODES[mode])
            check_capability(capability, encrypted=encrypted)
    except InvalidArgument as refusal:
        return str(refusal)
    return None
