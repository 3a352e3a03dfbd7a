"""The objects of Kubernetes that volumes are made of: where they are listed, and what they say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cli.kubernetes_api import Json
from cli.scene import DRIVER, Scene
from driver.encryption import ENCRYPT_TYPE, ENCRYPT_TYPES, KBS_KEY_ID

PODS: Final = "/api/v1/pods"
CLAIMS: Final = "/api/v1/persistentvolumeclaims"
VOLUMES: Final = "/api/v1/persistentvolumes"
CSI_NODES: Final = "/apis/storage.k8s.io/v1/csinodes"
CSI_DRIVERS: Final = "/apis/storage.k8s.io/v1/csidrivers"
CLASSES: Final = "/apis/storage.k8s.io/v1/storageclasses"
ATTACHMENTS: Final = "/apis/storage.k8s.io/v1/volumeattachments"
RUNTIME_CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
DAEMON_SETS: Final = "/apis/apps/v1/daemonsets"
DEPLOYMENTS: Final = "/apis/apps/v1/deployments"


_OVER: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True)
class Claimed:
    """A PersistentVolume of this driver."""

    name: str
    volume_id: str
    claim: str
    """``namespace/name``; empty when there is none."""
    class_name: str
    phase: str
    attributes: Mapping[str, str]

    @classmethod
    def of(cls, volume: Json) -> Claimed:
        """The facts of a PersistentVolume."""
        specification = volume["spec"]
        claim = specification.get("claimRef")
        return cls(
            volume["metadata"]["name"],
            specification["csi"]["volumeHandle"],
            f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
            specification.get("storageClassName", ""),
            volume.get("status", {}).get("phase", ""),
            specification["csi"].get("volumeAttributes") or {},
        )

    def is_encrypted(self) -> bool:
        """Whether the guest is told to encrypt it."""
        return says_encrypted(self.attributes)


def says_encrypted(given: Mapping[str, object]) -> bool:
    """Whether these ask for encryption in a way that is heeded: another word than the driver's is not."""
    return given.get(ENCRYPT_TYPE) in ENCRYPT_TYPES and bool(given.get(KBS_KEY_ID))


def claimed_volumes(scene: Scene) -> list[Claimed]:
    """All PersistentVolumes of this driver."""
    return [
        Claimed.of(one)
        for one in scene.objects(VOLUMES)
        if (one["spec"].get("csi") or {}).get("driver") == DRIVER
    ]


def pods_with_volumes(scene: Scene) -> dict[str, list[Json]]:
    """For each claim (``namespace/name``) of a volume of this driver, the pods that use it, unless over."""
    claims = {one.claim for one in claimed_volumes(scene) if one.claim}
    found: dict[str, list[Json]] = defaultdict(list)
    for pod in scene.objects(PODS):
        if pod.get("status", {}).get("phase") in _OVER:
            continue
        for volume in pod["spec"].get("volumes") or ():
            claim = _claim_name(pod, volume)
            if claim in claims:
                found[claim].append(pod)
    return found


def _claim_name(pod: Json, volume: Json) -> str:
    namespace = pod["metadata"]["namespace"]
    if "persistentVolumeClaim" in volume:
        return f"{namespace}/{volume['persistentVolumeClaim']['claimName']}"
    if "ephemeral" in volume:  # its claim is named after pod and volume
        return f"{namespace}/{pod['metadata']['name']}-{volume['name']}"
    return ""


def name_of(one: Json) -> str:
    """``namespace/name``, or the name of what has no namespace."""
    metadata = one["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else metadata["name"]
