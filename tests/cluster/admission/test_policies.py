"""The policies refuse what could not work or would be in the clear, whoever makes it, and say what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

import tests
from driver.parameters import CLOUD_PARAMETERS
from tests.cluster.admission.driver_rules import class_refusal, provider_of
from tests.cluster.admission.policies import (
    ENCRYPTED,
    FS_TYPE,
    Admission,
    claim,
    policies,
    refusal,
    storage_class,
    volume,
)
from tests.cluster.api import Api, Object, Refused, until
from tests.unit.deploy.chart import rendered

_VECTORS = json.loads((Path(tests.__file__).parent / "vectors" / "key_paths.json").read_text())

#: StorageClass parameters to what the refusal says.
_BAD_CLASSES: list[tuple[dict[str, str], str]] = [
    ({"encrypt-type": "luks2"}, "belong together"),
    ({"kbs-key-id": "default/key/1"}, "belong together"),
    ({"Encrypt-Type": "LUKS2", "kbs-key-id": "default/key/1"}, "unknown parameter Encrypt-Type"),
    ({"encryptType": "luks2", "kbs-key-id": "default/key/1"}, "unknown parameter encryptType"),
    ({**ENCRYPTED, "encrypt-type": "aes"}, "encrypt-type must be luks2"),
    ({**ENCRYPTED, "encrypt-type": ""}, "encrypt-type must be luks2"),
    ({**ENCRYPTED, "encrypt-type": " luks2 "}, "encrypt-type must be luks2"),
    ({**ENCRYPTED, "encrypt-type": "LUKS2"}, "in lower case"),
    ({**ENCRYPTED, "kbs-key-id": "kbs:///default/key/1"}, "without kbs:///"),
    ({**ENCRYPTED, "kbs-key-id": "default/key/${pod.name}"}, "only ${pvc.namespace}"),
    ({**ENCRYPTED, "kbs-key-id": "${pvc.${pv.name}name}/a/b"}, "only ${pvc.namespace}"),
    ({**ENCRYPTED, "kbs-key-id": "default/${pvc.name}"}, "repository/type/tag"),
    ({**ENCRYPTED, FS_TYPE: "xfs"}, "ext4 only"),
    ({**ENCRYPTED, "fsType": "xfs"}, "ext4 only"),
    ({FS_TYPE: "btrfs"}, "can be ext4, or xfs"),
    ({"fsType": ""}, "can be ext4, or xfs"),
    ({"fsType": "ext4", FS_TYPE: "xfs"}, "leave out fsType"),
    ({"cdhEncryptionType": "luks2", "cdhKey": "kbs:///a/b/c"}, "would not be encrypted"),
    ({"cdhkey": "x", **ENCRYPTED}, "would not be encrypted"),
    ({"awsAccessKeyId": "AKIA", "awsSecretKey": "S3CR3T"}, "looks like a credential"),
    ({"sasToken": "S3CR3T"}, "looks like a credential"),
    ({"private-key": "S3CR3T"}, "looks like a credential"),
    ({"azureDiskSKU": "Premium_LRS"}, "unknown parameter azureDiskSKU"),
    ({"cloudProvider": "azure"}, "runs the provider aws"),
    ({"cloudProvider": ""}, "runs the provider aws"),
    ({"fstype": "ext4"}, "unknown parameter fstype"),
    ({"x" * 100: "1"}, f"unknown parameter {'x' * 64};"),
    ({"line\nbreak": "1"}, "unknown to this driver"),
    ({"awsIops": "1_000"}, "whole number"),
    ({"awsIops": "3e3"}, "whole number"),
    ({"awsIops": "-1"}, "whole number"),
    ({"awsIops": "\uff11\uff10"}, "whole number"),
    ({"awsThroughput": "125\n"}, "whole number"),
    ({"awsKmsKeyId": "\u00e4" * 1100}, "more than 2048 bytes"),
]


@pytest.mark.parametrize(("parameters", "message"), _BAD_CLASSES, ids=str)
def test_a_class_that_could_not_work_or_would_be_in_the_clear_is_refused(
    aws: Api, tmp_path: Path, parameters: dict[str, str], message: str
) -> None:
    """Field cases K3, L2, L3."""
    said = refusal(aws, storage_class(parameters))
    assert said is not None
    assert message in said
    assert "S3CR3T" not in said
    assert class_refusal(provider_of("aws", tmp_path), storage_class(parameters)) is not None


@pytest.mark.parametrize("vector", _VECTORS["refused"], ids=lambda vector: str(vector["why"]))
def test_no_malformed_key_path_passes(aws: Api, vector: dict[str, str]) -> None:
    """Field case J1. Of these, only a class can hold a template."""
    attributes = {**ENCRYPTED, "kbs-key-id": vector["key_id"]}
    assert "repository/type/tag" in (refusal(aws, volume(attributes)) or "")
    if "${pvc.name}" not in vector["key_id"]:
        assert "repository/type/tag" in (refusal(aws, storage_class(attributes)) or "")


@pytest.mark.parametrize(
    "key_id",
    [
        *_VECTORS["accepted"],
        "${pvc.namespace}/volume-key/${pvc.name}",
        "default/volume-key/${pvc.namespace}.${pvc.name}",
        "${pv.name}/${pv.name}${pv.name}/-${pvc.name}",
        "default/key/" + "${pvc.namespace}" * 188,
    ],
    ids=lambda key_id: str(key_id)[:40],
)
def test_every_good_key_path_passes(aws: Api, key_id: str) -> None:
    attributes = {**ENCRYPTED, "kbs-key-id": key_id}
    size = sum(len(text) for pair in attributes.items() for text in pair)
    said = refusal(aws, storage_class(attributes))
    assert (said is None) if size <= 2048 else (said is not None and "2048" in said)
    if "${" not in key_id:
        assert refusal(aws, volume(attributes)) is None


@pytest.mark.parametrize("provider", ["aws", "azure", "libvirt", "local"])
def test_the_chart_s_own_classes_and_every_parameter_of_the_provider_pass(
    admission: Admission, provider: str, tmp_path: Path
) -> None:
    api = admission.of(provider)
    own = [entry for entry in yaml.safe_load_all(rendered(provider)) if entry]
    classes = [entry for entry in own if entry["kind"] == "StorageClass"]
    assert len(classes) == 2
    for entry in classes:
        assert refusal(api, entry) is None
    names = provider_of(provider, tmp_path).parameter_names
    values = {"awsIops": "3000", "awsThroughput": "125", "azureDiskIops": "3000", "azureDiskMbps": "125"}
    assert refusal(api, storage_class({name: values.get(name, "any") for name in names})) is None
    for other in set[str]().union(*CLOUD_PARAMETERS.values()) - names:
        assert f"unknown parameter {other}" in (refusal(api, storage_class({other: "1"})) or "")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (volume({"encrypt-type": "luks2"}), "belong together"),
        (volume({"kbs-key-id": "default/key/1"}), "belong together"),
        (volume({}, volumeMode="Block"), "volumeMode Filesystem"),
        (volume({}, accessModes=["ReadWriteMany"]), "ReadWriteOncePod"),
        (volume({}, accessModes=["ReadWriteOnce", "ReadOnlyMany"]), "ReadWriteOncePod"),
        (volume(ENCRYPTED, "xfs"), "ext4 only"),
        (volume({}, mountOptions=["noexec"]), "remove the others"),
        (claim("confidential-csi-encrypted", volumeMode="Block"), "volumeMode Filesystem"),
        (claim("confidential-csi-plain", accessModes=["ReadWriteMany"]), "ReadWriteOncePod"),
        (claim("by-hand", accessModes=["ReadOnlyMany"]), "ReadWriteOncePod"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value["spec"])[:60],
)
def test_a_volume_or_claim_that_can_t_be_had_is_refused(aws: Api, manifest: Object, message: str) -> None:
    """Field case K3."""
    assert message in (refusal(aws, manifest) or "")


def test_a_claim_that_names_a_class_by_the_older_annotation_is_looked_at(aws: Api) -> None:
    older = claim(None, volumeMode="Block")
    older["metadata"]["annotations"] = {"volume.beta.kubernetes.io/storage-class": "by-hand"}
    assert "volumeMode" in (refusal(aws, older) or "")


def test_objects_of_other_drivers_are_not_looked_at(aws: Api) -> None:
    odd = {"encrypt-type": "x", "awsSecretKey": "y"}
    assert refusal(aws, {**storage_class(odd, mountOptions=["sync"]), "provisioner": "other.example"}) is None
    foreign = volume(odd, "btrfs", volumeMode="Block", accessModes=["ReadWriteMany"])
    foreign["spec"]["csi"]["driver"] = "other.example"
    assert refusal(aws, foreign) is None
    del foreign["spec"]["csi"]
    foreign["spec"] |= {"nfs": {"server": "nfs.example", "path": "/"}, "mountOptions": ["sync"]}
    assert refusal(aws, foreign) is None
    for name in (None, "", "other", "confidential-csi-encrypted-2"):
        assert refusal(aws, claim(name, volumeMode="Block", accessModes=["ReadWriteMany"])) is None


def test_the_largest_class_that_the_api_server_takes_is_refused_in_words(aws: Api) -> None:
    """What evaluating the policies costs stays within the API server's budget."""
    large = {f"{number:04d}": "v" * 500 for number in range(500)}
    assert "unknown parameter" in (refusal(aws, storage_class(large)) or "")
    assert "2048 bytes" in (refusal(aws, storage_class({"awsKmsKeyId": "k" * 250_000})) or "")
    longest = {**ENCRYPTED, "kbs-key-id": "${pv.name}" * 25_000}
    assert "repository/type/tag" in (refusal(aws, storage_class(longest)) or "")
    assert "repository/type/tag" in (refusal(aws, volume(longest)) or "")


