"""A cluster on which nothing is wrong, as objects in a real API server, and the strict EC2 behind it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from cli.doctor.catalog import CHECKS
from cli.doctor.model import Result, Verdict, run
from cli.kubernetes_api import KubernetesApi
from cli.scene import DRIVER, Cloud, Paths, Scene
from providers.deadline import Deadline
from providers.interface import Encryption, Volume, VolumeRequest
from tests.cluster.api import Api, Object
from tests.contract.aws_backend import AwsBackend

NODE: Final = "worker-1"
SYSTEM: Final = "confidential-containers-system"
KEY_ID: Final = "default/volume-key/ledger"
MACHINE: Final = "i-0123456789abcdef0"
_DEPLOY: Final = Path(__file__).parents[2] / "deploy"
_CLUSTER_CHECKS: Final = tuple(
    check for check in CHECKS[next(n for n, one in enumerate(CHECKS) if one.id == "cluster-api") :]
)
_MIB: Final = 2**20

#: In the order in which they are made; deleted in the other.
_KINDS: Final = (
    "RuntimeClass",
    "CSIDriver",
    "CSINode",
    "StorageClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "VolumeAttachment",
    "Deployment",
    "DaemonSet",
)


@dataclass
class Cluster:
    """One cluster and its cloud. :meth:`reset` makes both healthy again."""

    api: Api
    kubeconfig: Path
    folder: Path
    backend: AwsBackend = field(init=False)
    volume: Volume = field(init=False)
    now: Callable[[], float] = time.time

    def reset(self) -> None:
        """Everything as it should be: one encrypted volume, in use by one peer pod."""
        self._clear()
        self.now = time.time
        self.backend = AwsBackend(self.folder)
        self.volume = self.make_volume("pvc-1")
        provider: Any = self.backend.connect()
        provider.set_published_node(self.volume.handle, f"node/{NODE}", "", Deadline.after(30))
        self.attach(self.volume)
        for namespace in ("default", SYSTEM, "confidential-csi", "confidential-csi-node"):
            self._ensure_namespace(namespace)
        for manifest in self._manifests():
            self.create(manifest)

    def make_volume(self, name: str) -> Volume:
        """A new encrypted disk, as the controller makes it."""
        request = VolumeRequest(name, 1024 * _MIB, Encryption("luks2", KEY_ID), "ext4")
        volume = self.backend.connect().create_volume(request, Deadline.after(30))
        self.backend.cloud.settle()
        return volume

    def attach(self, volume: Volume, machine: str = MACHINE) -> None:
        """A machine gets the disk; an empty name: it loses it."""
        self.backend.cloud.attach(volume.disk_id, machine)
        self.backend.cloud.settle()

    def create(self, manifest: Object) -> None:
        """Create an object, and give it the status of its manifest."""
        self.api.create(manifest)
        if "status" in manifest:
            metadata = manifest["metadata"]
            change = {"status": manifest["status"]}
            self.api.patch(
                manifest["kind"],
                metadata["name"],
                change,
                metadata.get("namespace", "default"),
                part="status",
            )

    def recreate(
        self, kind: str, name: str, change: Callable[[Object], object], namespace: str = "default"
    ) -> None:
        """Change what can't be changed in place."""
        manifest = self.api.get(kind, name, namespace)
        for member in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
            manifest["metadata"].pop(member, None)
        self.delete(kind, name, namespace)
        change(manifest)
        self.create(manifest)

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        """Delete it at once, whatever wants to be asked first."""
        if self.api.find(kind, name, namespace) is not None:
            self.api.patch(kind, name, {"metadata": {"finalizers": None}}, namespace)
            self.api.delete(kind, name, namespace, gracePeriodSeconds="0")

    def scene(self) -> Scene:
        """For the doctor, on a laptop with a kubeconfig and the cloud's credentials."""
        nowhere = Path("/nonexistent")
        return Scene(
            Paths(kubelet_root=nowhere, hypervisor_socket=nowhere),
            cluster=KubernetesApi.connect(self.kubeconfig, None),
            cloud=Cloud(self.backend.connect()),
            cluster_wanted=True,
            cloud_wanted=True,
            now=self.now,
        )

    def examine(self) -> list[Result]:
        """What the checks of cluster and cloud say."""
        scene = self.scene()
        return [
            result
            for check in _CLUSTER_CHECKS
            # Its permissions and clock have tests of their own, in tests/unit/cli.
            if check.id not in ("cloud-identity", "cloud-permissions", "cloud-clock")
            for result in run(check, scene)
        ]

    def problems(self) -> dict[str, Result]:
        """What is neither fine nor skipped, by check."""
        return {one.check: one for one in self.examine() if one.verdict in (Verdict.WARN, Verdict.FAIL)}

    def _clear(self) -> None:
        for kind in reversed(_KINDS):
            for one in self.api.list(kind):
                self.delete(kind, one["metadata"]["name"], one["metadata"].get("namespace", "default"))

    def _ensure_namespace(self, name: str) -> None:
        if self.api.find("Namespace", name) is None:
            self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        if self.api.find("ServiceAccount", "default", name) is None:
            account = {"name": "default", "namespace": name}
            self.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})

    def _manifests(self) -> list[Object]:
        volume_id = f"aws:{self.volume.handle}"
        return [
            _object("node.k8s.io/v1", "RuntimeClass", "kata-remote", handler="kata-remote"),
            *yaml.safe_load_all((_DEPLOY / "csi-driver.yaml").read_text()),
            _object("storage.k8s.io/v1", "CSINode", NODE, spec={"drivers": [_registration()]}),
            _object(
                "storage.k8s.io/v1",
                "StorageClass",
                "encrypted",
                provisioner=DRIVER,
                parameters={"encrypt-type": "luks2", "kbs-key-id": KEY_ID},
            ),
            persistent_volume("pvc-1", volume_id, "ledger"),
            claim("ledger", "pvc-1"),
            pod("ledger-0", claims=("ledger",)),
            _object(
                "storage.k8s.io/v1",
                "VolumeAttachment",
                "csi-1",
                spec={"attacher": DRIVER, "nodeName": NODE, "source": {"persistentVolumeName": "pvc-1"}},
                status={"attached": True},
            ),
            *_workloads(),
            cloud_api_adaptor(),
        ]


