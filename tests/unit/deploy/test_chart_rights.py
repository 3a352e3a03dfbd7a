"""What the chart's pods may do: Kubernetes' API by sidecar, and Pod Security."""

from __future__ import annotations

from typing import Any

import pytest

from driver.direct_volumes import DEFAULT_ROOT
from driver.identity import PLUGIN_NAME
from driver.pod_sockets import DEFAULT_ROOT as PODS_ROOT
from tests.unit.deploy.chart import MINIMAL, objects, one, pod

every_provider = pytest.mark.parametrize("provider", sorted(MINIMAL))

_READ = "get list watch"
_EVENTS = "list watch create update patch"

#: What each sidecar needs, from its own project's documentation and code at the pinned version.
_NEEDED = {
    "provisioner": {
        "persistentvolumes": f"{_READ} create patch delete",
        "persistentvolumeclaims": f"{_READ} update",
        "storageclasses": _READ,
        "events": _EVENTS,
        "volumesnapshots": f"{_READ} update",
        "volumesnapshotcontents": "get list",
    },
    "attacher": {
        "persistentvolumes": f"{_READ} patch",
        "csinodes": _READ,
        "volumeattachments": f"{_READ} patch",
        "volumeattachments/status": "patch",
    },
    "resizer": {
        "persistentvolumes": f"{_READ} patch",
        "persistentvolumeclaims": _READ,
        "persistentvolumeclaims/status": "patch",
        "events": _EVENTS,
    },
    "snapshotter": {
        "events": _EVENTS,
        "volumesnapshotclasses": _READ,
        "volumesnapshotcontents": f"{_READ} update patch",
        "volumesnapshotcontents/status": "update patch",
    },
}
_WITH_ZONES = {"csinodes": _READ, "nodes": _READ}
_ZONED = ("aws", "azure")


def _expected(provider: str) -> dict[str, dict[str, str]]:
    needed = {role: dict(rules) for role, rules in _NEEDED.items()}
    if provider in _ZONED:
        needed["provisioner"] |= {**_WITH_ZONES, "volumeattributesclasses": "get"}
        needed["resizer"]["volumeattributesclasses"] = _READ
    if provider == "local":
        del needed["attacher"]
    else:
        needed["provisioner"]["volumeattachments"] = _READ
    return needed


def _rules(entry: dict[str, Any]) -> dict[str, str]:
    return {resource: " ".join(rule["verbs"]) for rule in entry["rules"] for resource in rule["resources"]}


@every_provider
def test_each_sidecar_has_what_it_needs_and_no_more(provider: str) -> None:
    """Field case K1."""
    roles = [entry for entry in objects(provider) if entry["kind"] == "ClusterRole"]
    found = {entry["metadata"]["name"].removeprefix("confidential-csi-"): _rules(entry) for entry in roles}
    assert found == _expected(provider)
    leases = one(provider, "Role")
    assert _rules(leases) == {"leases": f"{_READ} create update delete"}
    assert leases["metadata"]["namespace"] == one(provider, "Deployment")["metadata"]["namespace"]


@every_provider
def test_every_role_is_bound_to_the_controller_and_none_to_the_node(provider: str) -> None:
    bound = set()
    for entry in objects(provider):
        if entry["kind"] in ("ClusterRoleBinding", "RoleBinding"):
            (subject,) = entry["subjects"]
            assert (subject["name"], subject["namespace"]) == (
                "confidential-csi-controller",
                "confidential-csi",
            )
            bound.add((entry["roleRef"]["kind"], entry["roleRef"]["name"]))
    assert bound == {
        (entry["kind"], entry["metadata"]["name"])
        for entry in objects(provider)
        if entry["kind"] in ("ClusterRole", "Role")
    }


@every_provider
def test_the_driver_has_no_token_and_each_sidecar_with_a_role_has(provider: str) -> None:
    roles = {f"csi-{name}" for name in _expected(provider)}
    for kind, wanted in (("Deployment", roles), ("DaemonSet", set[str]())):
        specification = pod(provider, kind)
        assert specification["automountServiceAccountToken"] is False
        with_token = {
            entry["name"]
            for entry in specification["containers"]
            for mount in entry["volumeMounts"]
            if "serviceaccount" in mount["mountPath"]
        }
        assert with_token == wanted


@every_provider
def test_credentials_of_the_cloud_are_kept_from_the_sidecars(provider: str) -> None:
    template = one(provider, "Deployment")["spec"]["template"]
    named = {
        name
        for key, text in template["metadata"].get("annotations", {}).items()
        if key.endswith("/skip-containers")
        for name in text.replace(";", ",").split(",")
    }
    others = {entry["name"] for entry in template["spec"]["containers"]} - {"driver"}
    assert named == (others if provider in _ZONED else set())


