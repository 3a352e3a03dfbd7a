"""The chart on a worker with the real kubelet: what kubelet asks, and what it leaves for Kata.

Kata is not there: runc serves its runtime class, and the guest's agent is played where a test says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby

import pytest

from tests.cluster.api import until
from tests.cluster.doctor_on_worker import doctor_on
from tests.cluster.installation import DIRECT_VOLUMES, PEER_PODS, LocalInstallation
from tests.cluster.peer_pods import PeerPod, VolumeClaim, pod_with_volume
from tests.cluster.programs import Programs
from tests.cluster.worker_cluster import cluster_with_worker
from tests.fakes.podvm import PodVm
from tests.lab.caa import attach_scan


@pytest.fixture(scope="module")
def cluster(kubernetes: Programs) -> Iterator[LocalInstallation]:
    """A cluster of its own with one worker, and the chart in it."""
    with cluster_with_worker("local", kubernetes) as (control_plane, worker):
        installation = LocalInstallation(control_plane, worker)
        installation.prepare()
        installation.install()
        yield installation


def test_the_chart_runs_and_kubelet_knows_the_driver(cluster: LocalInstallation) -> None:
    """Field case K2."""
    for pod in cluster.pods():
        for status in pod["status"]["containerStatuses"]:
            log = list(cluster.worker.container_log(pod, status["name"]))
            # A sidecar that a busy machine kept from its lease starts again.
            assert not status["restartCount"] or any("Stopped leading" in line for line in log), (status, log)
    (driver,) = cluster.api.get("CSINode", cluster.worker.name)["spec"]["drivers"]
    assert driver["nodeID"] == f"node/{cluster.worker.name}"


def test_containers_have_the_rights_that_the_chart_says(cluster: LocalInstallation) -> None:
    for pod in cluster.pods():
        user = pod["spec"]["securityContext"]["runAsUser"]
        for container in pod["spec"]["containers"]:
            status = cluster.worker.process_status(pod, container["name"])
            rights = {name: status[name] for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")}
            none = "0" * 16
            assert rights == {"CapEff": none, "CapBnd": none, "NoNewPrivs": "1", "Seccomp": "2"}, container
            assert status["Uid"].split() == [str(user)] * 4


def test_a_volume_lives_and_ends_with_its_pod_and_claim(cluster: LocalInstallation) -> None:
    claim = VolumeClaim(cluster, "life", "64Mi")
    pod = PeerPod(cluster, "life", claim)
    pod.running()

    volume = claim.bound()
    handle = volume["spec"]["csi"]["volumeHandle"]
    disk = handle.removeprefix("local:")
    record = json.loads((pod.record() / "mountInfo.json").read_text())
    assert record["device"] == record["metadata"]["cloud-volume-path"] == disk
    assert record["metadata"]["kbs-key-id"] == "default/volume-key/life"
    assert record["metadata"]["encrypt-type"] == "luks2"
    assert attach_scan(cluster.worker.outside(DIRECT_VOLUMES)) == [disk]
    target = cluster.worker.outside(pod.target())
    assert list(target.iterdir()) == []

    pod.delete()
    assert not pod.record().exists()
    _wait_until_asked(cluster, claim, ["NodePublishVolume", "NodeUnpublishVolume"])
    assert cluster.disk(volume).exists()
    claim.delete()
    assert not cluster.disk(volume).exists()


def test_the_doctor_finds_nothing_but_what_is_planted(cluster: LocalInstallation) -> None:
    # Files have no identity, permissions, clock or fence.
    nowhere = {"cloud-identity", "cloud-permissions", "cloud-clock", "fence-closed"}
    with doctor_on(cluster) as doctor:
        found = doctor.examine()
        assert {check for check, said in found.items() if said != "ok"} == nowhere, found
        with pod_with_volume(cluster, "examined") as (pod, _claim):
            found = doctor.examine()
            assert {check for check, said in found.items() if said != "ok"} == nowhere, found
            root = cluster.worker.outside(DIRECT_VOLUMES)
            mode = root.stat().st_mode
            root.chmod(0o777)
            stray = pod.record() / "mountInfo.json.tmp"
            stray.touch()
            assert set(doctor.problems()) == {"direct-volumes-owner", "record-stray-file"}
            root.chmod(mode)
            stray.unlink()
        assert doctor.problems() == {}


def test_a_volume_outlives_restarts_of_kubelet_and_of_the_node_plugin(cluster: LocalInstallation) -> None:
    with pod_with_volume(cluster, "restarts") as (pod, claim):
        before = pod.running()["status"]["containerStatuses"]
        record = (pod.record() / "mountInfo.json").stat()

        cluster.worker.restart_kubelet()
        # kubelet does not know what it published, and publishes again: the record stays what it was.
        until(lambda: _asked(cluster, claim).count("NodePublishVolume") >= 2, what="kubelet publishes again")
        plugin = cluster.node_pod()["metadata"]
        cluster.api.delete("Pod", plugin["name"], plugin["namespace"])
        until(lambda: cluster.is_complete() and cluster.node_pod()["metadata"]["uid"] != plugin["uid"])

        assert pod.running()["status"]["containerStatuses"] == before
        now = (pod.record() / "mountInfo.json").stat()
        assert (now.st_ino, now.st_mtime_ns) == (record.st_ino, record.st_mtime_ns)
        pod.delete()
        assert not pod.record().exists()
        again = PeerPod(cluster, "restarts-again", claim)
        again.running()
        assert (again.record() / "mountInfo.json").exists()
        again.delete()


def test_a_pod_that_is_removed_while_kubelet_is_away_leaves_no_record(cluster: LocalInstallation) -> None:
    claim = VolumeClaim(cluster, "away", "64Mi")
    pod = PeerPod(cluster, "away", claim)
    pod.running()
    with cluster.worker.without_kubelet():
        cluster.api.delete("Pod", "away", gracePeriodSeconds="0")
        assert pod.record().exists()
    until(lambda: not pod.record().exists(), what="the record is gone")
    until(lambda: _asked(cluster, claim)[-1] == "NodeUnpublishVolume", what="the call is in the log")
    pod.delete()
    claim.delete()


def test_mounts_on_the_worker_come_and_go_in_the_node_plugin_too(cluster: LocalInstallation) -> None:
    """Field case C7. One that the plugin keeps holds its device; one that it can't see, rmdir takes down."""
    claim = VolumeClaim(cluster, "mounted-over", "64Mi")
    pod = PeerPod(cluster, "mounted-over", claim)
    pod.running()
    target = pod.target()
    cluster.worker.run("mount", "-t", "tmpfs", "tmpfs", target)
    cluster.worker.run("touch", f"{target}/kept")
    assert target in _mounts_of_the_plugin(cluster)
    cluster.api.delete("Pod", pod.name)
    until(lambda: "is busy (a mount point?)" in _log_of_the_plugin(cluster), what="the mount point is told")
    cluster.worker.run("ls", f"{target}/kept")
    cluster.worker.run("umount", target)
    assert target not in _mounts_of_the_plugin(cluster)
    pod.delete()
    claim.delete()