def test_the_api_server_finds_no_fault_in_the_expressions(aws: Api) -> None:
    names = [entry["metadata"]["name"] for entry in policies("aws")]
    for name in set(names):
        checked = until(partial(_type_checking, aws, name), what=f"the expressions of {name} are checked")
        assert checked.get("expressionWarnings", []) == []


def _type_checking(api: Api, name: str) -> Object:
    policy = api.request("GET", f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}")
    status: Object = policy.get("status", {})
    seen = status.get("observedGeneration") == policy["metadata"]["generation"]
    # An empty result is left out of what the server stores, but the field is there.
    return {"checked": True, **status.get("typeChecking", {})} if seen else {}


@contextmanager
def _created(api: Api, manifest: Object) -> Iterator[Object]:
    yield api.create(manifest)
    name, kind = manifest["metadata"]["name"], manifest["kind"]
    with_finalizers = api.find(kind, name)
    if with_finalizers is not None and with_finalizers["metadata"].get("finalizers"):
        api.patch(kind, name, {"metadata": {"finalizers": None}})
    api.delete(kind, name)


def test_what_was_there_before_the_policies_can_still_be_changed_and_deleted(admission: Admission) -> None:
    """A label, a new size or a finalizer's removal is not blocked by an object's old faults."""
    api = admission.none()
    old_class = storage_class({"encrypt-type": "luks2"}, name="old", mountOptions=["sync"])
    old_volume = volume({"encrypt-type": "luks2"}, name="old", accessModes=["ReadWriteMany"])
    with _created(api, old_class), _created(api, old_volume):
        admission.of("aws")
        assert refusal(api, {**old_class, "metadata": {"name": "new"}}) is not None
        api.patch("StorageClass", "old", {"metadata": {"labels": {"team": "storage"}}})
        api.patch("PersistentVolume", "old", {"spec": {"capacity": {"storage": "2Gi"}}})
        with pytest.raises(Refused, match="belong together"):
            api.patch("StorageClass", "old", {"mountOptions": ["discard"]})
        with pytest.raises(Refused, match="one PodVM only"):
            api.patch("PersistentVolume", "old", {"spec": {"accessModes": ["ReadOnlyMany"]}})
    assert api.find("StorageClass", "old") is None