def _violations(specification: dict[str, Any]) -> set[str]:
    """Of the Pod Security Standard "restricted"."""
    found = {f"host{name}" for name in ("Network", "PID", "IPC") if specification.get(f"host{name}")}
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
    }
    for volume in specification["volumes"]:
        found |= set(volume) - {"name", "secret"} - allowed
    for entry in specification["containers"] + specification.get("initContainers", []):
        context = {**specification.get("securityContext", {}), **entry.get("securityContext", {})}
        capabilities = context.get("capabilities", {})
        checks = {
            "privileged": not context.get("privileged"),
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
            "runAsNonRoot": context.get("runAsNonRoot") is True,
            "runAsUser": context.get("runAsUser") != 0,
            "seccompProfile": context.get("seccompProfile", {}).get("type")
            in ("RuntimeDefault", "Localhost"),
            "capabilities": capabilities == {"drop": ["ALL"]},
            "procMount": "procMount" not in context,
            "seLinuxOptions": "seLinuxOptions" not in context,
            "hostPorts": not any(port.get("hostPort") for port in entry.get("ports", ())),
            "readOnlyRootFilesystem": context.get("readOnlyRootFilesystem")
            is True,  # ours, not the profile's
        }
        found |= {name for name, holds in checks.items() if not holds}
    return found


@every_provider
def test_the_controller_is_restricted_and_the_node_has_the_listed_exceptions(provider: str) -> None:
    assert _violations(pod(provider, "Deployment")) == set()
    assert _violations(pod(provider, "DaemonSet")) == {"hostPath", "runAsNonRoot", "runAsUser"}
    enforced = {
        entry["metadata"]["name"]: entry["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for entry in objects(provider)
        if entry["kind"] == "Namespace"
    }
    assert enforced == {"confidential-csi": "restricted", "confidential-csi-node": "privileged"}


@pytest.mark.parametrize(
    "harm",
    [
        {"securityContext": {"privileged": True}},
        {"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}},
        {"securityContext": {}},
        {"ports": [{"hostPort": 80}]},
    ],
    ids=str,
)
def test_a_container_that_is_not_restricted_would_show(harm: dict[str, Any]) -> None:
    specification = pod("aws", "Deployment")
    first, *others = specification["containers"]
    assert _violations({**specification, "containers": [{**first, **harm}, *others]})


@every_provider
def test_the_node_reaches_only_the_directories_it_works_in(provider: str) -> None:
    """Field case D2: each directory that the code writes is the host's, at the same path."""
    root = "/var/lib/k0s/kubelet"
    specification = pod(provider, "DaemonSet", f'node.kubeletRoot="{root}"')
    paths = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in specification["volumes"]
        if "hostPath" in volume
    }
    assert set(paths.values()) == {
        f"{root}/pods",
        f"{root}/plugins/{PLUGIN_NAME}",
        f"{root}/plugins_registry",
        str(DEFAULT_ROOT),
        str(PODS_ROOT),
    }
    driver = specification["containers"][0]
    mounted = {paths[mount["name"]]: mount for mount in driver["volumeMounts"]}
    assert {path: mount["mountPath"] for path, mount in mounted.items()} == {
        f"{root}/pods": f"{root}/pods",
        f"{root}/plugins/{PLUGIN_NAME}": "/csi",
        str(DEFAULT_ROOT): str(DEFAULT_ROOT),
        str(PODS_ROOT): str(PODS_ROOT),
    }
    assert mounted[str(PODS_ROOT)]["readOnly"] is True
    assert not any("mountPropagation" in mount for mount in driver["volumeMounts"])


@every_provider
def test_the_controller_survives_the_loss_of_a_node(provider: str) -> None:
    deployment = one(provider, "Deployment")["spec"]
    labels = deployment["selector"]["matchLabels"]
    assert deployment["replicas"] == 2
    assert one(provider, "PodDisruptionBudget")["spec"] == {
        "maxUnavailable": 1,
        "selector": {"matchLabels": labels},
    }
    specification = deployment["template"]["spec"]
    assert {entry["topologyKey"] for entry in specification["topologySpreadConstraints"]} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }
    assert specification["priorityClassName"] == "system-cluster-critical"
    for entry in specification["containers"]:
        if entry["name"].startswith("csi-"):
            assert "--leader-election" in entry["args"]


@every_provider
def test_nobody_but_prometheus_connects_to_the_pods_and_the_node_asks_at_most_for_its_zone(
    provider: str,
) -> None:
    policies = {
        entry["metadata"]["name"]: entry["spec"]
        for entry in objects(provider)
        if entry["kind"] == "NetworkPolicy"
    }
    for policy in policies.values():
        assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policies["confidential-csi-node"]["ingress"] == []
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert policies["confidential-csi-controller"]["ingress"] == [
        {"from": [monitoring], "ports": [{"port": 9810, "protocol": "TCP"}]}
    ]
    egress = policies["confidential-csi-node"]["egress"]
    if provider == "libvirt":
        assert {port["port"] for rule in egress for port in rule["ports"]} == {53, 5353, 22, 16509, 16514}
    elif provider in _ZONED:
        metadata = {
            "to": [{"ipBlock": {"cidr": "169.254.169.254/32"}}],
            "ports": [{"port": 80, "protocol": "TCP"}],
        }
        assert egress == [metadata]
        (named,) = (
            entry["spec"]
            for entry in objects(provider, 'node.zone="zone-7"')
            if entry["kind"] == "NetworkPolicy" and entry["metadata"]["name"] == "confidential-csi-node"
        )
        assert named["egress"] == []
    else:
        assert egress == []
