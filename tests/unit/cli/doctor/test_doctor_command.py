"""The command: its exit codes and outputs, and what ``--fix`` removes and leaves."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cli
from cli.doctor.catalog import CHECKS
from cli.doctor.command import EXIT_FAILURES, EXIT_NOTHING_SEEN, EXIT_WARNINGS
from cli.main import main
from cli.scene import Cloud
from providers.deadline import Deadline
from providers.interface import VolumeRequest
from tests.fakes.memory_provider import CloudyProvider, MemoryCloud
from tests.unit.cli.doctor.healthy_node import POD_UID, Node, healthy_node, node_plugin

PAGE = Path(cli.__file__).parents[1] / "docs" / "doctor.md"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with node_plugin(tmp_path_factory.mktemp("plugin")) as path:
        yield path


@pytest.fixture
def node(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    for name in ("KUBECONFIG", "CONFIDENTIAL_CSI_PROVIDER", "NODE_NAME", "CONFIDENTIAL_CSI_NODE_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    with healthy_node(plugin) as made:
        yield made


def _doctor(node: Node, *options: str, answer: str = "") -> Result:
    paths = node.paths
    places = (
        f"--endpoint=unix://{paths.endpoint}",
        f"--kubelet-root={paths.kubelet_root}",
        f"--direct-volumes-root={paths.direct_volumes}",
        f"--hypervisor-socket={paths.hypervisor_socket}",
        f"--kata-config={paths.kata_configs[1]}",
    )
    return CliRunner().invoke(main, ["doctor", *places, *options], input=answer)


def test_a_healthy_node_ends_with_0_and_lists_what_it_did_not_look_at(node: Node) -> None:
    finished = _doctor(node)
    assert finished.exit_code == 0, finished.output
    assert "0 warn, 0 fail" in finished.output
    for check in CHECKS:
        assert check.id in finished.output
    assert "no kubeconfig" in finished.output
    assert "so that nothing is known about it".upper() in finished.output
    assert " ok " in finished.output


def test_warnings_and_failures_have_exit_codes_of_their_own(node: Node) -> None:
    (node.paths.direct_volumes / "notes.txt").touch()
    assert _doctor(node).exit_code == EXIT_WARNINGS
    node.paths.direct_volumes.chmod(0o777)
    assert _doctor(node).exit_code == EXIT_FAILURES
    assert _doctor(node, "--check=csi-socket").exit_code == 0
    unknown = _doctor(node, "--check=csi-socket", "--check=record-devices")
    assert unknown.exit_code == 2
    assert "there is no check 'record-devices'; did you mean record-device" in unknown.output
    assert _doctor(node, "--check=cluster-api", "--check=cloud-access").exit_code == EXIT_NOTHING_SEEN
    assert _doctor(node, "--endpoint=relative").exit_code == 2


def test_programs_get_json(node: Node) -> None:
    node.paths.direct_volumes.chmod(0o777)
    document = json.loads(_doctor(node, "--output=json").stdout)
    assert {one["check"] for one in document["results"]} == {check.id for check in CHECKS}
    (failed,) = (one for one in document["results"] if one["verdict"] == "fail")
    assert failed["check"] == "direct-volumes-owner"
    assert failed["fix"].startswith("chmod 0755")
    assert document["summary"]["fail"] == 1
    assert document["removed"] == []


def test_without_fix_nothing_changes(node: Node) -> None:
    directory = node.stale()
    assert _doctor(node, "--yes").exit_code == EXIT_FAILURES
    assert directory.exists()


def test_fix_asks_and_removes_what_is_stale_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = CloudyProvider(MemoryCloud())
    volume = provider.create_volume(VolumeRequest("pvc-2", 2**30, None, "ext4"), Deadline.after(10))
    monkeypatch.setattr("cli.doctor.command.cloud_of", lambda _name: Cloud(provider))
    directory = node.stale(device=volume.disk_id)
    others = {one for one in node.paths.direct_volumes.iterdir() if one != directory}
    assert "Remove" in _doctor(node, "--fix", answer="n\n").output
    assert directory.exists()
    assert _doctor(node, "--fix").exit_code != 0  # nobody answers
    assert directory.exists()
    assert "Removed:" in _doctor(node, "--fix", answer="y\n").output
    assert set(node.paths.direct_volumes.iterdir()) == others
    assert _doctor(node).exit_code == 0


def test_fix_leaves_damaged_and_doubtful_records_alone(node: Node) -> None:
    (node.publish("pvc-2", POD_UID) / "mountInfo.json").write_text("{")
    (node.paths.direct_volumes / "notes.txt").touch()
    before = sorted(node.paths.direct_volumes.rglob("*"))
    finished = _doctor(node, "--fix", "--yes", "--output=json")
    assert json.loads(finished.stdout)["removed"] == []
    assert sorted(node.paths.direct_volumes.rglob("*")) == before


def test_fix_removes_what_killed_plugins_left_and_not_what_a_live_one_prepares(node: Node) -> None:
    left, busy = (node.paths.direct_volumes / f".confidential-csi-{name}" for name in ("left", "busy"))
    left.mkdir()
    busy.mkdir()
    for work in (left, busy):
        os.utime(work, (1, 1))
    descriptor = os.open(busy, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert json.loads(_doctor(node, "--fix", "--yes", "--output=json").stdout)["removed"]
        assert (left.exists(), busy.exists()) == (False, True)
        assert json.loads(_doctor(node, "--fix", "--yes", "--output=json").stdout)["removed"] == []
    finally:
        os.close(descriptor)


def test_a_broken_kubeconfig_is_a_fault_and_its_content_is_not_shown(node: Node, tmp_path: Path) -> None:
    planted = "planted-bearer-of-the-kubeconfig"
    broken = tmp_path / "config"
    for content in (
        f"users: [{{user: {{token: {planted}",
        f"current-context: {planted}",
        json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": f"http://{planted}:x@127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"token": planted}}],
            }
        ),
    ):
        broken.write_text(content)
        finished = _doctor(node, f"--kubeconfig={broken}", "--output=json")
        assert finished.exit_code == EXIT_FAILURES
        (one,) = (one for one in json.loads(finished.stdout)["results"] if one["verdict"] == "fail")
        assert one["check"] == "cluster-api"
        assert planted not in finished.output


def test_a_kubeconfig_that_is_not_there_is_named(node: Node, tmp_path: Path) -> None:
    finished = _doctor(node, f"--kubeconfig={tmp_path / 'none'}", "--check=cluster-api", "--output=json")
    assert finished.exit_code == EXIT_FAILURES
    (one,) = json.loads(finished.stdout)["results"]
    assert one["saw"] == f"there is no file {tmp_path / 'none'}"


def test_a_user_without_a_home_has_no_kubeconfig(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert _doctor(node, "--check=cluster-api").exit_code == EXIT_NOTHING_SEEN


def test_the_page_lists_every_check_and_no_other() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows if "`" in row] == [check.id for check in CHECKS]
    assert all(check.meaning for check in CHECKS)


def test_the_page_tells_the_exit_codes() -> None:
    text = PAGE.read_text()
    assert f"| {EXIT_WARNINGS} |" in text
    assert f"| {EXIT_FAILURES} |" in text
    assert f"| {EXIT_NOTHING_SEEN} |" in text
