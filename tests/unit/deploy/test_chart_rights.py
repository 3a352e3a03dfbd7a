"""What the chart's pods may do: Kubernetes' API by container, and Pod Security."""

from __future__ import annotations

from typing import Any

import pytest

from driver.direct_volumes import DEFAULT_ROOT
from driver.identity import PLUGIN_NAME
from driver.pod_sockets import DEFAULT_ROOT as PODS_ROOT
from tests.unit.deploy.chart import MINIMAL, objects, one, pod

every_provider = pytest.mark.parametrize("provider", sorted(MINIMAL))

_READ = "get list watch"
_EVENTS = "create patch"

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
        "volumesnapshotcontents": f"{_READ} patch",
        "volumesnapshotcontents/status": "update patch",
    },
}
#: What the node plugin reads of a pod before its volume is published; no sidecar of it has a token.
_NODE = {"pods": "get", "runtimeclasses": "get"}
_WITHOUT_GUARD = "node.peerPodHandlers=[]"
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


#: API group to its resources that are asked for.
_GROUPS = {
    "": {
        *("events", "nodes", "persistentvolumeclaims", "persistentvolumeclaims/status", "persistentvolumes"),
        "pods",
    },
    "coordination.k8s.io": {"leases"},
    "node.k8s.io": {"runtimeclasses"},
    "snapshot.storage.k8s.io": {
        *("volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshotcontents/status"),
        "volumesnapshots",
    },
    "storage.k8s.io": {
        *("csinodes", "storageclasses", "volumeattachments", "volumeattachments/status"),
        "volumeattributesclasses",
    },
}


