"""Which volume capabilities (access type, access mode, file system, mount flags) the guest can honor."""

from __future__ import annotations

from collections.abc import Iterable

from driver.errors import InvalidArgumentError
from proto import csi_pb2

DEFAULT_FS_TYPE = "ext4"

#: File systems the guest can make. With encryption only ext4: CDH makes and checks no other.
FS_TYPES = ("ext4", "xfs")
ENCRYPTED_FS_TYPES = ("ext4",)

_Mode = csi_pb2.VolumeCapability.AccessMode

#: One disk goes to one PodVM. SINGLE_NODE_MULTI_WRITER stays out: two pods of a node are two VMs.
ACCESS_MODES = frozenset({_Mode.SINGLE_NODE_WRITER, _Mode.SINGLE_NODE_SINGLE_WRITER})

#: Mount flags do not travel to the guest (CAA's annotation has no field for them). These name what
#: the guest does in any case: it mounts read-write with nodev and nosuid.
MOUNT_FLAGS = frozenset({"rw", "nodev", "nosuid"})


class UnsupportedCapabilityError(InvalidArgumentError):
    """A well-formed capability that this driver does not offer."""


def check_capability(capability: csi_pb2.VolumeCapability) -> str:
    """Check one capability and return its file system type, the default filled in.

    Raises:
        InvalidArgumentError: access type or access mode is missing.
        UnsupportedCapabilityError: it is well-formed, but not offered.
    """
    access_type = capability.WhichOneof("access_type")
    if access_type is None:
        raise InvalidArgumentError("volume_capability: the access type is missing; expected 'mount'")
    if not capability.HasField("access_mode") or capability.access_mode.mode == _Mode.UNKNOWN:
        raise InvalidArgumentError(
            "volume_capability: the access mode is missing; expected SINGLE_NODE_WRITER (ReadWriteOnce) "
            "or SINGLE_NODE_SINGLE_WRITER (ReadWriteOncePod)"
        )
    if access_type == "block":
        raise UnsupportedCapabilityError(
            "block volumes are not supported: the guest mounts a file system; use volumeMode Filesystem"
        )
    mode = capability.access_mode.mode
    if mode not in ACCESS_MODES:
        name = _Mode.Mode.Name(mode) if mode in _Mode.Mode.values() else str(mode)
        raise UnsupportedCapabilityError(
            f"access mode {name} is not supported: a disk is attached to one PodVM at a time; "
            "use ReadWriteOnce or ReadWriteOncePod"
        )
    refused = sorted(set(capability.mount.mount_flags) - MOUNT_FLAGS)
    if refused:
        hint = " (for a read-only mount set readOnly in the pod's volume)" if "ro" in refused else ""
        raise UnsupportedCapabilityError(
            f"mount option {refused[0][:64]!r} can't be honored in the guest, which always mounts with "
            f"nodev,nosuid; remove it from mountOptions{hint}"
        )
    fs_type = capability.mount.fs_type or DEFAULT_FS_TYPE
    if fs_type not in FS_TYPES:
        raise UnsupportedCapabilityError(
            f"file system {fs_type[:64]!r} is not supported; expected one of {', '.join(FS_TYPES)}"
        )
    return fs_type


def check_capabilities(capabilities: Iterable[csi_pb2.VolumeCapability]) -> str:
    """Check all capabilities of a request, and return the one file system type they ask for.

    Any one that is not supported refuses them all.

    Raises:
        InvalidArgumentError: there is none, one is malformed, or they ask for different file systems.
        UnsupportedCapabilityError: one is not offered.
    """
    fs_types = {check_capability(capability) for capability in capabilities}
    if not fs_types:
        raise InvalidArgumentError("volume_capabilities is empty; expected at least one")
    if len(fs_types) > 1:
        raise InvalidArgumentError(f"volume_capabilities ask for several file systems: {sorted(fs_types)}")
    return fs_types.pop()


def check_encrypted_fs_type(fs_type: str) -> None:
    """Refuse a file system that can't be combined with encryption.

    Raises:
        UnsupportedCapabilityError: it can't.
    """
    if fs_type not in ENCRYPTED_FS_TYPES:
        raise UnsupportedCapabilityError(
            f"file system {fs_type!r} can't be combined with encrypt-type: expected "
            f"{', '.join(ENCRYPTED_FS_TYPES)}"
        )