def _mounts_of_the_plugin(cluster: LocalInstallation) -> str:
    process = cluster.worker.process_status(cluster.node_pod(), "driver")["Pid"]
    return cluster.worker.run("cat", f"/proc/{process}/mountinfo")


def _log_of_the_plugin(cluster: LocalInstallation) -> str:
    return "\n".join(cluster.worker.container_log(cluster.node_pod(), "driver"))


def test_a_volume_that_grew_at_rest_is_expanded_before_its_pod_starts(cluster: LocalInstallation) -> None:
    claim = VolumeClaim(cluster, "rest", "64Mi")
    volume = claim.bound()
    claim.grow("96Mi")
    until(lambda: "FileSystemResizePending" in claim.conditions(), what="the resizer waits for kubelet")
    assert cluster.disk(volume).stat().st_size == 96 << 20
    assert claim.size() == "64Mi"

    pod = PeerPod(cluster, "rest", claim)
    pod.running()
    until(lambda: claim.size() == "96Mi", what="the claim's size")
    _wait_until_asked(cluster, claim, ["NodePublishVolume", "NodeExpandVolume"])
    pod.delete()
    claim.delete()


def test_kubelet_shows_usage_and_growth_of_a_volume_in_use_as_its_guest_does(
    cluster: LocalInstallation,
) -> None:
    with pod_with_volume(cluster, "use") as (pod, claim):
        volume = claim.bound()
        disk = volume["spec"]["csi"]["volumeHandle"].removeprefix("local:")
        guest = PodVm(disk_size=lambda _: cluster.disk(volume).stat().st_size)
        sandbox = cluster.worker.sandbox_id(pod.uid)
        guest.mount(disk)
        peer_pods = cluster.worker.folder / "p"  # a socket's path is short
        peer_pods.symlink_to(cluster.worker.outside(PEER_PODS))
        with guest.serving(peer_pods, sandbox):
            (pod.record() / sandbox).touch()  # as Kata's Go runtime does
            until(lambda: _figure(cluster, "capacity_bytes", "use") == (64 << 20) - (4 << 20))
            # A single question that takes too long leaves out all figures for a second.
            until(lambda: _figure(cluster, "inodes_used", "use") == 11)
            until(lambda: _figure(cluster, "health_status_abnormal", "use") == 0)
            claim.grow("96Mi")
            until(lambda: claim.size() == "96Mi", what="the claim's size")
            assert ("ResizeVolume", disk, 96 << 20) in guest.calls
            until(lambda: _figure(cluster, "capacity_bytes", "use") == (96 << 20) - (4 << 20))
        (pod.record() / sandbox).unlink()


