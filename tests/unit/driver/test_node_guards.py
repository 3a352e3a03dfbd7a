"""The real ``confidential-csi node`` with its guards on: flags, codes, memory, a token that is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from proto import csi_pb2
from tests.bench.node import (
    MEMORY_BUDGET_MB,
    POD_NAME,
    POD_NAMESPACE,
    POD_UID,
    NodeProcess,
    temporary_folder,
)
from tests.fakes.kubernetes_api import ClusterApi, cluster_api
from tests.lab.caa import attach_scan
from tests.peers.authority import Authority
from tests.unit.driver.rig import refused

_Code = grpc.StatusCode
_OTHER_UID = "99999999-8888-7777-6666-555555555555"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterApi]:
    with cluster_api(Authority(tmp_path_factory.mktemp("ca"), "cluster")) as api:
        yield api


@pytest.fixture(scope="module")
def node(cluster: ClusterApi) -> Iterator[NodeProcess]:
    options = (
        "--peer-pod-handlers=kata-remote,kata-remote-tdx",
        f"--service-account={cluster.credentials}",
        "--one-pod-with-volumes",
    )
    environment = cluster.environment()
    with temporary_folder() as folder, NodeProcess(folder, *options, environment=environment) as process:
        yield process


@pytest.fixture(autouse=True)
def _clean(cluster: ClusterApi, node: NodeProcess) -> Iterator[None]:
    cluster.objects.clear()
    cluster.fault = None
    for name in ("kata-remote", "kata-qemu"):
        cluster.add_runtime_class(name, name)
    yield
    for number in range(4):
        request = csi_pb2.NodeUnpublishVolumeRequest(
            volume_id=f"local:vol-{number}", target_path=node.target(number)
        )
        node.stub.NodeUnpublishVolume(request, timeout=20)


def test_pods_that_are_no_peer_pods_are_refused_in_words_for_an_event(
    cluster: ClusterApi, node: NodeProcess
) -> None:
    """Field case K4."""
    cluster.add_pod(POD_NAMESPACE, POD_NAME, POD_UID, None)
    with refused(_Code.FAILED_PRECONDITION) as refusal:
        node.publish(1)
    assert refusal.message.startswith("pod default/bench-0 has no runtimeClassName")
    cluster.add_pod(POD_NAMESPACE, POD_NAME, POD_UID, "kata-qemu")
    with refused(_Code.FAILED_PRECONDITION) as refusal:
        node.publish(1)
    assert "kata-qemu" in refusal.message
    assert attach_scan(node.root) == []
    cluster.add_pod(POD_NAMESPACE, POD_NAME, POD_UID, "kata-remote")
    node.publish(1)
    assert attach_scan(node.root) == ["disk-1"]


def test_no_pod_in_the_request_is_refused(node: NodeProcess) -> None:
    """Field case K4."""
    request = node.request(1)
    del request.volume_context["csi.storage.k8s.io/pod.uid"]
    with refused(_Code.FAILED_PRECONDITION) as refusal:
        node.stub.NodePublishVolume(request, timeout=20)
    assert "podInfoOnMount" in refusal.message


def test_a_failing_api_is_unavailable_and_no_token_gets_out(cluster: ClusterApi, node: NodeProcess) -> None:
    cluster.add_pod(POD_NAMESPACE, POD_NAME, POD_UID, "kata-remote")
    (cluster.credentials / "token").write_text("S3CR3T-of-no-one")
    with refused(_Code.UNAVAILABLE) as refusal:
        node.publish(1)
    assert "S3CR3T" not in refusal.message + node.log.read_text()
    cluster.rotate_token("the-next")
    node.publish(1)


def test_a_second_pod_waits_until_the_first_is_gone(cluster: ClusterApi, node: NodeProcess) -> None:
    cluster.add_pod(POD_NAMESPACE, POD_NAME, POD_UID, "kata-remote")
    cluster.add_pod(POD_NAMESPACE, "other-0", _OTHER_UID, "kata-remote")
    node.publish(1)
    node.publish(2)
    request = _of_other_pod(node, 3)
    with refused(_Code.FAILED_PRECONDITION) as refusal:
        node.stub.NodePublishVolume(request, timeout=20)
    assert f"pod with uid {POD_UID}" in refusal.message
    for number in (1, 2):
        first = csi_pb2.NodeUnpublishVolumeRequest(
            volume_id=f"local:vol-{number}", target_path=node.target(number)
        )
        node.stub.NodeUnpublishVolume(first, timeout=20)
    node.stub.NodePublishVolume(request, timeout=20)
    last = csi_pb2.NodeUnpublishVolumeRequest(volume_id="local:vol-3", target_path=request.target_path)
    node.stub.NodeUnpublishVolume(last, timeout=20)
    assert attach_scan(node.root) == []


def _of_other_pod(node: NodeProcess, number: int) -> csi_pb2.NodePublishVolumeRequest:
    request = node.request(number)
    request.target_path = request.target_path.replace(POD_UID, _OTHER_UID)
    Path(request.target_path).parent.mkdir(parents=True, exist_ok=True)
    request.volume_context["csi.storage.k8s.io/pod.name"] = "other-0"
    request.volume_context["csi.storage.k8s.io/pod.uid"] = _OTHER_UID
    return request


def test_without_its_flags_the_plugin_guards_nothing_and_asks_nobody(cluster: ClusterApi) -> None:
    asked = len(cluster.asked)
    with (
        temporary_folder() as folder,
        NodeProcess(folder, environment=cluster.environment()) as unguarded,
    ):
        unguarded.publish(1)
        unguarded.stub.NodePublishVolume(_of_other_pod(unguarded, 2), timeout=20)
        assert sorted(attach_scan(unguarded.root)) == ["disk-1", "disk-2"]
    assert len(cluster.asked) == asked


def test_the_guards_fit_the_plugins_memory(cluster: ClusterApi, node: NodeProcess) -> None:
    cluster.add_pod(POD_NAMESPACE, POD_NAME, POD_UID, "kata-remote")
    for number in range(4):
        node.publish(number)
    assert node.resident_mb() <= MEMORY_BUDGET_MB
