"""csi-sanity, without any skip flag, against the real processes of both roles."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from proto import csi_pb2, csi_pb2_grpc
from tests.sanity.runtime import Runtime, in_between
from tests.tools.driver_process import DriverProcess, running
from tests.tools.go_programs import go_program

NOT_RUN = Path(__file__).parent / "not-run.txt"

#: csi-sanity's words for a missing capability, and its name in the specification.
CAPABILITIES = {
    "ControllerModifyVolume not supported": "controller MODIFY_VOLUME",
    "Modify volume not supported": "controller MODIFY_VOLUME",
    "Modify Volume not supported": "controller MODIFY_VOLUME",
    "ControllerPublishVolume not supported": "controller PUBLISH_UNPUBLISH_VOLUME",
    "ControllerUnpublishVolume not supported": "controller PUBLISH_UNPUBLISH_VOLUME",
    "Controller Publish, UnpublishVolume not supported": "controller PUBLISH_UNPUBLISH_VOLUME",
    "GetSnapshot not supported": "controller GET_SNAPSHOT",
    "GroupControllerService not supported": "plugin GROUP_CONTROLLER_SERVICE",
    "Service does not have single node multi writer capability": "node SINGLE_NODE_MULTI_WRITER",
    "NodeStageVolume not supported": "node STAGE_UNSTAGE_VOLUME",
    "NodeUnstageVolume not supported": "node STAGE_UNSTAGE_VOLUME",
}

#: A spec that csi-sanity's authors switched off in this version; no driver can have it run.
PENDING = "none: pending in csi-sanity itself"


@dataclass(frozen=True)
class Outcome:
    """What csi-sanity reported."""

    exit_code: int
    output: str
    specs: list[dict[str, Any]]
    offered: set[str]
    """The capabilities that the two roles offer, as in :data:`CAPABILITIES`."""
    guest_calls: list[tuple[str, str, int]]
    """What the node plugin asked of the stand-ins for guests."""

    def names(self, state: str) -> set[str]:
        """The specs in a state."""
        return {_name(spec) for spec in self.specs if spec["State"] == state}


@pytest.fixture(scope="module")
def outcome() -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        for directory in ("disks", "direct-volumes", "pods"):
            (folder / directory).mkdir()

        def disk_size(handle: str) -> int:
            return (folder / "disks" / "volumes" / handle / "disk.raw").stat().st_size

        runtime = Runtime(folder / "direct-volumes", folder / "pods", disk_size)
        settings = {"CONFIDENTIAL_CSI_LOCAL_DIRECTORY": str(folder / "disks")}
        roots = (
            *("--direct-volumes-root", str(folder / "direct-volumes")),
            *("--pods-root", str(folder / "pods")),
        )
        with (
            running("controller", folder, "--provider", "local", env=settings) as controller,
            running("node", folder, "--node-id", "node-1", *roots) as node,
            in_between(node.target(), folder / "runtime.sock", runtime) as endpoint,
        ):
            report = folder / "report.json"
            finished = subprocess.run(
                [
                    go_program("csi-sanity"),
                    f"-csi.endpoint={endpoint}",
                    f"-csi.controllerendpoint={controller.target()}",
                    f"-csi.mountdir={folder / 'mount'}",
                    f"-csi.stagingdir={folder / 'staging'}",
                    f"-ginkgo.json-report={report}",
                    "-ginkgo.no-color",
                ],
                check=False,
                capture_output=True,
                text=True,
                timeout=240,
            )
            specs = json.loads(report.read_text())[0]["SpecReports"]
            its = [spec for spec in specs if spec["LeafNodeType"] == "It"]
            yield Outcome(
                finished.returncode, finished.stdout, its, _offered(controller, node), runtime.calls
            )


def test_no_spec_fails(outcome: Outcome) -> None:
    assert outcome.exit_code == 0, outcome.output
    states = {spec["State"] for spec in outcome.specs}
    assert states <= {"passed", "skipped", "pending"}, outcome.output
    assert len(outcome.names("passed")) >= 62


def test_the_specs_not_run_are_those_whose_capability_is_not_offered(outcome: Outcome) -> None:
    """Drift either way fails: write the printed list to ``not-run.txt`` only after judging each line."""
    not_run = {f"{_name(spec)} | {_reason(spec)}" for spec in outcome.specs if spec["State"] != "passed"}
    assert sorted(not_run) == NOT_RUN.read_text().splitlines(), "\n".join(sorted(not_run))


def test_no_offered_capability_excuses_a_spec(outcome: Outcome) -> None:
    assert "controller CREATE_DELETE_VOLUME" in outcome.offered
    assert not outcome.offered & set(CAPABILITIES.values())


def test_stats_and_growth_were_answered_by_guests(outcome: Outcome) -> None:
    assert {method for method, _, _ in outcome.guest_calls} == {"GetVolumeStats", "ResizeVolume"}
    passed = outcome.names("passed")
    assert any("NodeGetVolumeStats" in name for name in passed)
    assert "Node Service NodeExpandVolume should work if node-expand is called after node-publish" in passed


def _offered(controller: DriverProcess, node: DriverProcess) -> set[str]:
    with grpc.insecure_channel(controller.target()) as channel:
        of_controller = csi_pb2_grpc.ControllerStub(channel).ControllerGetCapabilities(
            csi_pb2.ControllerGetCapabilitiesRequest(), timeout=10
        )
    with grpc.insecure_channel(node.target()) as channel:
        of_node = csi_pb2_grpc.NodeStub(channel).NodeGetCapabilities(
            csi_pb2.NodeGetCapabilitiesRequest(), timeout=10
        )
        of_plugin = csi_pb2_grpc.IdentityStub(channel).GetPluginCapabilities(
            csi_pb2.GetPluginCapabilitiesRequest(), timeout=10
        )
    controller_names = csi_pb2.ControllerServiceCapability.RPC.Type
    node_names = csi_pb2.NodeServiceCapability.RPC.Type
    plugin_names = csi_pb2.PluginCapability.Service.Type
    return {
        *(f"controller {controller_names.Name(item.rpc.type)}" for item in of_controller.capabilities),
        *(f"node {node_names.Name(item.rpc.type)}" for item in of_node.capabilities),
        *(f"plugin {plugin_names.Name(item.service.type)}" for item in of_plugin.capabilities),
    }


def _name(spec: dict[str, Any]) -> str:
    return " ".join([*(spec["ContainerHierarchyTexts"] or []), spec["LeafNodeText"]])


def _reason(spec: dict[str, Any]) -> str:
    if spec["State"] == "pending":
        return PENDING
    words = spec["Failure"]["Message"]
    return CAPABILITIES.get(words, f"unknown capability: {words}")
