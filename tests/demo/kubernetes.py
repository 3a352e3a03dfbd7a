"""Plays Kubernetes over the real sockets: the provisioner, resizer and snapshotter sidecars, and kubelet.

The calls, their order and their contents follow the sidecars and kubelet; nothing here knows the
driver's insides.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import yaml

from proto import csi_pb2, csi_pb2_grpc

_TIMEOUT_SECONDS = 120
_PAUSE_SECONDS = 0.5
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9}

Manifest = Mapping[str, Any]


def load_manifest(path: Path) -> Manifest:
    """One Kubernetes object from a YAML file."""
    manifest: Manifest = yaml.safe_load(path.read_text())
    return manifest


def quantity_bytes(text: str) -> int:
    """A Kubernetes quantity such as ``64Mi`` in bytes."""
    match = re.fullmatch(r"([0-9]+)([A-Za-z]*)", text)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"not a quantity this demo reads: {text!r}")
    return int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class PersistentVolume:
    """What the provisioner puts into a PersistentVolume."""

    name: str
    volume_handle: str
    attributes: Mapping[str, str]
    capacity_bytes: int
    fs_type: str


def _capability(fs_type: str) -> csi_pb2.VolumeCapability:
    return csi_pb2.VolumeCapability(
        mount=csi_pb2.VolumeCapability.MountVolume(fs_type=fs_type),
        access_mode=csi_pb2.VolumeCapability.AccessMode(
            mode=csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
        ),
    )


class ControlPlane:
    """The sidecars beside the controller plugin."""

    def __init__(self, socket: Path) -> None:
        self._controller = csi_pb2_grpc.ControllerStub(grpc.insecure_channel(f"unix://{socket}"))

    def provision(self, storage_class: Manifest, claim: Manifest, snapshot_id: str = "") -> PersistentVolume:
        """Create the claim's volume, from a snapshot if one is named."""
        name = f"pvc-{uuid.uuid4()}"
        parameters = {
            **storage_class["parameters"],
            "csi.storage.k8s.io/pvc/name": claim["metadata"]["name"],
            "csi.storage.k8s.io/pvc/namespace": claim["metadata"]["namespace"],
            "csi.storage.k8s.io/pv/name": name,
        }
        request = csi_pb2.CreateVolumeRequest(
            name=name,
            capacity_range=csi_pb2.CapacityRange(
                required_bytes=quantity_bytes(claim["spec"]["resources"]["requests"]["storage"])
            ),
            volume_capabilities=[_capability("ext4")],
            parameters=parameters,
        )
        if snapshot_id:
            request.volume_content_source.snapshot.snapshot_id = snapshot_id
        volume = self._controller.CreateVolume(request, timeout=_TIMEOUT_SECONDS).volume
        attributes = {**volume.volume_context, "storage.kubernetes.io/csiProvisionerIdentity": "demo"}
        return PersistentVolume(name, volume.volume_id, attributes, volume.capacity_bytes, "ext4")

    def expand(self, volume: PersistentVolume, size_bytes: int) -> csi_pb2.ControllerExpandVolumeResponse:
        """What the resizer calls when the claim asks for more."""
        return self._controller.ControllerExpandVolume(
            csi_pb2.ControllerExpandVolumeRequest(
                volume_id=volume.volume_handle,
                capacity_range=csi_pb2.CapacityRange(required_bytes=size_bytes),
                volume_capability=_capability(volume.fs_type),
            ),
            timeout=_TIMEOUT_SECONDS,
        )

    def snapshot(self, volume: PersistentVolume) -> csi_pb2.Snapshot:
        """What the snapshotter calls for a VolumeSnapshot."""
        return self._controller.CreateSnapshot(
            csi_pb2.CreateSnapshotRequest(
                source_volume_id=volume.volume_handle, name=f"snapshot-{uuid.uuid4()}"
            ),
            timeout=_TIMEOUT_SECONDS,
        ).snapshot

    def delete_snapshot(self, snapshot_id: str) -> None:
        """What the snapshotter calls when the VolumeSnapshot is deleted."""
        self._controller.DeleteSnapshot(
            csi_pb2.DeleteSnapshotRequest(snapshot_id=snapshot_id), timeout=_TIMEOUT_SECONDS
        )

    def delete(self, volume: PersistentVolume) -> None:
        """What the provisioner calls when a released volume's policy is Delete."""
        self._controller.DeleteVolume(
            csi_pb2.DeleteVolumeRequest(volume_id=volume.volume_handle), timeout=_TIMEOUT_SECONDS
        )


class Kubelet:
    """One node's kubelet, with its own root directory."""

    def __init__(self, socket: Path, root: Path) -> None:
        self._node = csi_pb2_grpc.NodeStub(grpc.insecure_channel(f"unix://{socket}"))
        self._root = root

    def target_path(self, pod_uid: str, volume: PersistentVolume) -> str:
        """Where kubelet wants the volume of that pod."""
        return str(self._root / "pods" / pod_uid / "volumes/kubernetes.io~csi" / volume.name / "mount")

    def publish(self, pod: Manifest, pod_uid: str, volume: PersistentVolume) -> str:
        """Publish the volume for the pod; returns its target path."""
        target = self.target_path(pod_uid, volume)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        context = {
            **volume.attributes,
            "csi.storage.k8s.io/pod.name": pod["metadata"]["name"],
            "csi.storage.k8s.io/pod.namespace": pod["metadata"]["namespace"],
            "csi.storage.k8s.io/pod.uid": pod_uid,
            "csi.storage.k8s.io/serviceAccount.name": "default",
            "csi.storage.k8s.io/ephemeral": "false",
        }
        self._node.NodePublishVolume(
            csi_pb2.NodePublishVolumeRequest(
                volume_id=volume.volume_handle,
                target_path=target,
                volume_capability=_capability(volume.fs_type),
                volume_context=context,
            ),
            timeout=_TIMEOUT_SECONDS,
        )
        return target

    def expand(self, volume: PersistentVolume, target: str, size_bytes: int) -> int:
        """What kubelet calls for a volume that was grown; the capacity the node reports, in bytes.

        Again and again, as kubelet does, where the guest does not see its disk's new size yet.
        """
        request = csi_pb2.NodeExpandVolumeRequest(
            volume_id=volume.volume_handle,
            volume_path=target,
            capacity_range=csi_pb2.CapacityRange(required_bytes=size_bytes),
            volume_capability=_capability(volume.fs_type),
        )
        give_up = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                return self._node.NodeExpandVolume(request, timeout=_TIMEOUT_SECONDS).capacity_bytes
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > give_up:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def stats(self, volume: PersistentVolume, target: str) -> csi_pb2.NodeGetVolumeStatsResponse:
        """What kubelet asks now and then for its metrics."""
        return self._node.NodeGetVolumeStats(
            csi_pb2.NodeGetVolumeStatsRequest(volume_id=volume.volume_handle, volume_path=target),
            timeout=_TIMEOUT_SECONDS,
        )

    def unpublish(self, volume: PersistentVolume, target: str) -> None:
        """Unpublish, then remove what kubelet itself made."""
        self._node.NodeUnpublishVolume(
            csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume.volume_handle, target_path=target),
            timeout=_TIMEOUT_SECONDS,
        )
