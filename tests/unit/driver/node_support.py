"""What the node plugin's tests share: a root as on a worker (tmpfs), requests, and calls without a server."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc

from driver.direct_volumes import DirectVolumes, directory_name
from driver.guests import Guests
from driver.node import NodeService
from driver.one_pod import OnePodWithVolumes
from driver.peer_pods import PeerPodGuard
from driver.pod_sockets import PodSockets
from proto import csi_pb2
from tests.lab.caa import OciMount, attach_scan, container_scan

POD_UID = "11111111-2222-3333-4444-555555555555"
KEY = "default/key/vol1"
CONTEXT = {"cloud-volume-path": "disk-1", "encrypt-type": "luks2", "kbs-key-id": KEY}

NO_CONTEXT = cast(grpc.ServicerContext, object())
"""The service reports by raising alone: any use of its gRPC context fails the test."""


@dataclass(frozen=True)
class Worker:
    """The directories of one node, and node plugins that start on them."""

    root: Path
    kubelet: Path
    pods: Path

    def start(self, *, peer_pods: PeerPodGuard | None = None, one_pod: bool = False) -> NodeService:
        """A plugin as after a (re)start: it knows only what is on disk."""
        volumes = DirectVolumes(self.root)
        volumes.clear_leftovers()
        return NodeService(
            "worker-1",
            volumes,
            Guests(PodSockets(self.pods)),
            peer_pods=peer_pods,
            one_pod=OnePodWithVolumes(volumes) if one_pod else None,
        )

    def target(self, volume: str = "pvc-1", pod_uid: str = POD_UID) -> str:
        """A target path as kubelet makes it, its parent created."""
        parent = self.kubelet / "pods" / pod_uid / "volumes" / "kubernetes.io~csi" / volume
        parent.mkdir(parents=True, exist_ok=True)
        return str(parent / "mount")

    def record(self, target_path: str) -> Path:
        """Where the record of a target path belongs."""
        return self.root / directory_name(target_path)


@contextmanager
def worker() -> Iterator[Worker]:
    """A node whose root is on tmpfs, as in production, whatever the machine's own file system is."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        root = Path(folder) / "direct-volumes"
        root.mkdir()
        yield Worker(root, Path(folder) / "k", Path(folder) / "pods")


def mount_capability(
    *, fs_type: str = "ext4", mode: csi_pb2.VolumeCapability.AccessMode.Mode.ValueType | None = None
) -> csi_pb2.VolumeCapability:
    """A file-system capability, ReadWriteOnce unless told otherwise."""
    access_modes = csi_pb2.VolumeCapability.AccessMode
    return csi_pb2.VolumeCapability(
        mount=csi_pb2.VolumeCapability.MountVolume(fs_type=fs_type),
        access_mode=access_modes(mode=access_modes.SINGLE_NODE_WRITER if mode is None else mode),
    )


def publish(
    node: NodeService,
    target_path: str,
    *,
    volume_id: str = "local:vol-1",
    context: Mapping[str, str] | None = None,
    capability: csi_pb2.VolumeCapability | None = None,
    readonly: bool = False,
    secrets: Mapping[str, str] | None = None,
    call: grpc.ServicerContext = NO_CONTEXT,
) -> None:
    """NodePublishVolume."""
    request = csi_pb2.NodePublishVolumeRequest(
        volume_id=volume_id,
        target_path=target_path,
        volume_capability=mount_capability() if capability is None else capability,
        readonly=readonly,
        secrets=secrets,
        volume_context=CONTEXT if context is None else context,
    )
    node.NodePublishVolume(request, call)


def unpublish(node: NodeService, target_path: str, *, volume_id: str = "local:vol-1") -> None:
    """NodeUnpublishVolume."""
    request = csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=target_path)
    node.NodeUnpublishVolume(request, NO_CONTEXT)


def expand(
    plugin: NodeService,
    path: str,
    *,
    volume_id: str = "local:vol-1",
    required: int = 0,
    limit: int = 0,
    timeout: float = 5,
) -> int:
    """NodeExpandVolume within ``timeout`` seconds; the capacity it reports, in bytes."""
    request = csi_pb2.NodeExpandVolumeRequest(
        volume_id=volume_id,
        volume_path=path,
        capacity_range=csi_pb2.CapacityRange(required_bytes=required, limit_bytes=limit),
    )
    return plugin.NodeExpandVolume(request, waiting(timeout)).capacity_bytes


def stats(
    plugin: NodeService, path: str, *, volume_id: str = "local:vol-1", timeout: float = 5
) -> csi_pb2.NodeGetVolumeStatsResponse:
    """NodeGetVolumeStats within ``timeout`` seconds."""
    request = csi_pb2.NodeGetVolumeStatsRequest(volume_id=volume_id, volume_path=path)
    return plugin.NodeGetVolumeStats(request, waiting(timeout))


def waiting(seconds: float) -> grpc.ServicerContext:
    """The context of a call whose caller waits that long; nothing else of it may be used."""

    class Waiting:
        def time_remaining(self) -> float:
            return seconds

    return cast(grpc.ServicerContext, Waiting())


def what_caa_sees(root: Path, *targets: str, pod_uid: str = "") -> dict[str, dict[str, str]]:
    """Per target path, what the guest is told of its volume once CAA has attached all it found.

    Fails if CAA's two scans count differently, that is, if disks end up on wrong LUNs.
    """
    mounts = [OciMount(source=target, destination=target) for target in targets]
    volumes, counted = container_scan(root, mounts, pod_uid=pod_uid)
    assert counted == attach_scan(root, pod_uid=pod_uid)
    return {volume.pop("mount_point"): volume for volume in volumes.values()}


def record(node: Worker, target_path: str) -> dict[str, Any]:
    """The ``mountInfo.json`` of a target path."""
    content: dict[str, Any] = json.loads((node.record(target_path) / "mountInfo.json").read_text())
    return content


def names(directory: Path) -> set[str]:
    """The entries of a directory."""
    return {entry.name for entry in directory.iterdir()}
