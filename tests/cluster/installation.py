"""The chart in a cluster with a real kubelet, installed by Helm as a platform engineer does it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tests.cluster import chart_images
from tests.cluster.api import Api, Object, until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import Release
from tests.cluster.worker import PEER_POD_HANDLER, Worker

DRIVER = "caa-csi-block.csi.confidentialcontainers.io"
CONTROLLER_NAMESPACE = "confidential-csi"
NODE_NAMESPACE = "confidential-csi-node"
DIRECT_VOLUMES = "/run/kata-containers/shared/direct-volumes"
PEER_PODS = "/run/peerpod/pods"

_DISKS = "/var/disks"
_DISKS_CLAIM = "disks"
#: The user of the controller, as the chart has it.
_CONTROLLER_USER = 65532


class Installation:
    """The release in one cluster with one worker.

    Args:
        values: what this place needs; all else is the chart's defaults.
    """

    def __init__(self, control_plane: ControlPlane, worker: Worker, values: Mapping[str, object]) -> None:
        self.api: Api = control_plane.api
        self.worker = worker
        self._control_plane = control_plane
        self._release = Release(control_plane)
        self._values = {**chart_images.VALUES, **values}

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, for use outside of the worker."""
        return self._control_plane.kubeconfig

    def prepare(self) -> None:
        """What is there before the chart: the definitions of snapshots, and the peer pods' class."""
        self._control_plane.define_snapshots()
        metadata = {"name": PEER_POD_HANDLER}
        runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": PEER_POD_HANDLER}
        self.api.create({**runtime, "metadata": metadata})

    def install(self) -> None:
        """``helm install``, and wait until all pods work."""
        self._release.install(self._values, wait=False)
        self.provide_storage()
        until(self.is_complete, what="the chart's pods are ready")

    def upgrade(self, **values: object) -> None:
        """``helm upgrade``, and wait until all pods are new ones that work."""
        old = {pod["metadata"]["uid"] for pod in self.pods()}
        self._release.install({**self._values, **values}, wait=False)
        until(
            lambda: self.is_complete() and not old & {pod["metadata"]["uid"] for pod in self.pods()},
            what="the pods were replaced",
        )

    def uninstall(self) -> None:
        """``helm uninstall``, and wait until nothing of it is left but volumes."""
        self._release.uninstall()
        until(lambda: not self._namespaces(), what="the chart's namespaces are gone")

    def provide_storage(self) -> None:
        """What the controller's pods wait for once the chart's namespace is there: nothing."""

    def pods(self) -> list[Object]:
        """The chart's pods."""
        return [*self.api.list("Pod", CONTROLLER_NAMESPACE), *self.api.list("Pod", NODE_NAMESPACE)]

    def node_pod(self) -> Object:
        """The pod of the node plugin."""
        (pod,) = self.api.list("Pod", NODE_NAMESPACE)
        return pod

    def is_registered(self) -> bool:
        """Whether kubelet has told the cluster that the driver is there."""
        node = self.api.find("CSINode", self.worker.name) or {"spec": {"drivers": None}}
        drivers = node["spec"]["drivers"] or []
        return DRIVER in [one["name"] for one in drivers]

    def node_calls(self, volume_id: str) -> list[str]:
        """What kubelet asked the node plugin about a volume, oldest first, since that pod was made."""
        lines = self.worker.container_log(self.node_pod(), "driver")
        entries = (json.loads(line) for line in lines if line.startswith("{"))  # or a library printed it
        calls = (one for one in entries if one["message"] == "rpc" and one.get("volume_id") == volume_id)
        return [call["method"].rpartition("/")[2] for call in calls]

    def described(self, kind: str, name: str) -> str:
        """What ``kubectl describe`` prints."""
        return self._control_plane.kubectl("describe", kind, name)

    def is_complete(self) -> bool:
        """Whether all pods of the chart work, as their owners have noticed, and kubelet knows the driver."""
        pods = self.pods()
        if len(pods) != 3 or not all(map(is_ready, pods)):
            return False
        deployment = self.api.get("Deployment", "confidential-csi-controller", CONTROLLER_NAMESPACE)
        daemon_set = self.api.get("DaemonSet", "confidential-csi-node", NODE_NAMESPACE)
        ready = (deployment["status"].get("readyReplicas"), daemon_set["status"].get("numberReady"))
        return ready == (2, 1) and self.is_registered()

    def _namespaces(self) -> list[Object]:
        found = (self.api.find("Namespace", name) for name in (CONTROLLER_NAMESPACE, NODE_NAMESPACE))
        return [one for one in found if one is not None]


def is_ready(pod: Object) -> bool:
    """Whether all containers of a pod work, and it is not about to end."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


class LocalInstallation(Installation):
    """The release with provider ``local``: disks are files in a volume of the controller."""

    def __init__(self, control_plane: ControlPlane, worker: Worker) -> None:
        values = {"provider": "local", "local": {"claimName": _DISKS_CLAIM}}
        super().__init__(control_plane, worker, values)

    def prepare(self) -> None:
        super().prepare()
        disks = self.worker.outside(_DISKS)
        disks.mkdir()
        os.chown(disks, _CONTROLLER_USER, _CONTROLLER_USER)

    def disk(self, volume: Object) -> Path:
        """The disk of a PersistentVolume, whether or not it is there."""
        handle = volume["spec"]["csi"]["volumeHandle"].removeprefix("local:")
        return self.worker.outside(f"{_DISKS}/volumes/{handle}/disk.raw")

    def provide_storage(self) -> None:
        for manifest in _storage_of_disks():
            self._control_plane.apply(json.dumps(manifest))

    def uninstall(self) -> None:
        super().uninstall()
        self.api.delete("PersistentVolume", _DISKS_CLAIM)
        until(lambda: not self.api.find("PersistentVolume", _DISKS_CLAIM), what="the volume of disks is gone")


def _storage_of_disks() -> list[Object]:
    storage = {"storage": "10Gi"}
    access = {"storageClassName": "", "accessModes": ["ReadWriteMany"]}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": _DISKS_CLAIM},
            "spec": {**access, "capacity": storage, "hostPath": {"path": _DISKS}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": _DISKS_CLAIM, "namespace": CONTROLLER_NAMESPACE},
            "spec": {**access, "volumeName": _DISKS_CLAIM, "resources": {"requests": storage}},
        },
    ]
