"""Pods with a volume, on a real kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from driver.direct_volumes import directory_name
from tests.cluster.api import Object, until
from tests.cluster.installation import DIRECT_VOLUMES, Installation, is_ready
from tests.cluster.volumes import claim, volume_of
from tests.cluster.worker import BUSYBOX, PEER_POD_HANDLER

STORAGE_CLASS = "confidential-csi-encrypted"


class VolumeClaim:
    """A claim, and pods that use it."""

    def __init__(self, cluster: Installation, name: str, size: str) -> None:
        self._cluster = cluster
        self.name = name
        cluster.api.create(claim(name, STORAGE_CLASS, size))

    def bound(self) -> Object:
        """Wait until the provisioner made its volume; the PersistentVolume."""
        return volume_of(self._cluster.api, self.name)

    def size(self) -> str:
        """How large it is, as its status says."""
        size: str = self._claim()["status"]["capacity"]["storage"]
        return size

    def conditions(self) -> set[str]:
        return {one["type"] for one in self._claim()["status"].get("conditions", [])}

    def grow(self, size: str) -> None:
        """Ask for more."""
        change = {"spec": {"resources": {"requests": {"storage": size}}}}
        self._cluster.api.patch("PersistentVolumeClaim", self.name, change)

    def delete(self) -> None:
        """Delete it, and wait until its PersistentVolume is gone, too."""
        volume = self.bound()["metadata"]["name"]
        self._cluster.api.delete("PersistentVolumeClaim", self.name)
        until(lambda: not self._cluster.api.find("PersistentVolume", volume), what=f"{volume} is gone")

    def _claim(self) -> Object:
        return self._cluster.api.get("PersistentVolumeClaim", self.name)


class PeerPod:
    """A pod that mounts a claim at ``/data``."""

    def __init__(
        self,
        cluster: Installation,
        name: str,
        claim: VolumeClaim,
        runtime_class: str | None = PEER_POD_HANDLER,
    ) -> None:
        self._cluster = cluster
        self.name = name
        self._claim = claim
        spec: Object = {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {"name": "main", "image": BUSYBOX, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim.name}}],
        }
        if runtime_class is not None:
            spec["runtimeClassName"] = runtime_class
        made = cluster.api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        )
        self.uid: str = made["metadata"]["uid"]

    def running(self) -> Object:
        """Wait until it runs; the pod."""
        until(self._is_ready, what=f"pod {self.name} runs")
        return self._cluster.api.get("Pod", self.name)

    def target(self) -> str:
        """Where kubelet wants its volume, on the worker."""
        volume = self._claim.bound()["metadata"]["name"]
        return f"/var/lib/kubelet/pods/{self.uid}/volumes/kubernetes.io~csi/{volume}/mount"

    def record(self) -> Path:
        """The folder that Kata and cloud-api-adaptor read."""
        return self._cluster.worker.outside(DIRECT_VOLUMES) / directory_name(self.target())

    def delete(self) -> None:
        """Delete it, and wait until kubelet has forgotten it."""
        self._cluster.api.delete("Pod", self.name)
        until(lambda: not self._cluster.api.find("Pod", self.name), what=f"{self.name} is gone")
        folder = self._cluster.worker.outside(f"/var/lib/kubelet/pods/{self.uid}")
        until(lambda: not folder.exists(), what=f"{folder} is gone")

    def _is_ready(self) -> bool:
        pod = self._cluster.api.find("Pod", self.name)
        return pod is not None and is_ready(pod)


@contextmanager
def pod_with_volume(
    cluster: Installation, name: str, size: str = "64Mi"
) -> Iterator[tuple[PeerPod, VolumeClaim]]:
    """A running pod with a new volume; at the end both are deleted if they are still there."""
    claim = VolumeClaim(cluster, name, size)
    pod = PeerPod(cluster, name, claim)
    pod.running()
    try:
        yield pod, claim
    finally:
        pod.delete()
        claim.delete()
