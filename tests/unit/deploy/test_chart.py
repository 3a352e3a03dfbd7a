"""The Helm chart: what it renders fits the product's own commands and provider classes."""

from __future__ import annotations

import json
import re
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cli.main import main
from deploy.manifests import CHART, KUBE_VERSION
from driver.capabilities import HONORED_MOUNT_FLAGS
from driver.encryption import ENCRYPT_TYPE, KBS_KEY_ID
from driver.identity import PLUGIN_NAME
from driver.parameters import CLOUD_PROVIDER, FS_TYPE
from driver.peer_pods import handlers_in
from providers.interface import BlockVolumeProvider, VolumeFence, VolumeModifier, ZonedVolumes
from tests.images.dockerfile import Dockerfile
from tests.tools.go_programs import go_program
from tests.unit.deploy.changed_values import CHANGED
from tests.unit.deploy.chart import MINIMAL, Refused, container, objects, one, pod, rendered

_TOP = Path(__file__).parents[3]
_CLASSES = {
    "aws": "AwsProvider",
    "azure": "AzureProvider",
    "libvirt": "LibvirtProvider",
    "local": "LocalProvider",
}
_SCHEMA = json.loads((CHART / "values.schema.json").read_text())
_POLICY = "ValidatingAdmissionPolicy"

every_provider = pytest.mark.parametrize("provider", sorted(MINIMAL))


def _provider(name: str) -> type[BlockVolumeProvider]:
    found: type[BlockVolumeProvider] = getattr(import_module(f"providers.{name}"), _CLASSES[name])
    return found


@every_provider
def test_helm_finds_no_fault(provider: str) -> None:
    values = [f"--set={key}={value}" for key, value in MINIMAL[provider].items()]
    command = [str(go_program("helm")), "lint", "--strict", f"--kube-version={KUBE_VERSION}", str(CHART)]
    subprocess.run([*command, *values], check=True, stdout=subprocess.PIPE, timeout=60)


@every_provider
def test_a_volume_is_attached_exactly_where_the_provider_is_a_fence(provider: str) -> None:
    """Field case K2."""
    driver = one(provider, "CSIDriver")
    assert driver["metadata"]["name"] == PLUGIN_NAME
    fence = issubclass(_provider(provider), VolumeFence)
    assert driver["spec"] == {
        "attachRequired": fence,
        "podInfoOnMount": True,
        "fsGroupPolicy": "None",
        "volumeLifecycleModes": ["Persistent"],
        "requiresRepublish": False,
        "seLinuxMount": False,
        "storageCapacity": False,
    }
    names = [entry["name"] for entry in pod(provider, "Deployment")["containers"]]
    assert ("csi-attacher" in names) is fence


@every_provider
def test_classes_wait_for_the_pod_where_there_are_zones(provider: str) -> None:
    zoned = issubclass(_provider(provider), ZonedVolumes)
    classes = [entry for entry in objects(provider) if entry["kind"] == "StorageClass"]
    assert [entry["volumeBindingMode"] for entry in classes] == 2 * [
        "WaitForFirstConsumer" if zoned else "Immediate"
    ]
    assert all(entry["provisioner"] == PLUGIN_NAME and entry["allowVolumeExpansion"] for entry in classes)
    arguments = container(provider, "Deployment", "csi-provisioner")["args"]
    assert ("--feature-gates=Topology=true" in arguments) is zoned
    assert "--extra-create-metadata" in arguments


@every_provider
def test_every_class_is_of_this_driver(provider: str) -> None:
    fields = {
        "StorageClass": "provisioner",
        "VolumeSnapshotClass": "driver",
        "VolumeAttributesClass": "driverName",
    }
    classes = [
        entry for entry in objects(provider, "volumeAttributesClass.enabled=true") if entry["kind"] in fields
    ]
    assert {entry["kind"] for entry in classes} >= {"StorageClass", "VolumeSnapshotClass"}
    assert {entry[fields[entry["kind"]]] for entry in classes} == {PLUGIN_NAME}
    parameters = {entry["metadata"]["name"]: entry.get("parameters") for entry in classes}
    common = {CLOUD_PROVIDER: provider, "csi.storage.k8s.io/fstype": "ext4"}
    assert parameters["confidential-csi-plain"] == common
    template = "${pvc.namespace}/volume-key/${pvc.name}"
    assert parameters["confidential-csi-encrypted"] == {
        **common,
        ENCRYPT_TYPE: "luks2",
        KBS_KEY_ID: template,
    }


