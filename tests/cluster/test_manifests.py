"""The API server itself judges what the chart renders, for each provider."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.manifests import DEPLOY
from tests.cluster.api import until
from tests.cluster.control_plane import ControlPlane, running
from tests.cluster.definitions import foreign_definitions
from tests.cluster.programs import Programs
from tests.unit.deploy.changed_values import all_changed
from tests.unit.deploy.chart import MINIMAL, made_by_helm_test, objects

_CONTROLLER, _NODE = "confidential-csi", "confidential-csi-node"

#: Kinds that others define.
_FOREIGN = ("SecurityContextConstraints", "PodMonitor")

#: The node plugin's exceptions, as Pod Security words them: it has hostPath volumes, and is root. The reasons
#: are in the chart's daemonset.yaml, and in docs/security.md.
_EXCEPTIONS = {
    "baseline": "hostPath volumes",
    "restricted": "restricted volume types, runAsNonRoot != true, runAsUser=0",
}


@pytest.fixture(scope="module")
def namespaces(kubernetes: Programs) -> Iterator[ControlPlane]:
    """A control plane of their own with the chart's namespaces and accounts, and nothing else."""
    with running(kubernetes) as control_plane:
        control_plane.apply((DEPLOY / "namespace.yaml").read_text())
        control_plane.apply((DEPLOY / "rbac.yaml").read_text())
        yield control_plane


@pytest.mark.parametrize("provider", sorted(MINIMAL))
def test_the_api_server_takes_every_object_of_the_chart(namespaces: ControlPlane, provider: str) -> None:
    """An unknown or duplicate field would be refused; nothing is even warned of."""
    rendered = objects(provider, "volumeAttributesClass.enabled=true")
    answer = namespaces.kubectl(
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"),
        text=yaml.safe_dump_all(rendered),
    )
    assert answer.count("(server dry run)") == len(rendered)
    assert "Warning" not in answer


@pytest.mark.parametrize("provider", sorted(MINIMAL))
def test_the_api_server_takes_every_object_with_every_value_changed(
    namespaces: ControlPlane, provider: str
) -> None:
    rendered = [entry for entry in objects(provider, *all_changed(provider)) if entry["kind"] not in _FOREIGN]
    answer = namespaces.kubectl(
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"),
        text=yaml.safe_dump_all(rendered),
    )
    assert answer.count("(server dry run)") == len(rendered)
    assert "Warning" not in answer


def test_the_api_server_takes_what_helm_test_makes(namespaces: ControlPlane) -> None:
    """Also in a namespace where Pod Security is "baseline"."""
    until(lambda: namespaces.api.find("ServiceAccount", "default"), what="pods can be made")
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "kata-remote"}
    namespaces.api.create({**runtime, "metadata": {"name": "kata-remote"}})
    namespaces.kubectl("label", "namespace", "default", "pod-security.kubernetes.io/enforce=baseline")
    answer = namespaces.kubectl(
        *("create", "--dry-run=server", "--validate=strict", "-f", "-"),
        text=yaml.safe_dump_all(made_by_helm_test("aws")),
    )
    assert answer.count("created (server dry run)") == 2
    assert "Warning" not in answer


def test_the_api_server_takes_the_objects_of_kinds_that_others_define(namespaces: ControlPlane) -> None:
    for definition in foreign_definitions():
        namespaces.kubectl("create", "-f", str(definition))
    namespaces.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    values = ("openshift.enabled=true", "metrics.node=true", "metrics.podMonitor.enabled=true")
    foreign = [entry for entry in objects("aws", *values) if entry["kind"] in _FOREIGN]
    assert len(foreign) == 3
    answer = namespaces.kubectl(
        *("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"),
        text=yaml.safe_dump_all(foreign),
    )
    assert answer.count("(server dry run)") == 3
    assert "Warning" not in answer


@pytest.mark.parametrize("manifest", sorted(DEPLOY.glob("*.yaml")), ids=lambda path: path.name)
def test_the_api_server_takes_every_plain_manifest(namespaces: ControlPlane, manifest: Path) -> None:
    answer = namespaces.kubectl(
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"),
        *("-f", str(manifest)),
    )
    assert "(server dry run)" in answer
    assert "Warning" not in answer


def test_only_the_node_plugin_is_an_exception_from_pod_security(namespaces: ControlPlane) -> None:
    """Its pods break "restricted" and "baseline" in the listed ways; the controller's in none."""
    for provider in MINIMAL:
        for kind, namespace in (("Deployment", _CONTROLLER), ("DaemonSet", _NODE)):
            namespaces.api.create(_pod(provider, kind, namespace))
    for level, exceptions in _EXCEPTIONS.items():
        assert _violations(namespaces, _NODE, level) == {exceptions}
        assert _violations(namespaces, _CONTROLLER, level) == set()


def _pod(provider: str, kind: str, namespace: str) -> dict[str, Any]:
    (workload,) = (found for found in objects(provider) if found["kind"] == kind)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{kind.lower()}-{provider}", "namespace": namespace},
        "spec": workload["spec"]["template"]["spec"],
    }


def _violations(control_plane: ControlPlane, namespace: str, level: str) -> set[str]:
    label = f"pod-security.kubernetes.io/enforce={level}"
    answer = control_plane.kubectl("label", "--dry-run=server", "--overwrite", "namespace", namespace, label)
    assert "(server dry run)" in answer
    return set(re.findall(r"^Warning: [a-z-]+(?: \(and [0-9]+ other pods?\))?: (.+)$", answer, re.MULTILINE))
