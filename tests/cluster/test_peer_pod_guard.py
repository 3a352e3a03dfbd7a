"""The node plugin's peer-pod guard asks a real API server, with the rights that the chart gives it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from proto import csi_pb2
from tests.bench.node import NodeProcess, temporary_folder
from tests.cluster.api import Api, Object, until
from tests.cluster.control_plane import ControlPlane
from tests.unit.deploy.chart import objects
from tests.unit.driver.rig import refused

_Code = grpc.StatusCode
_NAMESPACE = "guarded-pods"
_CHARTS_NAME, _NODE = "confidential-csi-node", "guarded-plugin"
"""Namespace, service account and ClusterRole of the node plugin; other tests may have the chart's own."""


@contextmanager
def _granted(control_plane: ControlPlane) -> Iterator[None]:
    """What the chart has for the node plugin's account, and a namespace for pods."""
    api = control_plane.api
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    own = [
        entry
        for entry in objects("local")
        if entry["kind"] in kinds and entry["metadata"]["name"] == _CHARTS_NAME
    ]
    assert [entry["kind"] for entry in own] == list(kinds)
    for name in (_NODE, _NAMESPACE):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for entry in own:
        control_plane.apply(json.dumps(entry).replace(_CHARTS_NAME, _NODE))
    for name, handler in (("peer", "kata-remote"), ("local-vm", "kata-qemu")):
        api.create(
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": name},
                "handler": handler,
            }
        )
    until(lambda: api.find("ServiceAccount", "default", _NAMESPACE), what="a default service account")
    yield
    control_plane.kubectl("delete", "runtimeclass", "peer", "local-vm")
    control_plane.kubectl("delete", "clusterrole,clusterrolebinding", _NODE)
    control_plane.kubectl("delete", "namespace", _NODE, _NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane) -> Iterator[NodeProcess]:
    """The real node plugin, as a pod of the cluster would run it."""
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(control_plane.port)}
    with _granted(control_plane), temporary_folder() as folder, tempfile.TemporaryDirectory() as account:
        (Path(account) / "token").write_text(control_plane.token(_NODE, _NODE))
        (Path(account) / "ca.crt").write_bytes(control_plane.authority.pair.certificate.read_bytes())
        options = ("--peer-pod-handlers=kata-remote", f"--service-account={account}")
        with NodeProcess(folder, *options, environment=environment) as process:
            yield process


@contextmanager
def _pod(api: Api, name: str, runtime_class: str | None) -> Iterator[Object]:
    """A pod that no node runs."""
    spec: Object = {"containers": [{"name": "main", "image": "busybox"}]}
    if runtime_class is not None:
        spec["runtimeClassName"] = runtime_class
    metadata = {"name": name, "namespace": _NAMESPACE}
    made = api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    try:
        yield made
    finally:
        api.delete("Pod", name, _NAMESPACE, gracePeriodSeconds="0")


def _publish(node: NodeProcess, pod: Object) -> None:
    request = node.request(1)
    for part in ("namespace", "name", "uid"):
        request.volume_context[f"csi.storage.k8s.io/pod.{part}"] = pod["metadata"][part]
    node.stub.NodePublishVolume(request, timeout=30)


def _unpublish(node: NodeProcess) -> None:
    request = csi_pb2.NodeUnpublishVolumeRequest(volume_id="local:vol-1", target_path=node.target(1))
    node.stub.NodeUnpublishVolume(request, timeout=30)


def test_a_volume_is_published_for_a_peer_pod_alone(api: Api, node: NodeProcess) -> None:
    """Field case K4."""
    with _pod(api, "first", "peer") as pod:
        # The API server learns of a role a moment after it was made.
        until(lambda: _is_published(node, pod), what="the plugin may look")
        _unpublish(node)
    with _pod(api, "without", None) as pod, refused(_Code.FAILED_PRECONDITION) as refusal:
        _publish(node, pod)
    assert "has no runtimeClassName" in refusal.message
    with _pod(api, "other", "local-vm") as pod, refused(_Code.FAILED_PRECONDITION) as refusal:
        _publish(node, pod)
    assert "RuntimeClass local-vm with handler kata-qemu" in refusal.message
    with _pod(api, "peer", "peer") as pod:
        _publish(node, pod)
        _unpublish(node)
    with refused(_Code.FAILED_PRECONDITION) as refusal:
        _publish(node, pod)
    assert "does not exist any more" in refusal.message


@pytest.mark.parametrize("resource", ["pods", "runtimeclasses"])
def test_each_rule_of_its_role_is_needed(api: Api, node: NodeProcess, resource: str) -> None:
    """Field case K1."""
    rules = api.get("ClusterRole", _NODE)["rules"]
    kept = [rule for rule in rules if resource not in rule["resources"]]
    assert len(kept) == len(rules) - 1
    with _pod(api, f"without-{resource}", "peer") as pod:
        api.patch("ClusterRole", _NODE, {"rules": kept})
        try:
            until(lambda: _is_forbidden(node, pod, resource), what=f"{resource} are kept from the plugin")
        finally:
            api.patch("ClusterRole", _NODE, {"rules": rules})
        until(lambda: _is_published(node, pod), what="the plugin may look again")
        _unpublish(node)


def _is_forbidden(node: NodeProcess, pod: Object, resource: str) -> bool:
    try:
        _publish(node, pod)
    except grpc.RpcError as refusal:
        return refusal.code() is _Code.UNAVAILABLE and f"verb get on {resource}" in (refusal.details() or "")
    _unpublish(node)  # the API server did not know yet
    return False


def _is_published(node: NodeProcess, pod: Object) -> bool:
    try:
        _publish(node, pod)
    except grpc.RpcError:
        return False
    return True
