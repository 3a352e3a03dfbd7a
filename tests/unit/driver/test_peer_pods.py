"""Publishes for peer pods alone, as the RuntimeClass in a real HTTPS server's pod says."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from driver.errors import FailedPrecondition, Unavailable
from driver.kubernetes_api import KubernetesApi
from driver.peer_pods import PeerPodGuard, handlers_in
from tests.fakes.kubernetes_api import ClusterApi, answer, cluster_api
from tests.peers.authority import Authority
from tests.unit.driver.node_support import CONTEXT, POD_UID, Worker, names, publish, unpublish, waiting

_SECONDS = 30.0
_POD = {
    "csi.storage.k8s.io/pod.namespace": "ledger",
    "csi.storage.k8s.io/pod.name": "web-0",
    "csi.storage.k8s.io/pod.uid": POD_UID,
    "csi.storage.k8s.io/serviceAccount.name": "default",
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "cluster")


@pytest.fixture
def cluster(authority: Authority) -> Iterator[ClusterApi]:
    with cluster_api(authority) as api:
        yield api


def _guard(cluster: ClusterApi, handlers: str = "kata-remote") -> PeerPodGuard:
    api = KubernetesApi.in_cluster(cluster.environment(), cluster.credentials)
    return PeerPodGuard(api, handlers_in(handlers))


def _refused(node: Worker, guard: PeerPodGuard, pod: dict[str, str] | None = None) -> str:
    """The words of a refused publish, which left nothing."""
    target = node.target()
    with pytest.raises(FailedPrecondition) as caught:
        publish(
            node.start(peer_pods=guard),
            target,
            context=CONTEXT | (_POD if pod is None else pod),
            call=waiting(_SECONDS),
        )
    assert names(node.root) == set()
    assert not Path(target).exists()
    message = str(caught.value)
    assert len(message.encode()) < 980
    return message


def test_a_peer_pods_volume_is_published(node: Worker, cluster: ClusterApi) -> None:
    """Field case K4."""
    cluster.add_pod("ledger", "web-0", POD_UID, "kata-remote")
    publish(
        node.start(peer_pods=_guard(cluster)), node.target(), context=CONTEXT | _POD, call=waiting(_SECONDS)
    )
    assert names(node.root) == {node.record(node.target()).name}
    assert cluster.asked == [
        "/api/v1/namespaces/ledger/pods/web-0",
        "/apis/node.k8s.io/v1/runtimeclasses/kata-remote",
    ]


def test_the_handler_counts_not_the_name_of_the_class(node: Worker, cluster: ClusterApi) -> None:
    """Field case K4."""
    cluster.add_runtime_class("confidential", "kata-remote-tdx")
    cluster.add_pod("ledger", "web-0", POD_UID, "confidential")
    assert "kata-remote-tdx" in _refused(node, _guard(cluster))
    publish(
        node.start(peer_pods=_guard(cluster, "kata-remote, kata-remote-tdx")),
        node.target(),
        context=CONTEXT | _POD,
        call=waiting(_SECONDS),
    )


@pytest.mark.parametrize("runtime_class", [None, ""])
def test_a_pod_without_a_runtime_class_is_refused(
    node: Worker, cluster: ClusterApi, runtime_class: str | None
) -> None:
    """Field case K4."""
    cluster.add_pod("ledger", "web-0", POD_UID, runtime_class)
    message = _refused(node, _guard(cluster))
    assert "pod ledger/web-0 has no runtimeClassName" in message
    assert "handler kata-remote" in message


@pytest.mark.parametrize("runtime_class", ["kata-qemu", "runc"])
def test_a_pod_with_another_handler_is_refused(node: Worker, cluster: ClusterApi, runtime_class: str) -> None:
    """Field case K4."""
    cluster.add_pod("ledger", "web-0", POD_UID, runtime_class)
    message = _refused(node, _guard(cluster, "kata-remote,kata-remote-snp"))
    assert f"RuntimeClass {runtime_class} with handler {runtime_class}" in message
    assert "handler kata-remote or kata-remote-snp" in message


@pytest.mark.parametrize("missing", ["namespace", "name", "uid"])
@pytest.mark.parametrize("how", ["absent", "empty"])
def test_a_pod_that_is_not_told_is_refused_without_asking(
    node: Worker, cluster: ClusterApi, missing: str, how: str
) -> None:
    """Field case K4."""
    key = f"csi.storage.k8s.io/pod.{missing}"
    pod = {name: value for name, value in _POD.items() if name != key}
    message = _refused(node, _guard(cluster), pod | ({key: ""} if how == "empty" else {}))
    assert f"({key} missing)" in message
    assert "podInfoOnMount" in message
    assert cluster.asked == []


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("name", ".."),
        ("name", "web/0"),
        ("name", "web-0?pretty=true"),
        ("name", "Web"),
        ("name", "web-0\r\nHost: x"),
        ("name", "w" * 254),
        ("namespace", "../.."),
        ("namespace", "kube.system"),
        ("namespace", "n" * 64),
    ],
)
def test_what_is_no_name_never_gets_into_a_path(
    node: Worker, cluster: ClusterApi, part: str, value: str
) -> None:
    """Field case C9, for paths of the API."""
    assert "can't be a pod's name" in _refused(
        node, _guard(cluster), _POD | {f"csi.storage.k8s.io/pod.{part}": value}
    )
    assert cluster.asked == []


def test_a_pod_that_is_gone_or_was_made_anew_is_refused(node: Worker, cluster: ClusterApi) -> None:
    guard = _guard(cluster)
    assert "does not exist any more" in _refused(node, guard)
    cluster.add_pod("ledger", "web-0", "another-uid", "kata-remote")
    assert f"uid {POD_UID} does not exist any more" in _refused(node, guard)


def test_a_runtime_class_that_is_gone_is_refused(node: Worker, cluster: ClusterApi) -> None:
    cluster.add_pod("ledger", "web-0", POD_UID, "deleted")
    assert "RuntimeClass deleted, which does not exist" in _refused(node, _guard(cluster))


@pytest.mark.parametrize("resource", ["pods", "runtimeclasses"])
def test_what_the_api_does_not_tell_is_asked_again(node: Worker, cluster: ClusterApi, resource: str) -> None:
    """UNAVAILABLE, and nothing is left; once the API tells, the same call works."""
    cluster.add_pod("ledger", "web-0", POD_UID, "kata-remote")
    plugin, target = node.start(peer_pods=_guard(cluster)), node.target()
    cluster.permissions.remove(resource)
    with pytest.raises(Unavailable, match=f"verb get on {resource}"):
        publish(plugin, target, context=CONTEXT | _POD, call=waiting(_SECONDS))
    assert names(node.root) == set()
    assert not Path(target).exists()
    cluster.permissions.add(resource)
    publish(plugin, target, context=CONTEXT | _POD, call=waiting(_SECONDS))


def test_no_look_lasts_longer_than_the_call(node: Worker, cluster: ClusterApi) -> None:
    def say_nothing(handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(1)

    cluster.fault = say_nothing
    with pytest.raises(Unavailable, match="in time"):
        publish(
            node.start(peer_pods=_guard(cluster)), node.target(), context=CONTEXT | _POD, call=waiting(0.3)
        )


@pytest.mark.parametrize(
    "content",
    [b"{}", b'{"metadata": null}', b'{"metadata": {"uid": 7}}', b'{"metadata": ["uid"], "spec": {}}'],
)
def test_an_object_that_is_no_pod_is_not_believed(node: Worker, cluster: ClusterApi, content: bytes) -> None:
    cluster.fault = lambda handler: answer(handler, 200, content)
    with pytest.raises(Unavailable, match=r"metadata\.uid"):
        publish(
            node.start(peer_pods=_guard(cluster)),
            node.target(),
            context=CONTEXT | _POD,
            call=waiting(_SECONDS),
        )


def test_an_odd_runtime_class_name_stays_one_part_of_the_path(node: Worker, cluster: ClusterApi) -> None:
    cluster.add_pod("ledger", "web-0", POD_UID, "../../../api/v1/secrets?x")
    _refused(node, _guard(cluster))
    assert cluster.asked[1:] == ["/apis/node.k8s.io/v1/runtimeclasses/..%2F..%2F..%2Fapi%2Fv1%2Fsecrets%3Fx"]


def test_a_replay_and_an_unpublish_ask_nobody(node: Worker, cluster: ClusterApi) -> None:
    """As after a restart of kubelet with the API server away: running pods keep their volumes."""
    cluster.add_pod("ledger", "web-0", POD_UID, "kata-remote")
    plugin, target = node.start(peer_pods=_guard(cluster)), node.target()
    publish(plugin, target, context=CONTEXT | _POD, call=waiting(_SECONDS))
    asked = list(cluster.asked)
    publish(plugin, target, context=CONTEXT | _POD)
    unpublish(plugin, target)
    assert cluster.asked == asked


def test_handlers_are_listed_with_commas() -> None:
    assert handlers_in("kata-remote") == {"kata-remote"}
    assert handlers_in(" kata-remote ,kata-cc") == {"kata-remote", "kata-cc"}


@pytest.mark.parametrize(
    "text", ["", ",", "kata-remote,", "Kata", "kata.remote", "-x", "k" * 64, "ka ta", "ä"]
)
def test_what_is_no_handler_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the handler of a RuntimeClass"):
        handlers_in(text)