@every_provider
def test_classes_for_changes_are_for_providers_that_can_change_volumes(provider: str) -> None:
    found = [entry["kind"] for entry in objects(provider, "volumeAttributesClass.enabled=true")]
    assert ("VolumeAttributesClass" in found) is issubclass(_provider(provider), VolumeModifier)


def test_parameters_of_classes_are_those_of_the_providers() -> None:
    classes = [_provider(name) for name in _CLASSES]
    known = set[str]().union(*(entry.parameter_names for entry in classes))
    assert set(_property("storageClasses.parameters")["propertyNames"]["enum"]) == known
    changeable = set[str]().union(
        *(entry.mutable_parameter_names for entry in classes if issubclass(entry, VolumeModifier))
    )
    assert set(_property("volumeAttributesClass.parameters")["propertyNames"]["enum"]) == changeable


@every_provider
def test_the_product_takes_the_flags_of_every_container(provider: str) -> None:
    controller = container(provider, "Deployment", "driver")
    options = _parsed("controller", controller["args"])
    assert options["provider"] == provider
    node = container(provider, "DaemonSet", "driver", 'node.zone="metadata:aws"')
    options = _parsed("node", node["args"])
    assert (options["node_id"], options["zone"]) == ("worker-1", "metadata:aws")
    assert str(options["pods_root"]) == "/run/peerpod/pods"
    zone = _parsed("node", container(provider, "DaemonSet", "driver")["args"])["zone"]
    assert zone == (f"metadata:{provider}" if issubclass(_provider(provider), ZonedVolumes) else "")
    grace = pod(provider, "DaemonSet")["terminationGracePeriodSeconds"]
    assert options["grace_period"] < grace
    if provider == "libvirt":
        attach = container(provider, "DaemonSet", "attach-libvirt")
        assert attach["command"] == ["confidential-csi", "attach-libvirt"]
        assert _parsed("attach-libvirt", attach["args"])["node_id"] == "worker-1"
        assert attach["env"][1:] == controller["env"]


@every_provider
def test_describe_shows_why_a_container_of_ours_ended(provider: str) -> None:
    """A setting that is missing ends the process; without this, its pod only says CrashLoopBackOff."""
    containers = pod(provider, "Deployment")["containers"] + pod(provider, "DaemonSet")["containers"]
    ours = [one for one in containers if "/confidential-csi-" in f"/{one['image']}"]
    assert len(ours) == 2 + (provider == "libvirt")
    assert {one["terminationMessagePolicy"] for one in ours} == {"FallbackToLogsOnError"}


@pytest.mark.parametrize(("role", "kind"), [("controller", "Deployment"), ("node", "DaemonSet")])
def test_metrics_are_served_where_prometheus_is_told_to_look(role: str, kind: str) -> None:
    values = (f"metrics.{role}=true", "metrics.podMonitor.enabled=true", "metrics.port=7777")
    driver = container("aws", kind, "driver", *values)
    assert _parsed(role, driver["args"])["metrics_address"] == ":7777"
    assert driver["ports"] == [{"name": "metrics", "containerPort": 7777}]
    name = f"confidential-csi-{role}"
    found = {entry["kind"]: entry for entry in objects("aws", *values) if entry["metadata"]["name"] == name}
    monitor, workload, policy = found["PodMonitor"], found[kind], found["NetworkPolicy"]
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "metrics"}]
    assert monitor["metadata"]["namespace"] == workload["metadata"]["namespace"]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"port": 7777, "protocol": "TCP"}]
    off = container("aws", kind, "driver", f"metrics.{role}=false")
    assert _parsed(role, off["args"])["metrics_address"] == ""
    assert "ports" not in off


@every_provider
def test_both_guards_of_the_node_are_on_unless_a_value_says_otherwise(provider: str) -> None:
    """Field case K4."""
    options = _parsed("node", container(provider, "DaemonSet", "driver")["args"])
    assert handlers_in(options["peer_pod_handlers"]) == {"kata-remote"}
    assert options["one_pod_with_volumes"] is True
    (mount,) = (
        entry
        for entry in container(provider, "DaemonSet", "driver")["volumeMounts"]
        if entry["name"] == "kubernetes-api"
    )
    assert mount["mountPath"] == str(options["service_account"])
    more = container(provider, "DaemonSet", "driver", 'node.peerPodHandlers=["kata-remote","kata-cc"]')
    assert handlers_in(_parsed("node", more["args"])["peer_pod_handlers"]) == {"kata-remote", "kata-cc"}
    off = container(
        provider, "DaemonSet", "driver", "node.peerPodHandlers=[]", "node.onePodWithVolumes=false"
    )
    options = _parsed("node", off["args"])
    assert (options["peer_pod_handlers"], options["one_pod_with_volumes"]) == ("", False)


