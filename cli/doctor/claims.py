"""Volumes as the cluster sees them: claims, PersistentVolumes, classes, pods, attachments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cli.doctor.cluster import (
    ATTACHMENTS,
    CLASSES,
    PODS,
    RUNTIME_CLASSES,
    VOLUMES,
    is_peer_pod_class,
    name_of,
)
from cli.doctor.model import Finding, fail, ok, warn
from cli.doctor.scene import DRIVER, Scene
from cli.kubernetes_api import Json

_ENCRYPT_TYPE: Final = "encrypt-type"
_KEY_ID: Final = "kbs-key-id"
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
            f"{claim['namespace']}/{claim['name']}" if claim else "",
            specification.get("storageClassName", ""),
            volume.get("status", {}).get("phase", ""),
            specification["csi"].get("volumeAttributes") or {},
        )

    def is_encrypted(self) -> bool:
        """Whether the guest is told to encrypt it."""
        return bool(self.attributes.get(_ENCRYPT_TYPE) and self.attributes.get(_KEY_ID))


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


def plaintext(scene: Scene) -> Iterable[Finding]:
    """No volume is unencrypted whose class, or whose own attributes, speak of encryption."""
    encrypting = {
        one["metadata"]["name"]
        for one in scene.objects(CLASSES)
        if one.get("provisioner") == DRIVER and _speaks_of_encryption(one.get("parameters") or {})
    }
    volumes = claimed_volumes(scene)
    found: list[Finding] = []
    for one in volumes:
        if one.is_encrypted():
            continue
        if one.class_name in encrypting or _speaks_of_encryption(one.attributes):
            found.append(
                fail(
                    f"PersistentVolume {one.name} (claim {one.claim or 'none'}) is NOT encrypted, though its "
                    f"StorageClass {one.class_name or '(none)'} speaks of encryption: its attributes lack "
                    f"{_ENCRYPT_TYPE} or {_KEY_ID}",
                    "treat its content as known to the host: make a new claim of a class that passes "
                    "'confidential-csi lint', copy the data, delete this volume",
                )
            )
    encrypted = sum(one.is_encrypted() for one in volumes)
    return found or [
        ok(f"{len(volumes)} volume(s), {encrypted} encrypted; no class promises what its volumes lack")
    ]


def _speaks_of_encryption(parameters: Mapping[str, str]) -> bool:
    """The right parameters, and those of the older driver's samples, which nothing reads."""
    return any(
        key.replace("-", "").lower() in {"encrypttype", "kbskeyid", "cdhencryptiontype", "cdhkey"} and value
        for key, value in parameters.items()
    )


def peer_pods(scene: Scene) -> Iterable[Finding]:
    """Every pod that uses a volume is a peer pod."""
    peer_classes = {
        one["metadata"]["name"] for one in scene.objects(RUNTIME_CLASSES) if is_peer_pod_class(one)
    }
    pods = _each_once(pods_with_volumes(scene))
    found: list[Finding] = []
    for pod in pods:
        runtime = pod["spec"].get("runtimeClassName")
        if runtime not in peer_classes:
            found.append(
                fail(
                    f"pod {name_of(pod)} uses a volume and has "
                    f"{f'runtimeClassName {runtime}' if runtime else 'no runtimeClassName'}: it is no peer "
                    "pod, "
                    "and writes to an empty directory of its node",
                    "set the RuntimeClass of the peer pods (kata-remote) in the pod's template",
                )
            )
    return found or [ok(f"{len(pods)} pod(s) with volumes, each a peer pod")]


def two_pods(scene: Scene) -> Iterable[Finding]:
    """No two pods with volumes are on one node."""
    on_node: dict[str, list[str]] = defaultdict(list)
    for pod in _each_once(pods_with_volumes(scene)):
        if pod["spec"].get("nodeName"):
            on_node[pod["spec"]["nodeName"]].append(name_of(pod))
    found = [
        warn(
            f"{len(pods)} pods with volumes on node {node}: {', '.join(sorted(pods))}",
            "cloud-api-adaptor gives every PodVM all of a node's volumes, so the next of these pods can't "
            "start: "
            "keep them on different nodes (podAntiAffinity, topologySpreadConstraints)",
        )
        for node, pods in sorted(on_node.items())
        if len(pods) > 1
    ]
    return found or [ok(f"at most one pod with volumes on each of {len(on_node)} node(s)")]


def attachment_errors(scene: Scene) -> Iterable[Finding]:
    """No VolumeAttachment of this driver tells of an error."""
    ours = [one for one in scene.objects(ATTACHMENTS) if one["spec"].get("attacher") == DRIVER]
    found: list[Finding] = []
    for one in ours:
        status = one.get("status") or {}
        error = status.get("attachError") or status.get("detachError")
        if error:
            found.append(
                fail(
                    f"VolumeAttachment {name_of(one)} ({one['spec']['source'].get('persistentVolumeName')} "
                    "to "
                    f"{one['spec']['nodeName']}): {str(error.get('message'))[:400]}",
                    "the message says what to do; see also fence-closed",
                )
            )
    return found or [ok(f"{len(ours)} attachment(s), none with an error")]


def _each_once(pods_of_claims: Mapping[str, list[Json]]) -> list[Json]:
    unique = {pod["metadata"]["uid"]: pod for pods in pods_of_claims.values() for pod in pods}
    return [unique[uid] for uid in sorted(unique)]