def test_a_pod_that_is_no_peer_pod_gets_no_volume_and_is_told_why(cluster: LocalInstallation) -> None:
    """Field case K4."""
    claim = VolumeClaim(cluster, "bare", "64Mi")
    pod = PeerPod(cluster, "bare", claim, runtime_class=None)
    until(lambda: "has no runtimeClassName" in cluster.described("pod", "bare"), what="the event")
    assert not pod.record().exists()
    assert cluster.api.get("Pod", "bare")["status"]["phase"] == "Pending"
    pod.delete()
    peer = PeerPod(cluster, "bare-no-more", claim)
    peer.running()
    peer.delete()
    claim.delete()


def test_a_second_pod_with_a_volume_waits_until_the_first_has_gone(cluster: LocalInstallation) -> None:
    with pod_with_volume(cluster, "first") as (first, _):
        claim = VolumeClaim(cluster, "second", "64Mi")
        second = PeerPod(cluster, "second", claim)
        until(lambda: "one-pod-per-node" in cluster.described("pod", "second"), what="the event")
        assert not second.record().exists()
        first.delete()
        second.running()
        second.delete()
        claim.delete()


def test_volumes_outlive_an_upgrade_and_a_new_installation(cluster: LocalInstallation) -> None:
    with pod_with_volume(cluster, "upgrade") as (pod, claim):
        before = pod.running()["status"]["containerStatuses"]
        cluster.upgrade(logLevel="debug")
        cluster.uninstall()
        until(lambda: not cluster.is_registered(), what="kubelet has forgotten the driver")
        assert pod.running()["status"]["containerStatuses"] == before
        assert (pod.record() / "mountInfo.json").exists()
        cluster.install()
        assert claim.bound()["status"]["phase"] == "Bound"
        pod.delete()
        assert not pod.record().exists()


def _asked(cluster: LocalInstallation, claim: VolumeClaim) -> list[str]:
    """What kubelet asked the node plugin about a claim's volume, but for its usage."""
    methods = cluster.node_calls(claim.bound()["spec"]["csi"]["volumeHandle"])
    return [method for method in methods if method != "NodeGetVolumeStats"]


def _wait_until_asked(cluster: LocalInstallation, claim: VolumeClaim, methods: list[str]) -> None:
    """A call is in the log only after its answer; kubelet may make one several times over."""
    until(
        lambda: [method for method, _ in groupby(_asked(cluster, claim))] == methods,
        what=f"the calls {methods}",
    )


def _figure(cluster: LocalInstallation, name: str, claim: str) -> float | None:
    labels = f'{{namespace="default",persistentvolumeclaim="{claim}"}}'
    return cluster.worker.figures().get(f"kubelet_volume_stats_{name}{labels}")