def _parsed(role: str, arguments: list[str]) -> dict[str, Any]:
    command = main.get_command(click.Context(main), role)
    assert command is not None
    given = [argument.replace("$(NODE_NAME)", "worker-1") for argument in arguments]
    return command.make_context(role, given).params


def test_settings_are_those_that_providers_read() -> None:
    sources = "".join(path.read_text() for path in (_TOP / "providers").rglob("*.py"))
    for provider in MINIMAL:
        values = [f"{key}={json.dumps(value)}" for key, (own, value) in CHANGED.items() if own == provider]
        names = [entry["name"] for entry in container(provider, "Deployment", "driver", *values)["env"]]
        assert len(names) >= 1
        for name in set(names) - {"AZURE_AUTHORITY_HOST"}:
            assert re.search(rf"\b{name}\b", sources), name


def test_every_value_has_a_schema_and_a_test() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    leaves = _leaves(values)
    assert set(leaves) == set(CHANGED)
    for leaf in leaves:
        assert _property(leaf)
        assert CHANGED[leaf][1] != _value(values, leaf), f"{leaf}: the test sets it to its default"


@pytest.mark.parametrize("name", sorted(set(CHANGED) - {"provider"}))
def test_a_value_does_what_it_says(name: str) -> None:
    provider, value = CHANGED[name]
    base = ["volumeAttributesClass.enabled=true"] if name.startswith("volumeAttributesClass") else []
    base += ["metrics.podMonitor.enabled=true"] if name.startswith("metrics.") else []
    if name in ("volumeAttributesClass.enabled", "metrics.podMonitor.enabled"):
        base = []
    changed = rendered(provider, *base, f"{name}={json.dumps(value)}")
    plain = rendered(provider, *base)
    for word in _words(value):
        assert len(re.findall(re.escape(word), changed)) > len(re.findall(re.escape(word), plain)), word
    assert changed != plain
    default = _value(yaml.safe_load((CHART / "values.yaml").read_text()), name)
    if isinstance(default, str) and re.search("[/:]", default):  # else it may stand there for something else
        assert default not in changed
    if isinstance(value, bool):
        assert (len(changed) > len(plain)) is value


def _words(value: Any) -> list[str]:
    if isinstance(value, bool):
        return []
    if isinstance(value, dict):
        return [word for entry in value.values() for word in _words(entry)]
    if isinstance(value, list):
        return [word for entry in value for word in _words(entry)]
    return [str(value)]


