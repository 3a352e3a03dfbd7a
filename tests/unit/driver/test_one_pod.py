"""One pod with volumes at a time on a node."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.direct_volumes import DirectVolumes
from driver.errors import Aborted, DriverError, FailedPrecondition, Internal
from driver.mountinfo import MountInfo
from driver.node import NodeService
from tests.lab.caa import attach_scan
from tests.unit.driver.node_support import Worker, names, publish, unpublish

_OTHER_UID = "99999999-8888-7777-6666-555555555555"


def _publish(plugin: NodeService, target: str, number: int) -> None:
    publish(plugin, target, volume_id=f"local:vol-{number}", context={"cloud-volume-path": f"disk-{number}"})


def test_another_pods_volume_is_refused_until_the_first_pod_is_gone(node: Worker) -> None:
    """Contract 1: cloud-api-adaptor gives each new PodVM every disk that is published on the node."""
    plugin = node.start(one_pod=True)
    first, second = node.target("pvc-1"), node.target("pvc-2", pod_uid=_OTHER_UID)
    _publish(plugin, first, 1)
    for again in (plugin, node.start(one_pod=True)):
        with pytest.raises(FailedPrecondition) as caught:
            _publish(again, second, 2)
        message = str(caught.value)
        assert "volume pvc-1 of the pod with uid 11111111-2222-3333-4444-555555555555" in message
        assert "cloud-api-adaptor" in message
        assert "docs/one-pod-per-node.md" in message
        assert len(message.encode()) < 980
        assert attach_scan(node.root) == ["disk-1"]
        assert not Path(second).exists()
    unpublish(plugin, first, volume_id="local:vol-1")
    _publish(plugin, second, 2)
    assert attach_scan(node.root) == ["disk-2"]


def test_volumes_of_one_pod_and_replays_are_let_through(node: Worker) -> None:
    plugin = node.start(one_pod=True)
    for _ in range(2):
        for number in range(3):
            _publish(plugin, node.target(f"pvc-{number}"), number)
    assert attach_scan(node.root, pod_uid="11111111-2222-3333-4444-555555555555") == attach_scan(node.root)
    assert len(attach_scan(node.root)) == 3


def test_pods_that_share_the_node_already_are_replayed_but_get_nothing_new(node: Worker) -> None:
    """As when the rule is switched on over running pods, and kubelet starts again."""
    before = node.start()
    first, second = node.target("pvc-1"), node.target("pvc-2", pod_uid=_OTHER_UID)
    _publish(before, first, 1)
    _publish(before, second, 2)
    plugin = node.start(one_pod=True)
    _publish(plugin, first, 1)
    _publish(plugin, second, 2)
    with pytest.raises(FailedPrecondition, match="pvc-2"):
        _publish(plugin, node.target("pvc-3"), 3)


def test_a_damaged_record_of_another_pod_counts(node: Worker) -> None:
    """Its pod's next replay makes it whole."""
    plugin = node.start(one_pod=True)
    first = node.target("pvc-1")
    _publish(plugin, first, 1)
    (node.record(first) / "mountInfo.json").write_bytes(b"{")
    with pytest.raises(FailedPrecondition, match="pvc-1"):
        _publish(plugin, node.target("pvc-2", pod_uid=_OTHER_UID), 2)
    _publish(plugin, first, 1)


def test_a_record_whose_pods_directory_is_gone_counts_and_is_kept(node: Worker) -> None:
    """cloud-api-adaptor takes it, too, and nobody but a person knows whether its PodVM is gone."""
    plugin = node.start(one_pod=True)
    first = node.target("pvc-1")
    _publish(plugin, first, 1)
    gone = Path(first).parents[3]
    shutil.rmtree(gone)
    with pytest.raises(FailedPrecondition) as caught:
        _publish(plugin, node.target("pvc-2", pod_uid=_OTHER_UID), 2)
    assert f"directory {gone} is gone" in str(caught.value)
    assert "remove the record" in str(caught.value)
    assert attach_scan(node.root) == ["disk-1"]
    unpublish(plugin, first, volume_id="local:vol-1")
    _publish(plugin, node.target("pvc-2", pod_uid=_OTHER_UID), 2)


