"""What each container of the chart is given: directories, settings and credentials, and no more of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.deploy.chart import MINIMAL, objects, one, pod

every_provider = pytest.mark.parametrize("provider", sorted(MINIMAL))

#: All that could bring a credential into a pod, whatever the cloud.
_CREDENTIALS = (
    'aws.roleArn="arn:aws:iam::123456789012:role/volumes"',
    'azure.clientId="11111111-2222-3333-4444-555555555555"',
    'libvirt.sshSecret="ssh"',
    'controller.env={"AWS_CONTAINER_CREDENTIALS_FULL_URI":"http://169.254.170.23/v1/credentials"}',
)
_SIDECAR = {"socket", "kubernetes-api"}
#: Container to the volumes that it has; which of them are the host's, test_chart_rights.py says.
_CONTROLLER = {
    "csi-provisioner": _SIDECAR,
    "csi-attacher": _SIDECAR,
    "csi-resizer": _SIDECAR,
    "csi-snapshotter": _SIDECAR,
    "liveness-probe": {"socket"},
}
_NODE = {
    "driver": {"socket", "pods", "direct-volumes", "peer-pods", "kubernetes-api"},
    "registrar": {"socket", "registration"},
    "liveness-probe": {"socket"},
}


@every_provider
def test_each_container_has_the_volumes_of_its_work(provider: str) -> None:
    controller = {"driver": {"socket"}, **_CONTROLLER}
    node = dict(_NODE)
    if provider == "local":
        del controller["csi-attacher"]
        controller["driver"] = {"socket", "disks"}
    if provider == "libvirt":
        controller["driver"] = {"socket", "libvirt-ssh"}
        node["attach-libvirt"] = {"direct-volumes", "libvirt-ssh"}
    for kind, wanted in (("Deployment", controller), ("DaemonSet", node)):
        specification = pod(provider, kind, *_CREDENTIALS)
        found = {
            entry["name"]: {mount["name"] for mount in entry["volumeMounts"]}
            for entry in specification["containers"]
        }
        assert found == wanted
        assert "initContainers" not in specification
        assert {volume["name"] for volume in specification["volumes"]} == set().union(*wanted.values())


@every_provider
def test_the_node_plugin_has_no_credential_of_a_cloud(provider: str) -> None:
    """Not by its environment, a Secret, an identity of its account, nor a token for another audience."""
    template = one(provider, "DaemonSet", *_CREDENTIALS)["spec"]["template"]
    assert template["metadata"] == {"labels": _labels("node")}
    for entry in template["spec"]["containers"]:
        if entry["name"] != "attach-libvirt":  # which has libvirt's address and key, and says so
            assert _environment(entry) == ({"NODE_NAME"} if entry["name"] == "driver" else set())
    secrets = {volume["name"] for volume in template["spec"]["volumes"] if "secret" in volume}
    assert secrets == ({"libvirt-ssh"} if provider == "libvirt" else set())
    for sources in _projected(template["spec"]):
        assert [sorted(source) for source in sources] == [["serviceAccountToken"], ["configMap"]]
    account = next(
        entry
        for entry in objects(provider, *_CREDENTIALS)
        if (entry["kind"], entry["metadata"]["name"]) == ("ServiceAccount", "confidential-csi-node")
    )
    assert set(account) == {"apiVersion", "kind", "metadata", "automountServiceAccountToken"}
    assert set(account["metadata"]) == {"name", "namespace"}
    assert account["automountServiceAccountToken"] is False


@every_provider
def test_of_the_controllers_containers_the_driver_alone_has_settings(provider: str) -> None:
    specification = pod(provider, "Deployment", *_CREDENTIALS)
    for entry in specification["containers"]:
        assert bool(_environment(entry)) is (entry["name"] == "driver"), entry["name"]
    for sources in _projected(specification):
        assert [sorted(source) for source in sources] == [
            ["serviceAccountToken"],
            ["configMap"],
            ["downwardAPI"],
        ]


def _environment(container: dict[str, Any]) -> set[str]:
    assert "envFrom" not in container
    return {variable["name"] for variable in container.get("env", ())}


def _projected(specification: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The sources of each projected volume; a token is for the API server alone."""
    found = [volume["projected"]["sources"] for volume in specification["volumes"] if "projected" in volume]
    for source in (source for sources in found for source in sources):
        assert "audience" not in source.get("serviceAccountToken", {})
    return found


def _labels(role: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "confidential-csi", "app.kubernetes.io/component": role}