def _leaves(values: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in values.items():
        is_group = isinstance(value, dict) and value and key not in ("resources", "nodeSelector")
        found += _leaves(value, f"{prefix}{key}.") if is_group else [prefix + key]
    return found


def _value(values: dict[str, Any], name: str) -> Any:
    found: Any = values
    for part in name.split("."):
        found = found[part]
    return found


def _property(name: str) -> dict[str, Any]:
    found = _SCHEMA
    for part in name.split("."):
        found = found["properties"][part]
    result: dict[str, Any] = found
    return result


@pytest.mark.parametrize(
    ("provider", "value"),
    [
        ("aws", "awz.region=x"),
        ("aws", "aws.regoin=x"),
        ("aws", "node.kubletRoot=/x"),
        ("aws", "node.kubeletRoot=var/lib/kubelet"),
        ("aws", "node.peerPodHandlers={Kata}"),
        ("aws", "node.peerPodHandlers={kata,}"),
        ("aws", "node.peerPodHandlers=kata-remote"),
        ("aws", "node.onePodWithVolumes=7"),
        ("aws", "networkPolicies.apiServerPorts={0}"),
        ("aws", "networkPolicies.apiServerPorts={}"),  # a rule without ports would let everything through
        ("aws", "metrics.port=9808"),  # of another container of the pod
        ("aws", "namespaces.controller=not.a.label"),
        ("aws", r"extraTags.owner=a\,b"),
        ("aws", r"extraTags.a\,b=c"),
        ("aws", r"aws.moreRegions={a\,b}"),
        ("libvirt", "libvirt.directories={/srv/a:/srv/b}"),
        ("aws", "controller.replicas=0"),
        ("aws", "controller.env.AWS_SECRET_ACCESS_KEY=x"),
        ("aws", "storageClasses.parameters.awsAccessKeyId=x"),
        ("aws", "storageClasses.parameters.awsVolumetype=gp3"),
        ("aws", "storageClasses.encrypted.keyId=kbs:///default/key/one"),
        ("aws", "storageClasses.encrypted.keyId="),
        ("aws", "admissionPolicies.moreStorageClasses={it's}"),
        ("aws", "provider=azuer"),
        ("azure", "azure.subscriptionId="),
        ("azure", "azure.subscriptionId=mine"),
        ("azure", "azure.resourceGroup="),
        ("libvirt", "libvirt.uri="),
        ("local", "local.claimName="),
    ],
)
def test_the_schema_refuses(provider: str, value: str) -> None:
    with pytest.raises(Refused, match="schema"):
        rendered(provider, value, what="set")


def test_the_api_server_s_ports_can_t_be_taken_back() -> None:
    """Null removes a default, and a rule without ports would let everything through."""
    with pytest.raises(Refused, match="apiServerPorts is missing"):
        rendered("aws", "networkPolicies.apiServerPorts=null")


def test_both_roles_in_one_namespace_would_be_an_exception_for_both() -> None:
    with pytest.raises(Refused, match="are the same"):
        rendered("aws", "namespaces.node=confidential-csi", what="set")


@every_provider
def test_admission_policies_fail_closed_and_say_what_the_driver_says(provider: str) -> None:
    """Field case K3; tests/cluster/admission has them on a real API server."""
    found = objects(provider)
    policies = {entry["metadata"]["name"]: entry["spec"] for entry in found if entry["kind"] == _POLICY}
    bindings = {entry["spec"]["policyName"]: entry for entry in found if entry["kind"] == f"{_POLICY}Binding"}
    assert len(policies) == 3
    assert set(bindings) == set(policies)
    for name, policy in policies.items():
        assert policy["failurePolicy"] == "Fail"
        assert bindings[name]["spec"]["validationActions"] == ["Deny"]
        assert all(entry["message"] for entry in policy["validations"])
    of_classes = policies["confidential-csi-storageclasses"]
    (unknown,) = (entry["expression"] for entry in of_classes["variables"] if entry["name"] == "unknown")
    names = {CLOUD_PROVIDER, ENCRYPT_TYPE, KBS_KEY_ID, FS_TYPE} | _provider(provider).parameter_names
    assert set(re.findall(r"'([^']+)'", unknown)) == names
    for policy in (of_classes, policies["confidential-csi-persistentvolumes"]):
        (options,) = (
            entry["expression"] for entry in policy["validations"] if "mountOptions" in entry["expression"]
        )
        assert set(re.findall(r"'([^']+)'", options)) == HONORED_MOUNT_FLAGS


def test_claims_are_looked_at_where_the_driver_s_classes_are_known() -> None:
    def names(*values: str) -> list[str]:
        return [entry["metadata"]["name"] for entry in objects("aws", *values) if entry["kind"] == _POLICY]

    assert "confidential-csi-persistentvolumeclaims" not in names("storageClasses.create=false")
    more = names("storageClasses.create=false", 'admissionPolicies.moreStorageClasses=["own"]')
    assert "confidential-csi-persistentvolumeclaims" in more


def test_the_controller_of_each_provider_has_an_image_of_its_own_target_and_lock() -> None:
    dockerfile = Dockerfile((_TOP / "Dockerfile").read_text())
    for provider in MINIMAL:
        image = container(provider, "Deployment", "driver")["image"].partition(":")[0]
        target = dockerfile.stages[image.removeprefix("confidential-csi-")]
        (stage,) = (one.flags["from"] for one in target.instructions if "from" in one.flags)
        lock = "driver" if provider == "local" else provider
        assert stage == f"build-{lock}"
        commands = " ".join(one.rest for one in dockerfile.stages[stage].instructions)
        assert re.findall(r"locks/(\w+)\.txt", commands) == [lock]
        assert (_TOP / "locks" / f"{lock}.txt").exists()
    node = dockerfile.stages["node"].instructions
    assert [one.flags["from"] for one in node if "from" in one.flags] == ["build-driver"]