def test_claims_of_the_default_class_of_stateful_sets_and_of_pods_are_looked_at(aws: Api) -> None:
    """Field case K3: whoever makes the claim."""
    encrypted = next(
        entry
        for entry in yaml.safe_load_all(rendered("aws"))
        if entry and entry["metadata"]["name"] == "confidential-csi-encrypted"
    )
    encrypted["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
    block = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Block",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    labels = {"app": "templates"}
    container = {"name": "main", "image": "none"}
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "templates", "namespace": "default"},
        "spec": {
            "serviceName": "templates",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": block}],
        },
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "ephemeral", "namespace": "default"},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": block}}}],
        },
    }
    with _created(aws, encrypted):
        until(lambda: "volumeMode" in (refusal(aws, claim(None, volumeMode="Block")) or ""))
        until(lambda: aws.find("ServiceAccount", "default"), what="pods can be made")
        aws.request("POST", "/apis/apps/v1/namespaces/default/statefulsets", stateful_set)
        aws.create(pod)
        for name in ("templates", "ephemeral"):
            until(partial(_is_told, aws, name), what=f"an event tells the owner of {name}")
        assert aws.list("PersistentVolumeClaim") == []
        aws.request("DELETE", "/apis/apps/v1/namespaces/default/statefulsets/templates")
        aws.delete("Pod", "ephemeral", gracePeriodSeconds="0")


def _is_told(api: Api, name: str) -> bool:
    return any("volumeMode Filesystem" in event for event in api.events(name))