def test_what_cloud_api_adaptor_passes_over_does_not_count(node: Worker) -> None:
    """Paths that are not as kubelet's, and entries that are no records."""
    plugin = node.start(one_pod=True)
    (node.root / "not base64").mkdir()
    (node.root / ".confidential-csi-leftover").mkdir()
    elsewhere = node.kubelet / "elsewhere"
    elsewhere.mkdir(parents=True)
    _publish(plugin, str(elsewhere / "one"), 1)
    _publish(plugin, str(elsewhere / "two"), 2)
    _publish(plugin, node.target("pvc-3"), 3)
    _publish(plugin, str(elsewhere / "four"), 4)
    assert attach_scan(node.root) == ["disk-3"]


def test_without_the_rule_pods_share_the_node(node: Worker) -> None:
    plugin = node.start()
    _publish(plugin, node.target("pvc-1"), 1)
    _publish(plugin, node.target("pvc-2", pod_uid=_OTHER_UID), 2)
    assert sorted(attach_scan(node.root)) == ["disk-1", "disk-2"]


class _StopBeforeWriting:
    """Holds up the publish of one target where nothing is written yet; then it goes on, or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, target: str, *, fails: bool) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        write: Callable[[DirectVolumes, str, MountInfo], None] = DirectVolumes.write

        def slow_write(volumes: DirectVolumes, target_path: str, info: MountInfo) -> None:
            if target_path == target:
                self.reached.set()
                assert self.go_on.wait(60)
                if fails:
                    raise Internal("no space left")
            write(volumes, target_path, info)

        monkeypatch.setattr(DirectVolumes, "write", slow_write)


@pytest.mark.parametrize("fails", [False, True])
def test_two_pods_at_once_end_with_one(node: Worker, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """The first is past the check and has written nothing: the lock of each volume knows nothing of it."""
    plugin = node.start(one_pod=True)
    first, beside = node.target("pvc-1"), node.target("pvc-3")
    second = node.target("pvc-2", pod_uid=_OTHER_UID)
    stop = _StopBeforeWriting(monkeypatch, first, fails=fails)
    outcomes: list[str] = []
    thread = threading.Thread(target=lambda: outcomes.append(_outcome(plugin, first, 1)))
    thread.start()
    try:
        assert stop.reached.wait(60)
        with pytest.raises(Aborted, match="another pod"):
            _publish(plugin, second, 2)
        _publish(plugin, beside, 3)  # the same pod's other volume does not wait
        with pytest.raises(Aborted, match="another pod"):
            _publish(plugin, second, 2)
    finally:
        stop.go_on.set()
        thread.join()
    assert outcomes == ["INTERNAL" if fails else "OK"]
    with pytest.raises(FailedPrecondition):
        _publish(plugin, second, 2)
    assert attach_scan(node.root) == (["disk-3"] if fails else ["disk-1", "disk-3"])
    unpublish(plugin, beside, volume_id="local:vol-3")
    unpublish(plugin, first, volume_id="local:vol-1")
    _publish(plugin, second, 2)
    assert attach_scan(node.root) == ["disk-2"]


def _outcome(plugin: NodeService, target: str, number: int) -> str:
    try:
        _publish(plugin, target, number)
    except DriverError as error:
        return error.code.name
    return "OK"


def test_racing_publishes_of_many_pods_end_with_one_pod(node: Worker) -> None:
    plugin = node.start(one_pod=True)
    pods = [f"pod-{number // 2}" for number in range(16)]
    targets = [node.target(f"pvc-{number}", pod_uid=pod) for number, pod in enumerate(pods)]
    barrier = threading.Barrier(len(targets))
    outcomes: dict[int, str] = {}

    def race(number: int) -> None:
        barrier.wait()
        outcomes[number] = _outcome(plugin, targets[number], number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(len(targets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = {pods[number] for number, outcome in outcomes.items() if outcome == "OK"}
    assert len(won) == 1
    assert set(outcomes.values()) <= {"OK", "ABORTED", "FAILED_PRECONDITION"}
    assert names(node.root) == {
        node.record(targets[number]).name for number, outcome in outcomes.items() if outcome == "OK"
    }


def test_a_failed_publish_keeps_nobody_out(node: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = node.start(one_pod=True)
    first = node.target("pvc-1")
    _StopBeforeWriting(monkeypatch, first, fails=True).go_on.set()
    assert _outcome(plugin, first, 1) == "INTERNAL"
    _publish(plugin, node.target("pvc-2", pod_uid=_OTHER_UID), 2)
    assert attach_scan(node.root) == ["disk-2"]