def _rules(entry: dict[str, Any]) -> dict[str, str]:
    """Resource to verbs. A role has nothing else: no rule for a second group, no aggregation, no URLs."""
    assert set(entry) == {"apiVersion", "kind", "metadata", "rules"}
    found: dict[str, str] = {}
    for rule in entry["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        (group,), (resource,) = rule["apiGroups"], rule["resources"]
        assert resource in _GROUPS[group]
        assert resource not in found
        found[resource] = " ".join(rule["verbs"])
    return found


@every_provider
def test_each_sidecar_has_what_it_needs_and_no_more(provider: str) -> None:
    """Field case K1."""
    roles = [entry for entry in objects(provider) if entry["kind"] == "ClusterRole"]
    found = {entry["metadata"]["name"].removeprefix("confidential-csi-"): _rules(entry) for entry in roles}
    assert found == _expected(provider) | {"node": _NODE}
    leases = one(provider, "Role")
    assert _rules(leases) == {"leases": "get create update"}
    assert leases["metadata"]["namespace"] == one(provider, "Deployment")["metadata"]["namespace"]


def _bound(provider: str, *values: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Kind and name of each role that is bound, to namespace and name of the account that has it."""
    found = {}
    for entry in objects(provider, *values):
        if entry["kind"] in ("ClusterRoleBinding", "RoleBinding"):
            (subject,) = entry["subjects"]
            assert subject["kind"] == "ServiceAccount"
            role = (entry["roleRef"]["kind"], entry["roleRef"]["name"])
            assert role not in found
            found[role] = (subject["namespace"], subject["name"])
    return found


@every_provider
def test_every_role_is_bound_to_one_account_and_the_nodes_to_its_own_alone(provider: str) -> None:
    """Field case K1."""
    bound = _bound(provider)
    assert set(bound) == {
        (entry["kind"], entry["metadata"]["name"])
        for entry in objects(provider)
        if entry["kind"] in ("ClusterRole", "Role")
    }
    assert bound.pop(("ClusterRole", "confidential-csi-node")) == (
        "confidential-csi-node",
        "confidential-csi-node",
    )
    assert set(bound.values()) == {("confidential-csi", "confidential-csi-controller")}


@every_provider
def test_without_the_guard_the_node_plugin_has_neither_role_nor_token(provider: str) -> None:
    assert set(_bound(provider, _WITHOUT_GUARD).values()) == {
        ("confidential-csi", "confidential-csi-controller")
    }
    roles = {
        entry["metadata"]["name"]
        for entry in objects(provider, _WITHOUT_GUARD)
        if entry["kind"] == "ClusterRole"
    }
    assert "confidential-csi-node" not in roles
    assert _with_token(provider, "DaemonSet", _WITHOUT_GUARD) == set()
    volumes = pod(provider, "DaemonSet", _WITHOUT_GUARD)["volumes"]
    assert not any("projected" in volume for volume in volumes)


def _with_token(provider: str, kind: str, *values: str) -> set[str]:
    """The containers that can speak to the API server."""
    specification = pod(provider, kind, *values)
    assert specification["automountServiceAccountToken"] is False
    return {
        entry["name"]
        for entry in specification["containers"]
        for mount in entry["volumeMounts"]
        if "serviceaccount" in mount["mountPath"]
    }


@every_provider
def test_of_the_drivers_the_nodes_has_a_token_and_each_sidecar_with_a_role_has(provider: str) -> None:
    assert _with_token(provider, "Deployment") == {f"csi-{name}" for name in _expected(provider)}
    assert _with_token(provider, "DaemonSet") == {"driver"}


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
    labels = {
        entry["metadata"]["name"]: entry["metadata"]["labels"]
        for entry in objects(provider)
        if entry["kind"] == "Namespace"
    }
    levels = {"confidential-csi": "restricted", "confidential-csi-node": "privileged"}
    assert labels == {
        name: {f"pod-security.kubernetes.io/{what}": level for what in ("enforce", "audit", "warn")}
        for name, level in levels.items()
    }


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
    mounted = {paths[mount["name"]]: mount for mount in driver["volumeMounts"] if mount["name"] in paths}
    assert {path: mount["mountPath"] for path, mount in mounted.items()} == {
        f"{root}/pods": f"{root}/pods",
        f"{root}/plugins/{PLUGIN_NAME}": "/csi",
        str(DEFAULT_ROOT): str(DEFAULT_ROOT),
        str(PODS_ROOT): str(PODS_ROOT),
    }
    assert mounted[str(PODS_ROOT)]["readOnly"] is True
    propagation = {
        path: mount["mountPropagation"] for path, mount in mounted.items() if "mountPropagation" in mount
    }
    assert propagation == {f"{root}/pods": "HostToContainer"}, (
        "only kubelet mounts there; it sees none of ours"
    )


@every_provider
def test_the_controller_survives_the_loss_of_a_node(provider: str) -> None:
    deployment = one(provider, "Deployment")["spec"]
    labels = deployment["selector"]["matchLabels"]
    assert deployment["replicas"] == 2
    assert one(provider, "PodDisruptionBudget")["spec"] == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": labels},
    }
    specification = deployment["template"]["spec"]
    assert {entry["topologyKey"] for entry in specification["topologySpreadConstraints"]} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }
    assert specification["priorityClassName"] == "system-cluster-critical"
    assert pod(provider, "DaemonSet")["priorityClassName"] == "system-node-critical"
    for entry in specification["containers"]:
        if entry["name"].startswith("csi-"):
            assert "--leader-election" in entry["args"]


@every_provider
def test_a_network_policy_is_for_the_pods_of_each_workload(provider: str) -> None:
    selected = {
        entry["metadata"]["namespace"]: entry["spec"]["podSelector"]["matchLabels"]
        for entry in objects(provider)
        if entry["kind"] == "NetworkPolicy"
    }
    workloads = {
        entry["metadata"]["namespace"]: entry["spec"]["template"]["metadata"]["labels"]
        for entry in objects(provider)
        if entry["kind"] in ("Deployment", "DaemonSet")
    }
    assert selected.keys() == workloads.keys()
    for namespace, labels in workloads.items():
        assert selected[namespace].items() <= labels.items()


def _egress(provider: str, *values: str) -> list[Any]:
    """Where the node plugin's policy lets it go; it lets nobody in, the controller's just Prometheus."""
    policies = {
        entry["metadata"]["name"]: entry["spec"]
        for entry in objects(provider, *values)
        if entry["kind"] == "NetworkPolicy"
    }
    for policy in policies.values():
        assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policies["confidential-csi-node"]["ingress"] == []
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert policies["confidential-csi-controller"]["ingress"] == [{"from": [monitoring], "ports": _tcp(9810)}]
    egress: list[Any] = policies["confidential-csi-node"]["egress"]
    return egress


def _tcp(*ports: int) -> list[dict[str, Any]]:
    return [{"port": port, "protocol": "TCP"} for port in ports]


_API_SERVER = {"ports": _tcp(443, 6443)}
_METADATA = {"to": [{"ipBlock": {"cidr": "169.254.169.254/32"}}], "ports": _tcp(80)}


@every_provider
def test_the_node_reaches_the_api_server_and_else_what_its_provider_needs(provider: str) -> None:
    first, *others = _egress(provider)
    assert first == _API_SERVER
    assert _egress(provider, _WITHOUT_GUARD) == others
    if provider == "libvirt":
        (rule,) = others
        assert {port["port"] for port in rule["ports"]} == {53, 5353, 22, 16509, 16514}
    else:
        assert others == ([_METADATA] if provider in _ZONED else [])


def test_the_controller_reaches_credentials_where_the_cloud_has_them() -> None:
    """EKS Pod Identity has an address of each IP family."""
    policies = [entry for entry in objects("aws") if entry["kind"] == "NetworkPolicy"]
    (own,) = (one["spec"] for one in policies if one["metadata"]["name"] == "confidential-csi-controller")
    _, credentials = own["egress"]
    addresses = [place["ipBlock"]["cidr"] for place in credentials["to"]]
    assert addresses == ["169.254.169.254/32", "169.254.170.23/32", "fd00:ec2::23/128"]
    assert credentials["ports"] == _tcp(80)


def test_a_node_that_is_told_its_zone_asks_no_metadata() -> None:
    assert _egress("aws", 'node.zone="zone-7"') == [_API_SERVER]
    assert _egress("aws", 'node.zone="zone-7"', _WITHOUT_GUARD) == []


_OPENSHIFT = "openshift.enabled=true"


@every_provider
def test_the_constraints_of_openshift_let_the_node_plugin_run_and_do_no_more(provider: str) -> None:
    constraints = one(provider, "SecurityContextConstraints", _OPENSHIFT)
    granted = {key for key, value in constraints.items() if key.startswith(("allow", "default")) and value}
    assert granted == {"allowHostDirVolumePlugin"}
    assert constraints["users"] == constraints["groups"] == []
    assert constraints["requiredDropCapabilities"] == ["ALL"]
    assert constraints["seccompProfiles"] == ["runtime/default"]
    assert constraints["readOnlyRootFilesystem"] is True
    specification = pod(provider, "DaemonSet", _OPENSHIFT)
    used = {key for volume in specification["volumes"] for key in volume if key != "name"}
    assert used <= set(constraints["volumes"])
    assert "hostPath" in used
    assert specification["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert _violations(specification) == {"hostPath", "runAsNonRoot", "runAsUser", "seLinuxOptions"}
    own = pod(provider, "DaemonSet", _OPENSHIFT, 'node.seLinuxOptions={"type":"ours_t"}')
    assert own["securityContext"]["seLinuxOptions"] == {"type": "ours_t"}


@every_provider
def test_on_openshift_each_account_may_use_one_constraint(provider: str) -> None:
    roles = {}
    for entry in objects(provider, _OPENSHIFT):
        if entry["metadata"]["name"] == "confidential-csi-scc" and entry["kind"] == "Role":
            (rule,) = entry["rules"]
            assert (rule["apiGroups"], rule["verbs"]) == (["security.openshift.io"], ["use"])
            roles[entry["metadata"]["namespace"]] = rule["resourceNames"]
    assert roles == {"confidential-csi": ["nonroot-v2"], "confidential-csi-node": ["confidential-csi-node"]}
    bound = {
        entry["metadata"]["namespace"]: [(who["name"], who["namespace"]) for who in entry["subjects"]]
        for entry in objects(provider, _OPENSHIFT)
        if entry["metadata"]["name"] == "confidential-csi-scc" and entry["kind"] == "RoleBinding"
    }
    assert bound == {
        "confidential-csi": [("confidential-csi-controller", "confidential-csi")],
        "confidential-csi-node": [("confidential-csi-node", "confidential-csi-node")],
    }
