"""Which volume capabilities this driver can honor: one answer for the controller and the node.

A volume is one disk in one PodVM, mounted by the guest: no block mode, no second node, and no second
writer on one node (two pods on one node are two VMs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driver.errors import InvalidArgument
from proto import csi_pb2

DEFAULT_FS_TYPE = "ext4"
SUPPORTED_FS_TYPES = frozenset({"ext4", "xfs"})
ENCRYPTED_FS_TYPES = frozenset({"ext4"})
"""CDH's SecureMount, and so the guest agent, knows only ext4 inside LUKS."""

HONORED_MOUNT_FLAGS = frozenset({"ro", "nodev", "nosuid", "noatime"})
"""``ro`` as in a read-only publish; the guest always applies the others. Nothing carries more of them
into the guest (CAA's annotation has no mount options), so anything else would be dropped in silence."""

_Mode = csi_pb2.VolumeCapability.AccessMode
_WRITER_MODES = frozenset({_Mode.SINGLE_NODE_WRITER, _Mode.SINGLE_NODE_SINGLE_WRITER})
_READER_MODES = frozenset({_Mode.SINGLE_NODE_READER_ONLY})


class UnsupportedCapability(InvalidArgument):
    """A well-formed capability that no volume of this driver has."""


@dataclass(frozen=True)
class MountAccess:
    """A capability that can be honored."""

    fs_type: str
    """As asked for, or the default; lower case."""
    read_only: bool
    mount_flags: tuple[str, ...]
    """Of :data:`HONORED_MOUNT_FLAGS`, sorted, without duplicates and without ``ro``."""


def check_capability(capability: csi_pb2.VolumeCapability, *, encrypted: bool) -> MountAccess:
    """What one capability asks for.

    Raises:
        InvalidArgument: it has no access type or no access mode.
        UnsupportedCapability: its access type, mode, file system or a mount flag can't be honored.
    """
    access_type = capability.WhichOneof("access_type")
    if access_type is None:
        raise InvalidArgument("the volume capability has no access type; it needs 'mount'")
    mode = capability.access_mode.mode
    if mode == _Mode.UNKNOWN:
        raise InvalidArgument("the volume capability has no access mode; it needs SINGLE_NODE_WRITER")
    if access_type == "block":
        raise UnsupportedCapability(
            "volumeMode Block is not supported: the guest hands containers a mounted file system; "
            "use volumeMode Filesystem"
        )
    if mode not in _WRITER_MODES | _READER_MODES:
        known = _Mode.Mode.Name(mode) if mode in _Mode.Mode.values() else f"number {mode}"
        raise UnsupportedCapability(
            f"access mode {known} is not supported: one disk can be in one PodVM only; "
            "use ReadWriteOnce or ReadWriteOncePod"
        )
    fs_type = capability.mount.fs_type or DEFAULT_FS_TYPE
    allowed = ENCRYPTED_FS_TYPES if encrypted else SUPPORTED_FS_TYPES
    if fs_type not in allowed:
        raise UnsupportedCapability(
            f"fsType {fs_type[:40]!r} is not supported on {'an encrypted' if encrypted else 'a plain'} "
            f"volume; use one of: {', '.join(sorted(allowed))}"
        )
    flags = set(capability.mount.mount_flags)
    unknown = sorted(flags - HONORED_MOUNT_FLAGS)
    if unknown:
        name = unknown[0].partition("=")[0]  # the specification lets a value be sensitive
        raise UnsupportedCapability(
            f"mount option {name[:20]!r} can't be honored in the guest; remove it from mountOptions "
            f"(supported: {', '.join(sorted(HONORED_MOUNT_FLAGS))})"
        )
    return MountAccess(
        fs_type=fs_type,
        read_only=mode in _READER_MODES or "ro" in flags,
        mount_flags=tuple(sorted(flags - {"ro"})),
    )


def check_capabilities(
    capabilities: Sequence[csi_pb2.VolumeCapability], *, encrypted: bool
) -> tuple[MountAccess, ...]:
    """What a list of capabilities asks for; one that can't be honored spoils the list (field case A10).

    Raises:
        InvalidArgument: the list is empty or an entry is incomplete.
        UnsupportedCapability: an entry can't be honored.
    """
    if not capabilities:
        raise InvalidArgument("volume_capabilities is empty; it needs at least one capability")
    return tuple(check_capability(capability, encrypted=encrypted) for capability in capabilities)
