"""Asks the driver about one thing that a manifest wants of a volume, with all others left usual."""

from __future__ import annotations

from typing import Final

from driver.capabilities import DEFAULT_FS_TYPE, UnsupportedCapability, check_capability
from proto import csi_pb2

_Mode = csi_pb2.VolumeCapability.AccessMode
_Mount = csi_pb2.VolumeCapability.MountVolume

#: As external-provisioner passes them on to a driver without SINGLE_NODE_MULTI_WRITER.
_MODES: Final = {
    "ReadWriteOnce": _Mode.SINGLE_NODE_WRITER,
    "ReadWriteOncePod": _Mode.SINGLE_NODE_SINGLE_WRITER,
    "ReadOnlyMany": _Mode.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": _Mode.MULTI_NODE_MULTI_WRITER,
}


def why_no_file_system(fs_type: str, *, encrypted: bool) -> str | None:
    """Why a volume can't have this file system; None if it can."""
    return _refusal(
        csi_pb2.VolumeCapability(mount=_Mount(fs_type=fs_type), access_mode=_usual()), encrypted=encrypted
    )


def why_no_mount_option(option: str) -> str | None:
    """Why the driver refuses a mount option."""
    return _refusal(
        csi_pb2.VolumeCapability(
            mount=_Mount(fs_type=DEFAULT_FS_TYPE, mount_flags=[option]), access_mode=_usual()
        )
    )


def why_no_access_mode(mode: str) -> str | None:
    """Why the driver refuses an access mode of Kubernetes."""
    if mode not in _MODES:
        return f"{mode[:40]!r} is no access mode of Kubernetes; use ReadWriteOnce or ReadWriteOncePod"
    refusal = _refusal(
        csi_pb2.VolumeCapability(mount=_Mount(fs_type=DEFAULT_FS_TYPE), access_mode=_Mode(mode=_MODES[mode]))
    )
    return None if refusal is None else f"{mode}: {refusal}"


def why_no_block_volume() -> str | None:
    """Why the driver refuses raw devices."""
    return _refusal(
        csi_pb2.VolumeCapability(block=csi_pb2.VolumeCapability.BlockVolume(), access_mode=_usual())
    )


def _usual() -> csi_pb2.VolumeCapability.AccessMode:
    return _Mode(mode=_Mode.SINGLE_NODE_WRITER)


def _refusal(capability: csi_pb2.VolumeCapability, *, encrypted: bool = False) -> str | None:
    try:
        check_capability(capability, encrypted=encrypted)
    except UnsupportedCapability as error:
        return str(error)
    return None
