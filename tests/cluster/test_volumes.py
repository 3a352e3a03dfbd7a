"""The life of volumes, driven by the real sidecars and controllers, with each provider."""

from __future__ import annotations

import pytest

from tests.cluster.api import Api, Object, Refused, until
from tests.cluster.deployments import ENCRYPTED, PLAIN, Deployment
from tests.cluster.volumes import (
    claim,
    from_claim,
    from_snapshot,
    pod,
    ready_snapshot,
    snapshot_of,
    volume_of,
)

pytestmark = pytest.mark.parametrize("deployment", ["local", "aws"], indirect=True)


def test_a_claim_is_bound_grown_snapshotted_restored_cloned_and_deleted(
    deployment: Deployment, api: Api
) -> None:
    api.create(claim("data", ENCRYPTED, "1Gi"))
    api.create(pod("user", "data"))  # where there are zones, a claim waits for its first pod
    volume = volume_of(api, "data")
    attributes = volume["spec"]["csi"]["volumeAttributes"]
    assert attributes["encrypt-type"] == "luks2"
    assert attributes["kbs-key-id"] == "default/volume-key/data"
    assert deployment.disks.names() == {volume["metadata"]["name"]}

    api.patch("PersistentVolumeClaim", "data", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    until(
        lambda: (
            api.get("PersistentVolume", volume["metadata"]["name"])["spec"]["capacity"]["storage"] == "2Gi"
        ),
        what="the volume has grown",
    )
    assert deployment.disks.sizes() == {volume["metadata"]["name"]: 2 << 30}

    api.create(snapshot_of("data", "first"))
    snapshot = ready_snapshot(api, "first")
    assert snapshot["status"]["restoreSize"] == "2Gi"
    assert deployment.disks.snapshots() == 1

    for name, source in (("restored", from_snapshot("first")), ("cloned", from_claim("data"))):
        api.create(claim(name, ENCRYPTED, "3Gi", source=source))
        api.create(pod(f"user-of-{name}", name))
        copy = volume_of(api, name)
        assert copy["spec"]["capacity"]["storage"] == "3Gi"
        assert deployment.disks.sizes()[copy["metadata"]["name"]] == 3 << 30
        # The key stays its source's: the copy carries the same LUKS header.
        assert copy["spec"]["csi"]["volumeAttributes"]["kbs-key-id"] == "default/volume-key/data"
    assert len(deployment.disks.names()) == 3


def test_a_retained_volume_outlives_its_claim(deployment: Deployment, api: Api) -> None:
    api.create(claim("kept", PLAIN))
    api.create(pod("user", "kept"))
    name = volume_of(api, "kept")["metadata"]["name"]
    api.patch("PersistentVolume", name, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
    api.delete("Pod", "user")
    api.delete("PersistentVolumeClaim", "kept")
    until(lambda: api.get("PersistentVolume", name)["status"]["phase"] == "Released")
    assert deployment.disks.names() == {name}

    api.patch("PersistentVolume", name, {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    until(lambda: not api.find("PersistentVolume", name), what="the PersistentVolume is gone")
    assert deployment.disks.names() == set()


def test_what_is_wrong_with_a_class_is_told_when_it_is_made_or_at_the_claim(
    deployment: Deployment, api: Api
) -> None:
    """Field case L3: who makes a class learns at once what is wrong, or else who describes a claim does."""
    wrong = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "wrong"},
        "provisioner": "caa-csi-block.csi.confidentialcontainers.io",
    }
    misspelled = {**wrong, "parameters": {"encrypt-type": "luks2", "kbs-key-idd": "default/key/1"}}
    said = until(lambda: _refusal(api, misspelled), what="the admission policies are in force")
    assert "unknown parameter kbs-key-idd" in said
    # The name of a claim, which is too long for it, is not known before.
    template = "default/volume-key/" + "k" * 175 + "${pvc.name}"
    api.create({**wrong, "parameters": {"encrypt-type": "luks2", "kbs-key-id": template}})
    api.create(claim("refused", "wrong"))
    told = "use shorter names or another template"
    until(lambda: any(told in event for event in api.events("refused")), what="an event at the claim")
    assert deployment.disks.names() == set()
    api.delete("StorageClass", "wrong")


def _refusal(api: Api, storage_class: Object) -> str:
    try:
        api.request("POST", "/apis/storage.k8s.io/v1/storageclasses", storage_class, query={"dryRun": "All"})
    except Refused as refused:
        return refused.message
    return ""
