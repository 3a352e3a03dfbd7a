"""Volumes as the cluster sees them: claims, PersistentVolumes, classes, pods, attachments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from cli.doctor.cluster import is_peer_pod_class
from cli.doctor.model import Finding, fail, ok, warn
from cli.kubernetes_api import Json
from cli.kubernetes_objects import (
    ATTACHMENTS,
    CLASSES,
    RUNTIME_CLASSES,
    claimed_volumes,
    name_of,
    pods_with_volumes,
)
from cli.scene import DRIVER, Scene
from driver.encryption import ENCRYPT_TYPE, KBS_KEY_ID


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
                    f"PersistentVolume {one.name} (claim {one.claim or 'none'}) is NOT encrypted, though "
                    f"its StorageClass {one.class_name or '(none)'} speaks of encryption: its attributes "
                    f"lack {ENCRYPT_TYPE} or {KBS_KEY_ID}",
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
        one["metadata"]["name"] for one in scene.objects(RUNTIME_CLASSES) if is_peer_pod_class(scene, one)
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
                    "pod, and writes to an empty directory of its node",
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
            "start: keep them on different nodes (podAntiAffinity; docs/one-pod-per-node.md)",
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
                    f"to {one['spec']['nodeName']}): {str(error.get('message'))[:400]}",
                    "the message says what to do; see also fence-closed",
                )
            )
    return found or [ok(f"{len(ours)} attachment(s), none with an error")]


def _each_once(pods_of_claims: Mapping[str, list[Json]]) -> list[Json]:
    unique = {pod["metadata"]["uid"]: pod for pods in pods_of_claims.values() for pod in pods}
    return [unique[uid] for uid in sorted(unique)]
