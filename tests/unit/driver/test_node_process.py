"""The real ``confidential-csi node`` over its socket: status codes, readiness, kill -9 and restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from proto import csi_pb2
from tests.bench.node import NodeProcess, temporary_folder
from tests.lab.caa import attach_scan
from tests.unit.driver.node_support import names

_Code = grpc.StatusCode


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with temporary_folder() as folder, NodeProcess(folder) as process:
        yield process


def _code(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    code = caught.value.code()
    assert isinstance(code, grpc.StatusCode)
    return code


def test_a_killed_plugin_answers_as_before_once_it_is_back(node: NodeProcess) -> None:
    """Field cases C6 and D1."""
    node.publish(1)
    before = node.record(1).stat()
    node.kill()
    leftover = node.root / ".confidential-csi-killed"
    leftover.mkdir()
    (leftover / "mountInfo.json").write_bytes(b"half")
    node.start()
    assert not leftover.exists()
    node.publish(1)
    assert node.record(1).stat().st_mtime_ns == before.st_mtime_ns
    changed = node.request(1)
    changed.readonly = True
    assert _code(lambda: node.stub.NodePublishVolume(changed)) is _Code.ALREADY_EXISTS
    elsewhere = node.request(1)
    elsewhere.target_path = node.target(99)
    assert _code(lambda: node.stub.NodePublishVolume(elsewhere)) is _Code.FAILED_PRECONDITION
    request = csi_pb2.NodeUnpublishVolumeRequest(volume_id="local:vol-1", target_path=node.target(1))
    for _ in range(2):
        node.stub.NodeUnpublishVolume(request)
        assert attach_scan(node.root) == []
        assert names(node.root) == set()
        assert not Path(node.target(1)).exists()


def test_empty_ids_and_paths_are_invalid_in_every_rpc(node: NodeProcess) -> None:
    """Field case C9."""
    publish = node.request(2)
    publish.volume_id = ""
    pathless = node.request(2)
    pathless.target_path = ""
    incapable = node.request(2)
    incapable.ClearField("volume_capability")
    calls: list[Callable[[], object]] = [
        lambda: node.stub.NodePublishVolume(publish),
        lambda: node.stub.NodePublishVolume(pathless),
        lambda: node.stub.NodePublishVolume(incapable),
        lambda: node.stub.NodeUnpublishVolume(csi_pb2.NodeUnpublishVolumeRequest(target_path="/t")),
        lambda: node.stub.NodeUnpublishVolume(csi_pb2.NodeUnpublishVolumeRequest(volume_id="v")),
        lambda: node.stub.NodeExpandVolume(csi_pb2.NodeExpandVolumeRequest(volume_path="/t")),
        lambda: node.stub.NodeExpandVolume(csi_pb2.NodeExpandVolumeRequest(volume_id="v")),
        lambda: node.stub.NodeGetVolumeStats(csi_pb2.NodeGetVolumeStatsRequest(volume_path="/t")),
        lambda: node.stub.NodeGetVolumeStats(csi_pb2.NodeGetVolumeStatsRequest(volume_id="v")),
        lambda: node.stub.NodeStageVolume(csi_pb2.NodeStageVolumeRequest(volume_id="v")),
        lambda: node.stub.NodeUnstageVolume(csi_pb2.NodeUnstageVolumeRequest(volume_id="v")),
        lambda: node.stub.NodeUnstageVolume(csi_pb2.NodeUnstageVolumeRequest(staging_target_path="/s")),
    ]
    assert [_code(call) for call in calls] == [_Code.INVALID_ARGUMENT] * len(calls)


def test_unknown_volumes(node: NodeProcess) -> None:
    """Contract 9: unpublish and unstage OK, expand and stats NOT_FOUND."""
    unknown = "/var/lib/kubelet/unknown"
    node.stub.NodeUnpublishVolume(csi_pb2.NodeUnpublishVolumeRequest(volume_id="v", target_path=unknown))
    node.stub.NodeUnstageVolume(csi_pb2.NodeUnstageVolumeRequest(volume_id="v", staging_target_path=unknown))
    expand = csi_pb2.NodeExpandVolumeRequest(volume_id="v", volume_path=unknown)
    assert _code(lambda: node.stub.NodeExpandVolume(expand)) is _Code.NOT_FOUND
    stats = csi_pb2.NodeGetVolumeStatsRequest(volume_id="v", volume_path=unknown)
    assert _code(lambda: node.stub.NodeGetVolumeStats(stats)) is _Code.NOT_FOUND


def test_tokens_and_secrets_reach_neither_log_nor_status(node: NodeProcess) -> None:
    """Field case L1."""
    request = node.request(3)
    request.secrets["k"] = "S3CR3T"
    request.volume_context["csi.storage.k8s.io/serviceAccount.tokens"] = "TOK3N"
    request.volume_context["encrypt-type"] = "none"
    with pytest.raises(grpc.RpcError) as caught:
        node.stub.NodePublishVolume(request)
    text = f"{caught.value} {node.log.read_text()}"
    assert "local:vol-3" in text
    assert "S3CR3T" not in text
    assert "TOK3N" not in text


def test_a_missing_root_is_told_by_probe_and_refused_by_publish(node: NodeProcess) -> None:
    """Field case D2: the running plugin."""
    away = node.root.rename(node.root.parent / "away")
    try:
        assert not node.probe()
        assert _code(lambda: node.publish(4)) is _Code.UNAVAILABLE
        assert not Path(node.target(4)).exists()
    finally:
        away.rename(node.root)
    assert node.probe()
    node.publish(4)
