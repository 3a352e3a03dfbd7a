"""The driver as it is deployed in the cluster tests: our chart, two workers, and where its disks are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.api import Object, until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.pod_identity import pod_identity
from tests.cluster.release import Release
from tests.cluster.stand_in_worker import StandInWorker
from tests.fakes.ec2 import Bucket, Cloud, Ec2Server, Rules
from tests.tools.own_folders import own_folder

CONTROLLERS = "confidential-csi"
ENCRYPTED = "confidential-csi-encrypted"
PLAIN = "confidential-csi-plain"
WORKERS = ("worker-a", "worker-b")
ZONES = {"worker-a": "us-east-1a", "worker-b": "us-east-1b"}

#: An EC2 that is as slow to show what it did, and throttles, as the bench's; quicker to make a disk.
EC2_RULES = Rules(
    lag=0.3,
    creating=0.5,
    buckets={"CreateVolume": Bucket(100, 50.0), "DescribeVolumes": Bucket(100, 20.0)},
)


class Disks(ABC):
    """What the provider has, seen from behind it."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The CSI names of all disks, and how many bytes each has."""

    def names(self) -> set[str]:
        """The CSI names of all disks."""
        return set(self.sizes())

    @abstractmethod
    def snapshots(self) -> int:
        """How many snapshots there are."""

    @abstractmethod
    def detach_all(self) -> None:
        """No machine has a disk any more."""


@dataclass(frozen=True)
class LocalDisks(Disks):
    """Files in a directory."""

    directory: Path

    def sizes(self) -> dict[str, int]:
        return {
            entry.name.removeprefix("csi-vol-"): (entry / "disk.raw").stat().st_size
            for entry in self.directory.glob("volumes/*")
        }

    def snapshots(self) -> int:
        return len(list(self.directory.glob("snapshots/*")))

    def detach_all(self) -> None:
        """None was attached."""


@dataclass(frozen=True)
class Ec2Disks(Disks):
    """The strict EC2's."""

    cloud: Cloud

    def sizes(self) -> dict[str, int]:
        volumes = self.cloud.existing_volumes()
        sizes = {volume.now.tags["caa-csi-volume-id"]: volume.now.size << 30 for volume in volumes}
        assert len(sizes) == len(volumes), "two disks of one name"
        return sizes

    def snapshots(self) -> int:
        return len(self.cloud.existing_snapshots())

    def detach_all(self) -> None:
        for volume in self.cloud.existing_volumes():
            self.cloud.attach(volume.volume_id, "")


@dataclass(frozen=True)
class Deployment:
    """The chart, installed and running."""

    control_plane: ControlPlane
    release: Release
    workers: dict[str, StandInWorker]
    disks: Disks
    values: dict[str, object] = field(default_factory=dict)

    @property
    def cloud(self) -> Cloud:
        """The strict EC2; only of the deployment on it."""
        assert isinstance(self.disks, Ec2Disks)
        return self.disks.cloud

    def controllers(self) -> list[Object]:
        """The controller's pods that are not about to end."""
        pods = self.control_plane.api.list("Pod", CONTROLLERS)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def leader(self) -> str:
        """The controller's pod that holds the provisioner's lease, once one does."""
        return until(self._leader, what="a controller leads")

    def _leader(self) -> str:
        name = "caa-csi-block-csi-confidentialcontainers-io"
        lease = self.control_plane.api.find("Lease", name, CONTROLLERS) or {"spec": {}}
        holder: str = lease["spec"].get("holderIdentity", "")
        return holder if holder in {one["metadata"]["name"] for one in self.controllers()} else ""

    def crash(self, pod_name: str) -> None:
        """The pod's machine is lost."""
        for worker in self.workers.values():
            worker.crash(pod_name)


@contextmanager
def deployed(provider: str, control_plane: ControlPlane) -> Iterator[Deployment]:
    """The chart with provider ``local`` or ``aws``, within the block."""
    deploy = {"local": _local, "aws": _aws}[provider]
    with own_folder("deployment") as folder, deploy(control_plane, folder) as deployment:
        _roll_out(control_plane)
        yield deployment
        deployment.release.uninstall()


@contextmanager
def _local(control_plane: ControlPlane, folder: Path) -> Iterator[Deployment]:
    directory = folder / "disks"
    directory.mkdir()
    directory.chmod(0o777)
    values: dict[str, object] = {"provider": "local", "local": {"claimName": "disks"}}
    with _workers(control_plane, folder, {"disks": directory}) as workers:
        release = Release(control_plane)
        release.install(values, wait=False)
        control_plane.apply(_claim_of_disks())
        yield Deployment(control_plane, release, workers, LocalDisks(directory), values)
        control_plane.kubectl("delete", "pv", "disks", "--wait=false")


@contextmanager
def _aws(control_plane: ControlPlane, folder: Path) -> Iterator[Deployment]:
    cloud = Cloud(EC2_RULES)
    with (
        Ec2Server(cloud) as server,
        pod_identity() as credentials,
        _workers(control_plane, folder, {}) as workers,
    ):
        release = Release(control_plane)
        values: dict[str, object] = {
            "provider": "aws",
            "clusterId": "cluster-tests",
            "aws": {"region": "us-east-1"},
            "volumeAttributesClass": {"enabled": True},
            "controller": {
                "env": {"AWS_ENDPOINT_URL_EC2": server.url, "AWS_CONTAINER_CREDENTIALS_FULL_URI": credentials}
            },
        }
        release.install(values, wait=False)
        yield Deployment(control_plane, release, workers, Ec2Disks(cloud), values)


@contextmanager
def _workers(
    control_plane: ControlPlane, folder: Path, claims: dict[str, Path]
) -> Iterator[dict[str, StandInWorker]]:
    def worker(name: str) -> StandInWorker:
        # Stands for the instance metadata, which would tell the node plugin its zone.
        arguments = {"--zone=metadata:aws": f"--zone={ZONES[name]}"}
        return StandInWorker(control_plane, name, folder, claims=claims, arguments=arguments)

    first, second = WORKERS
    with worker(first) as one, worker(second) as other:
        yield {first: one, second: other}


def _roll_out(control_plane: ControlPlane) -> None:
    for kind, namespace in (("deployment", CONTROLLERS), ("daemonset", f"{CONTROLLERS}-node")):
        name = f"{kind}/{namespace if kind == 'daemonset' else 'confidential-csi-controller'}"
        control_plane.kubectl("rollout", "status", "-n", namespace, name, "--timeout=300s")
    until(
        lambda: all(control_plane.api.get("CSINode", worker)["spec"]["drivers"] for worker in WORKERS),
        what="the driver on each worker",
    )


def _claim_of_disks() -> str:
    return """
apiVersion: v1
kind: PersistentVolume
metadata: {name: disks}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  claimRef: {namespace: confidential-csi, name: disks}
  hostPath: {path: /disks}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disks, namespace: confidential-csi}
spec:
  storageClassName: ""
  volumeName: disks
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 1Gi}}
"""
