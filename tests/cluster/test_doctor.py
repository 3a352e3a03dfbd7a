"""The doctor on a real API server: each planted fault is found, alone, and its fix told; healthy: nothing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.doctor.catalog import CHECKS
from cli.doctor.command import EXIT_FAILURES
from cli.doctor.model import Verdict
from cli.scene import DRIVER
from tests.cluster.api import Object, until
from tests.cluster.control_plane import ApiServer
from tests.cluster.healthy_cluster import (
    MACHINE,
    NODE,
    SYSTEM,
    Cluster,
    claim,
    cloud_api_adaptor,
    persistent_volume,
    pod,
)
from tests.cluster.planted import run_with_secrets
from tests.contract.aws_backend import REGION

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
_FIRST_OF_CLUSTER = next(number for number, one in enumerate(CHECKS) if one.id == "cluster-api")


@pytest.fixture
def cluster(api_server: ApiServer, tmp_path: Path) -> Cluster:
    made = Cluster(api_server.api, api_server.kubeconfig, tmp_path)
    made.reset()
    return made


def test_a_healthy_cluster_has_nothing_to_report(cluster: Cluster) -> None:
    results = cluster.examine()
    assert [one for one in results if one.verdict is not Verdict.OK] == []


@dataclass(frozen=True)
class Fault:
    """What is planted, the checks that must find it, and what their fix must tell."""

    plant: Callable[[Cluster], object]
    checks: frozenset[str]
    fix: str


def _no_fence(cluster: Cluster) -> None:
    def change(manifest: Object) -> None:
        manifest["spec"]["attachRequired"] = False

    cluster.recreate("CSIDriver", DRIVER, change)


def _no_pod_info(cluster: Cluster) -> None:
    cluster.api.patch("CSIDriver", DRIVER, {"spec": {"podInfoOnMount": False}})


def _not_registered(cluster: Cluster) -> None:
    def change(manifest: Object) -> None:
        manifest["spec"]["drivers"] = []

    cluster.recreate("CSINode", NODE, change)


def _volume_without_pv(cluster: Cluster) -> None:
    cluster.make_volume("pvc-nobody")


def _pv_without_volume(cluster: Cluster) -> None:
    cluster.create(persistent_volume("pvc-2", f"aws:{REGION}/vol-0123456789abcdef0", "gone"))


def _orphaned_podvm(cluster: Cluster) -> None:
    """The pod is gone and its attachment waits, while its machine lives on."""
    cluster.api.delete("Pod", "ledger-0", gracePeriodSeconds="0")
    cluster.api.patch("VolumeAttachment", "csi-1", {"metadata": {"finalizers": ["external-attacher/driver"]}})
    cluster.api.delete("VolumeAttachment", "csi-1")


def _orphaned_without_attachment(cluster: Cluster) -> None:
    """Somebody forced the attachment away."""
    cluster.api.delete("Pod", "ledger-0", gracePeriodSeconds="0")
    cluster.delete("VolumeAttachment", "csi-1")


def _plaintext_volume(cluster: Cluster) -> None:
    cluster.recreate(
        "PersistentVolume",
        "pvc-1",
        lambda manifest: manifest["spec"]["csi"].update(volumeAttributes={"cloud-provider": "aws"}),
    )


def _plaintext_of_the_older_sample(cluster: Cluster) -> None:
    def change(manifest: Object) -> None:
        manifest["parameters"] = {"cdhEncryptionType": "luks2", "cdhKey": "kbs:///default/key/1"}

    cluster.recreate("StorageClass", "encrypted", change)
    _plaintext_volume(cluster)


def _two_pods(cluster: Cluster) -> None:
    volume = cluster.make_volume("pvc-2")
    cluster.create(persistent_volume("pvc-2", f"aws:{volume.handle}", "second"))
    cluster.create(claim("second", "pvc-2"))
    cluster.create(pod("second-0", claims=("second",)))


def _other_image(cluster: Cluster) -> None:
    def change(manifest: Object) -> None:
        for container in manifest["spec"]["template"]["spec"]["containers"]:
            if container["name"] == "driver":
                container["image"] = container["image"].rpartition(":")[0] + ":9.9.9"

    cluster.recreate("DaemonSet", "confidential-csi-node", change, "confidential-csi-node")


def _blind_adaptor(cluster: Cluster) -> None:
    cluster.delete("DaemonSet", "cloud-api-adaptor-daemonset", SYSTEM)
    cluster.create(cloud_api_adaptor(sees_volumes=False))


def _controller_down(cluster: Cluster) -> None:
    cluster.api.patch(
        "Deployment",
        "confidential-csi-controller",
        {"status": {"readyReplicas": None}},
        "confidential-csi",
        part="status",
    )


def _attachment_error(cluster: Cluster) -> None:
    error = {"attached": False, "attachError": {"message": f"the machine {MACHINE!r} has its disk"}}
    cluster.api.patch("VolumeAttachment", "csi-1", {"status": error}, part="status")


def _clock(cluster: Cluster) -> None:
    cluster.now = lambda: time.time() + 3600


def _no_peer_pod(cluster: Cluster) -> None:
    cluster.api.delete("Pod", "ledger-0", gracePeriodSeconds="0")
    cluster.create(pod("ledger-0", claims=("ledger",), runtime_class=None))


FAULTS: dict[str, Fault] = {
    name: Fault(plant, frozenset(checks.split()), fix)
    for name, plant, checks, fix in (
        (
            "there is no CSIDriver",
            lambda cluster: cluster.delete("CSIDriver", DRIVER),
            "csi-driver",
            "install it",
        ),
        ("no attachment is required", _no_fence, "csi-driver", "immutable"),
        ("the driver gets no pod's uid", _no_pod_info, "csi-driver", "helm upgrade"),
        ("a node is not registered", _not_registered, "registration", "registrar"),
        (
            "there is no RuntimeClass",
            lambda cluster: cluster.delete("RuntimeClass", "kata-remote"),
            "runtime-class not-a-peer-pod",
            "",
        ),
        ("a pod that is no peer pod", _no_peer_pod, "not-a-peer-pod", "kata-remote"),
        ("cloud-api-adaptor sees no volumes", _blind_adaptor, "caa-volumes", "update it"),
        ("no controller is ready", _controller_down, "workloads", "describe pods"),
        ("images of two versions", _other_image, "image-versions", "helm upgrade"),
        ("a plaintext volume of an encrypted class", _plaintext_volume, "plaintext-volume", "new claim"),
        ("a class of the older sample", _plaintext_of_the_older_sample, "plaintext-volume", "new claim"),
        ("two pods on a node", _two_pods, "two-pods-on-a-node", "podAntiAffinity"),
        ("an attachment failed", _attachment_error, "attachment-error", "fence-closed"),
        ("a volume without PersistentVolume", _volume_without_pv, "volume-without-pv", "delete the disk"),
        ("a PersistentVolume without volume", _pv_without_volume, "pv-without-volume", "restore a snapshot"),
        (
            "an orphaned PodVM, its attachment forced away",
            _orphaned_without_attachment,
            "fence-closed",
            MACHINE,
        ),
        ("the clock is wrong", _clock, "cluster-clock", "time server"),
    )
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_alone_and_with_its_fix(name: str, cluster: Cluster) -> None:
    fault = FAULTS[name]
    fault.plant(cluster)
    found = cluster.problems()
    assert set(found) == fault.checks, found
    assert all(problem.fix for problem in found.values())
    assert any(fault.fix in problem.fix for problem in found.values())


def test_an_orphaned_podvm_keeps_the_fence_closed_and_one_that_just_ended_does_not(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _orphaned_podvm(cluster)
    assert cluster.problems() == {}
    cluster.now = lambda: time.time() + 600  # it is the API server's clock that counts
    assert set(cluster.problems()) == {"cluster-clock"}
    cluster.now = time.time
    monkeypatch.setattr("cli.doctor.disks.DETACHING_SECONDS", -1.0)
    found = cluster.problems()
    assert set(found) == {"fence-closed"}
    assert MACHINE in found["fence-closed"].saw
    assert "delete that machine" in found["fence-closed"].fix
    cluster.attach(cluster.volume, "")
    assert cluster.problems() == {}


def test_a_volume_that_is_being_created_is_not_without_its_claim(cluster: Cluster) -> None:
    cluster.create(claim("waiting", ""))
    uid = cluster.api.get("PersistentVolumeClaim", "waiting")["metadata"]["uid"]
    cluster.make_volume(f"pvc-{uid}")
    assert cluster.problems() == {}


def test_what_a_user_may_not_see_is_skipped_with_the_reason(api_server: ApiServer, cluster: Cluster) -> None:
    nobody = api_server.kubeconfig_for("nobody", api_server.authority.issue("nobody"))
    cluster.kubeconfig = nobody
    skipped = {one.check: one.saw for one in cluster.examine() if one.verdict is Verdict.SKIPPED}
    assert {"csi-driver", "workloads", "plaintext-volume", "fence-closed", "volume-without-pv"} <= set(
        skipped
    )
    assert all("403" in saw for check, saw in skipped.items() if check != "cloud-access")


def test_the_role_of_the_page_is_all_that_it_takes(api_server: ApiServer, cluster: Cluster) -> None:
    (role,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    api_server.kubectl("apply", "-f", "-", text=role)
    binding = (
        "create",
        "clusterrolebinding",
        "doctor",
        "--clusterrole=confidential-csi-doctor",
        "--user=reader",
    )
    api_server.kubectl(*binding)
    reader = api_server.authority.issue("reader")
    cluster.kubeconfig = api_server.kubeconfig_for("reader", reader)
    until(lambda: not _denied(cluster), what="the role is in force")
    assert [one for one in cluster.examine() if one.verdict is not Verdict.OK] == []


def _denied(cluster: Cluster) -> bool:
    return any("403" in one.saw for one in cluster.examine())


def test_an_api_server_that_is_away_is_a_fault_and_hides_nothing(
    api_server: ApiServer, cluster: Cluster
) -> None:
    config = json.loads(api_server.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    away = cluster.folder / "away.json"
    away.write_text(json.dumps(config))
    cluster.kubeconfig = away
    results = cluster.examine()
    assert [one.check for one in results if one.verdict is Verdict.FAIL] == ["cluster-api"]
    fine = {one.check for one in results if one.verdict is Verdict.OK}
    assert fine == {"cloud-access"}


def test_the_command_finds_it_too_and_shows_no_secret(api_server: ApiServer, cluster: Cluster) -> None:
    """By a token in the kubeconfig, in both formats of output."""
    _two_pods(cluster)
    cluster.delete("CSIDriver", DRIVER)
    for output in ("table", "json"):
        arguments = ("doctor", f"--output={output}", "--kubelet-root=/nonexistent")
        printed = run_with_secrets(cluster, api_server.kubeconfig, *arguments, expect=EXIT_FAILURES)
    results = json.loads(printed)["results"]
    found = {one["check"] for one in results if one["verdict"] in ("warn", "fail")}
    # This machine may look like a node, which it is not.
    of_the_node = {one.id for one in CHECKS[:_FIRST_OF_CLUSTER]}
    assert found - of_the_node == {"csi-driver", "two-pods-on-a-node"}


def test_every_check_of_cluster_and_cloud_has_a_fault() -> None:
    planted = {check for fault in FAULTS.values() for check in fault.checks}
    elsewhere = {"cluster-api", "cloud-access", "cloud-identity", "cloud-permissions", "cloud-clock"}
    assert {one.id for one in CHECKS[_FIRST_OF_CLUSTER:]} - elsewhere == planted
