"""Claims, snapshots and pods, as a user makes them."""

from __future__ import annotations

from typing import Any

from tests.cluster.api import Api, Object, until

_SNAPSHOT_CLASS = "confidential-csi"
_COLLECTIONS = (
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/persistentvolumeclaims",
    "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots",
    "/apis/storage.k8s.io/v1/volumeattachments",
)


def claim(
    name: str,
    storage_class: str,
    size: str = "1Gi",
    *,
    source: Object | None = None,
    attributes_class: str = "",
) -> Object:
    """A PersistentVolumeClaim, with ``dataSource`` if given."""
    spec: dict[str, Any] = {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    if source is not None:
        spec["dataSource"] = source
    if attributes_class:
        spec["volumeAttributesClassName"] = attributes_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": spec,
    }


def snapshot_of(claim_name: str, name: str) -> Object:
    """A VolumeSnapshot of a claim."""
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "volumeSnapshotClassName": _SNAPSHOT_CLASS,
            "source": {"persistentVolumeClaimName": claim_name},
        },
    }


def from_snapshot(name: str) -> Object:
    """The ``dataSource`` of a claim that restores a snapshot."""
    return {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}


def from_claim(name: str) -> Object:
    """The ``dataSource`` of a claim that clones another."""
    return {"kind": "PersistentVolumeClaim", "name": name}


def pod(name: str, claim_name: str, node: str = "") -> Object:
    """A pod with a claim, on a certain worker if named; the scheduler puts it there."""
    container = {
        "name": "work",
        "image": "work:1",
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "volumes": [volume],
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
        },
    }


def attachment(name: str, volume: str, node: str) -> Object:
    """A VolumeAttachment by hand, as the controller manager makes it once it gave up the node of before."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {
            "attacher": "caa-csi-block.csi.confidentialcontainers.io",
            "nodeName": node,
            "source": {"persistentVolumeName": volume},
        },
    }


def volume_of(api: Api, claim_name: str) -> Object:
    """The PersistentVolume of a claim, once it is bound."""

    def is_bound() -> bool:
        status: Object = api.get("PersistentVolumeClaim", claim_name)["status"]
        return status.get("phase") == "Bound"

    until(is_bound, what=f"claim {claim_name} is bound")
    bound = api.get("PersistentVolumeClaim", claim_name)
    return api.get("PersistentVolume", bound["spec"]["volumeName"])


def ready_snapshot(api: Api, name: str) -> Object:
    """The VolumeSnapshot, once it can be restored."""
    ready = "readyToUse"
    until(
        lambda: api.get("VolumeSnapshot", name).get("status", {}).get(ready, False),
        what=f"snapshot {name} is ready",
    )
    return api.get("VolumeSnapshot", name)


def delete_everything(api: Api) -> None:
    """Delete all pods, claims, snapshots and attachments, and wait until the volumes are gone."""
    for collection in _COLLECTIONS:
        api.request("DELETE", collection)
    try:
        until(lambda: not api.list("VolumeSnapshotContent"), seconds=600, what="the snapshots are gone")
        until(lambda: not _of_claims(api), seconds=600, what="the volumes are gone")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_left(api)}") from None


def _left(api: Api) -> str:
    """What is there, and what holds it."""
    kinds = ("Pod", "PersistentVolumeClaim", "PersistentVolume", "VolumeAttachment", "VolumeSnapshotContent")
    return "\n".join(
        f"{kind} {found['metadata']['name']}: deleted {found['metadata'].get('deletionTimestamp')}, "
        f"finalizers {found['metadata'].get('finalizers')}, status {found.get('status')}"
        for kind in kinds
        for found in api.list(kind)
    )


def _of_claims(api: Api) -> list[Object]:
    volumes = api.list("PersistentVolume")
    return [volume for volume in volumes if volume["metadata"]["name"].startswith("pvc-")]