def persistent_volume(name: str, volume_id: str, claim_name: str, **attributes: str) -> Object:
    """A bound PersistentVolume of the class ``encrypted``; with ``attributes``, those alone."""
    return _object(
        "v1",
        "PersistentVolume",
        name,
        spec={
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "encrypted",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": "default",
                "name": claim_name,
            },
            "csi": {
                "driver": DRIVER,
                "volumeHandle": volume_id,
                "volumeAttributes": attributes or {"encrypt-type": "luks2", "kbs-key-id": KEY_ID},
            },
        },
        status={"phase": "Bound"},
    )


def claim(name: str, volume_name: str) -> Object:
    """A claim that is bound to a PersistentVolume."""
    return _object(
        "v1",
        "PersistentVolumeClaim",
        name,
        namespace="default",
        spec={
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "encrypted",
            "volumeName": volume_name,
            "resources": {"requests": {"storage": "1Gi"}},
        },
        status={"phase": "Bound" if volume_name else "Pending"},
    )


def pod(
    name: str,
    *,
    claims: tuple[str, ...] = (),
    runtime_class: str | None = "kata-remote",
    namespace: str = "default",
    labels: dict[str, str] | None = None,
) -> Object:
    """A running pod on the one node."""
    specification: Object = {
        "nodeName": NODE,
        "containers": [{"name": "main", "image": "busybox"}],
        "volumes": [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims],
    }
    if runtime_class is not None:
        specification["runtimeClassName"] = runtime_class
    return _object(
        "v1",
        "Pod",
        name,
        namespace=namespace,
        labels=labels or {},
        spec=specification,
        status={"phase": "Running"},
    )


def cloud_api_adaptor(*, sees_volumes: bool = True) -> Object:
    """Its DaemonSet, as its chart has it (``install/charts/peerpods``), shortened."""
    path = "/run/kata-containers/shared/direct-volumes"
    container: Object = {
        "name": "cloud-api-adaptor-con",
        "image": "quay.io/confidential-containers/cloud-api-adaptor:v1",
    }
    specification: Object = {"containers": [container]}
    if sees_volumes:
        container["volumeMounts"] = [{"name": "direct-volumes", "mountPath": path}]
        specification["volumes"] = [{"name": "direct-volumes", "hostPath": {"path": path}}]
    labels = {"app": "cloud-api-adaptor"}
    return _object(
        "apps/v1",
        "DaemonSet",
        "cloud-api-adaptor-daemonset",
        namespace=SYSTEM,
        spec={
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": specification},
        },
    )


def _workloads() -> list[Object]:
    """Controller and node plugin of ``deploy/``, all of them ready, and the node plugin's pod."""
    found: list[Object] = []
    for file in ("controller-aws.yaml", "daemonset-aws.yaml"):
        for manifest in yaml.safe_load_all((_DEPLOY / file).read_text()):
            if manifest["kind"] == "Deployment":
                count = manifest["spec"]["replicas"]
                found.append({**manifest, "status": {"replicas": count, "readyReplicas": count}})
            elif manifest["kind"] == "DaemonSet":
                status = dict.fromkeys(
                    ("desiredNumberScheduled", "currentNumberScheduled", "numberReady"), 1
                ) | {"numberMisscheduled": 0}
                found.append({**manifest, "status": status})
                labels = copy.deepcopy(manifest["metadata"]["labels"])
                namespace = manifest["metadata"]["namespace"]
                found.append(pod("node-plugin", runtime_class=None, namespace=namespace, labels=labels))
    return found


def _registration() -> Object:
    return {"name": DRIVER, "nodeID": f"node/{NODE}", "topologyKeys": None}


def _object(
    api_version: str,
    kind: str,
    name: str,
    *,
    namespace: str = "",
    labels: dict[str, str] | None = None,
    **rest: Any,
) -> Object:
    metadata: Object = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}
