"""Each fault of a node that was planted is found, alone, with a fix; on a healthy node there is nothing."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cli.doctor.fixes import removals
from cli.doctor.model import Verdict, run
from cli.doctor.records import Record
from cli.scene import Cloud
from driver.mountinfo import FILE_NAME, MountInfo
from providers.deadline import Deadline
from providers.interface import VolumeRequest
from tests.fakes.memory_provider import CloudyProvider, MemoryCloud
from tests.unit.cli.doctor.healthy_node import (
    NODE_CHECKS,
    OTHER_POD,
    POD_UID,
    Node,
    healthy_node,
    node_plugin,
)

Plant = Callable[[Node], object]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with node_plugin(tmp_path_factory.mktemp("plugin")) as path:
        yield path


@pytest.fixture
def node(plugin: Path) -> Iterator[Node]:
    with healthy_node(plugin) as made:
        yield made


def test_a_healthy_node_has_nothing_to_report(node: Node) -> None:
    results = node.examine()
    assert {one.check for one in results} == {check.id for check in NODE_CHECKS}
    assert [one for one in results if one.verdict is not Verdict.OK] == []


def test_a_machine_that_is_no_node_is_said_to_be_none(tmp_path: Path, node: Node) -> None:
    elsewhere = tmp_path / "nothing"
    paths = replace(
        node.paths,
        endpoint=None,
        kubelet_root=elsewhere / "kubelet",
        direct_volumes=elsewhere / "direct",
        hypervisor_socket=elsewhere / "socket",
    )
    results = Node(paths).examine()
    assert {one.verdict for one in results} == {Verdict.SKIPPED}
    assert all(one.saw for one in results)


@dataclass(frozen=True)
class Fault:
    """What is planted, the checks that must find it, and what their fix must tell."""

    plant: Plant
    checks: frozenset[str]
    fix: str


def _record(node: Node) -> Path:
    return next(one for one in node.paths.direct_volumes.iterdir() if not one.name.startswith("."))


def _edit(node: Node, **metadata: object) -> None:
    file = _record(node) / FILE_NAME
    content = json.loads(file.read_text())
    content["metadata"] |= metadata
    file.write_text(json.dumps(content))


def _socket_missing(node: Node) -> Node:
    return Node(replace(node.paths, endpoint=node.paths.kubelet_root / "plugins" / "csi.sock"))


def _nobody_answers(node: Node) -> Node:
    path = node.paths.kubelet_root / "plugins" / "csi.sock"
    with socket.socket(socket.AF_UNIX) as server:  # bound, and gone: what a killed driver leaves
        server.bind(str(path))
    return Node(replace(node.paths, endpoint=path))


def _a_file_for_a_socket(node: Node) -> Node:
    path = node.paths.kubelet_root / "plugins" / "csi.sock"
    path.touch()
    return Node(replace(node.paths, endpoint=path))


def _other_kubelet_root(node: Node) -> None:
    """kubelet runs elsewhere; nothing is published yet."""
    shutil.rmtree(node.paths.kubelet_root / "pods")
    shutil.rmtree(_record(node))
    process = node.paths.proc / "4711"
    process.mkdir()
    (process / "cmdline").write_bytes(b"/usr/bin/kubelet\0--v=2\0--root-dir=/data/kubelet\0")


def _records_of_another_root(node: Node) -> None:
    elsewhere = Node(replace(node.paths, kubelet_root=node.paths.kubelet_root.parent / "other"))
    elsewhere.publish("pvc-2")


def _no_kata_socket(node: Node) -> None:
    node.paths.hypervisor_socket.unlink()


def _other_kata_socket(node: Node) -> None:
    node.paths.kata_configs[1].write_text(
        '[hypervisor.remote]\nremote_hypervisor_socket = "/run/other.sock"\n'
    )


def _leftover(node: Node) -> None:
    work = node.paths.direct_volumes / ".confidential-csi-abc"
    work.mkdir()
    (work / FILE_NAME).touch()
    os.utime(work, (1, 1))


def _pipe(node: Node) -> None:
    """Nobody writes into it, so who opens it to read waits for ever."""
    (_record(node) / FILE_NAME).unlink()
    os.mkfifo(_record(node) / FILE_NAME, 0o600)


def _same_disk_twice(node: Node) -> None:
    shutil.copy(_record(node) / FILE_NAME, node.publish("pvc-2") / FILE_NAME)


def _device_of_the_node(node: Node) -> None:
    file = _record(node) / FILE_NAME
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "device": "/dev/null"}))


FAULTS: dict[str, Fault] = {
    name: Fault(plant, frozenset(checks.split()), fix)
    for name, plant, checks, fix in (
        ("the CSI socket is missing", _socket_missing, "csi-socket", "driver's pod on this node"),
        ("a socket on which nobody answers", _nobody_answers, "csi-socket", "driver's pod on this node"),
        ("a file in place of the socket", _a_file_for_a_socket, "csi-socket", "hostPath"),
        ("kubelet has another root", _other_kubelet_root, "kubelet-root", "node.kubeletRoot=/data/kubelet"),
        ("records of another kubelet root", _records_of_another_root, "kubelet-root", "/other"),
        ("cloud-api-adaptor is not there", _no_kata_socket, "hypervisor-socket", "cloud-api-adaptor's pod"),
        ("Kata asks on another socket", _other_kata_socket, "kata-config", "-socket"),
        (
            "the direct-volume root is missing",
            lambda node: shutil.rmtree(node.paths.direct_volumes),
            "direct-volumes-root",
            "hostPath",
        ),
        (
            "the root belongs to somebody else",
            lambda node: shutil.chown(node.paths.direct_volumes, 1234, 1234),
            "direct-volumes-owner",
            "chown root:root",
        ),
        (
            "anybody can write to the root",
            lambda node: node.paths.direct_volumes.chmod(0o777),
            "direct-volumes-owner",
            "chmod 0755",
        ),
        (
            "the root has a mode that its owner can't use",
            lambda node: node.paths.direct_volumes.chmod(0o055),
            "direct-volumes-owner",
            "chmod 0755",
        ),
        (
            "a file that is no record",
            lambda node: (node.paths.direct_volumes / "notes.txt").touch(),
            "direct-volumes-entries",
            "remove it",
        ),
        ("what a killed node plugin left", _leftover, "direct-volumes-entries", "--fix"),
        ("a record without its pod", lambda node: node.stale(), "record-stale", "--provider here"),
        (
            "half a mountInfo.json",
            lambda node: (_record(node) / FILE_NAME).write_text('{"device":"vol-0'),
            "record-damaged",
            "delete its pod",
        ),
        (
            "no mountInfo.json",
            lambda node: (_record(node) / FILE_NAME).unlink(),
            "record-damaged",
            "delete its pod",
        ),
        ("a pipe in place of mountInfo.json", _pipe, "record-damaged", "delete its pod"),
        (
            "a mountInfo.json without an end",
            lambda node: (_record(node) / FILE_NAME).write_text('{"device":"' + "x" * 10**6),
            "record-damaged",
            "delete its pod",
        ),
        ("a number in the metadata", lambda node: _edit(node, lun=3), "record-metadata", "two scans"),
        (
            "a boolean in the metadata",
            lambda node: _edit(node, readonly=True),
            "record-metadata",
            "two scans",
        ),
        (
            "a temporary file beside mountInfo.json",
            lambda node: (_record(node) / "mountInfo.json.tmp").write_text("{}"),
            "record-stray-file",
            "remove",
        ),
        (
            "anybody can write to a record",
            lambda node: (_record(node) / FILE_NAME).chmod(0o666),
            "record-mode",
            "chmod go-w",
        ),
        (
            "two pods with volumes on the node",
            lambda node: node.publish("pvc-2", OTHER_POD),
            "records-of-two-pods",
            "podAntiAffinity",
        ),
        ("two records of one disk", _same_disk_twice, "record-device", "record-stale"),
        ("a record of the node's own device", _device_of_the_node, "record-device", "update the driver"),
    )
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_alone_and_with_its_fix(name: str, node: Node) -> None:
    fault = FAULTS[name]
    planted = fault.plant(node)
    found = (planted if isinstance(planted, Node) else node).problems()
    assert set(found) == fault.checks, found
    for check in fault.checks:
        assert fault.fix in found[check].fix


def test_at_least_15_different_faults_are_planted_here_alone() -> None:
    assert len(FAULTS) >= 15


def test_a_record_is_not_stale_if_nothing_is_known_of_pods(node: Node) -> None:
    node.stale()
    shutil.rmtree(node.paths.kubelet_root / "pods")
    assert set(node.problems()) == {"kubelet-root", "records-of-two-pods"}


@pytest.mark.parametrize("noted", [True, False])
def test_without_the_cloud_a_stale_record_is_left_to_a_person(noted: bool, node: Node) -> None:
    """Nothing on the node proves that no PodVM has the disk, times of files least: clocks go back."""
    node.stale(noted=noted)
    assert "make sure that its PodVM is gone" in node.problems()["record-stale"].fix
    assert removals(node.scene()) == []


def test_the_cloud_tells_whether_a_machine_has_the_disk_of_a_stale_record(node: Node) -> None:
    cloud = MemoryCloud()
    provider = CloudyProvider(cloud)
    volume = provider.create_volume(VolumeRequest("pvc-2", 2**30, None, "ext4"), Deadline.after(10))
    node.stale(noted=True, device=volume.disk_id)
    cloud.machines[volume.handle] = "vm-1"
    assert removals(replace(node.scene(), cloud=Cloud(provider))) == []
    del cloud.machines[volume.handle]
    (removal,) = removals(replace(node.scene(), cloud=Cloud(provider)))
    assert "no machine has" in removal.what


def test_the_version_of_kata_is_told(node: Node) -> None:
    (node.paths.kata_configs[1].parent / "VERSION").write_text("4.1.0\n")
    (found,) = (one for one in node.examine() if one.check == "kata-config")
    assert "Kata 4.1.0" in found.saw


def test_what_a_live_plugin_is_preparing_is_no_leftover(node: Node) -> None:
    work = node.paths.direct_volumes / ".confidential-csi-now"
    work.mkdir()
    os.utime(work, (2**40, 2**40))  # for this test it does not grow old
    assert node.problems() == {}


def test_a_record_that_is_unpublished_meanwhile_is_no_fault(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.publish("pvc-2")
    read = Record.read

    def vanishing(record: Record) -> MountInfo:
        shutil.rmtree(record.directory)
        return read(record)

    monkeypatch.setattr(Record, "read", vanishing)
    (damaged,) = (check for check in NODE_CHECKS if check.id == "record-damaged")
    assert [one.verdict for one in run(damaged, node.scene())] == [Verdict.OK]


def test_pods_of_the_node_are_counted_by_their_uid(node: Node) -> None:
    node.publish("pvc-2", POD_UID)
    assert node.problems() == {}


def test_the_version_of_the_driver_is_compared(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.doctor.sockets.version", lambda _name: "9.9.9")
    assert set(node.problems()) == {"plugin-version"}
    assert "9.9.9" in node.problems()["plugin-version"].saw


def test_what_the_system_does_not_let_it_see_is_skipped(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", "/hidden")

    monkeypatch.setattr(Path, "iterdir", refuse)
    skipped = {one.check for one in node.examine() if one.verdict is Verdict.SKIPPED}
    assert {"record-damaged", "record-stale", "direct-volumes-entries"} <= skipped
