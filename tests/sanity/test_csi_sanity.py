"""csi-sanity, without any skip flag, against the real processes of both roles."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from proto import csi_pb2, csi_pb2_grpc
from tests.sanity.deployments import DEPLOYMENTS
from tests.sanity.runtime import Runtime, in_between
from tests.tools.driver_process import DriverProcess, running
from tests.tools.go_programs import go_program

HERE = Path(__file__).parent

#: csi-sanity's words for a missing capability, and its name in the specification.
CAPABILITIES = {
    "ControllerModifyVolume not supported": "controller MODIFY_VOLUME",
    "Modify volume not supported": "controller MODIFY_VOLUME",
    "Modify Volume not supported": "controller MODIFY_VOLUME",
    "ControllerPublishVolume not supported": "controller PUBLISH_UNPUBLISH_VOLUME",
    "ControllerUnpublishVolume not supported": "controller PUBLISH_UNPUBLISH_VOLUME",
    "Controller Publish, UnpublishVolume not supported": "controller PUBLISH_UNPUBLISH_VOLUME",
    "ControllerPublishVolume.readonly field not supported": "controller PUBLISH_READONLY",
    "GetCapacity not supported": "controller GET_CAPACITY",
    "GetSnapshot not supported": "controller GET_SNAPSHOT",
    "GroupControllerService not supported": "plugin GROUP_CONTROLLER_SERVICE",
    "Service does not have single node multi writer capability": "node SINGLE_NODE_MULTI_WRITER",
    "NodeStageVolume not supported": "node STAGE_UNSTAGE_VOLUME",
    "NodeUnstageVolume not supported": "node STAGE_UNSTAGE_VOLUME",
}

#: A spec that csi-sanity's authors switched off in this version; no driver can have it run.
PENDING = "none: pending in csi-sanity itself"

#: Not a capability: a flag of csi-sanity, for drivers whose nodes can hold so many disks and no more.
REASONS = CAPABILITIES | {
    "testnodevolumeattachlimit not enabled": "none: disks attach to PodVMs, so nodes have no limit to exceed"
}


@dataclass(frozen=True)
class Outcome:
    """What csi-sanity reported."""

    exit_code: int
    output: str
    specs: list[dict[str, Any]]
    provider: str
    offered: set[str]
    """The capabilities that the two roles offer, as in :data:`CAPABILITIES`."""
    guest_calls: list[tuple[str, str, int]]
    """What the node plugin asked of the stand-ins for guests."""

    def names(self, state: str) -> set[str]:
        """The specs in a state."""
        return {_name(spec) for spec in self.specs if spec["State"] == state}


@pytest.fixture(scope="module", params=DEPLOYMENTS)
def outcome(request: pytest.FixtureRequest) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, ExitStack() as stack:
        folder = Path(name)
        for directory in ("direct-volumes", "pods"):
            (folder / directory).mkdir()
        deployment = stack.enter_context(DEPLOYMENTS[request.param](folder))
        parameters = folder / "mutable.yaml"
        parameters.write_text(json.dumps(dict(deployment.mutable_parameters)))
        runtime = Runtime(folder / "direct-volumes", folder / "pods", deployment.disk_size)
        roots = (
            *("--direct-volumes-root", str(folder / "direct-volumes")),
            *("--pods-root", str(folder / "pods")),
        )
        with (
            running("node", folder, "--node-id", "node-1", *deployment.node_options, *roots) as node,
            in_between(node.target(), folder / "runtime.sock", runtime) as endpoint,
        ):
            report = folder / "report.json"
            finished = subprocess.run(
                [
                    go_program("csi-sanity"),
                    f"-csi.endpoint={endpoint}",
                    f"-csi.controllerendpoint={deployment.target}",
                    f"-csi.mountdir={folder / 'mount'}",
                    f"-csi.stagingdir={folder / 'staging'}",
                    f"-csi.testvolumemutableparameters={parameters}",
                    f"-ginkgo.json-report={report}",
                    "-ginkgo.no-color",
                ],
                check=False,
                capture_output=True,
                text=True,
                timeout=500,
            )
            specs = json.loads(report.read_text())[0]["SpecReports"]
            its = [spec for spec in specs if spec["LeafNodeType"] == "It"]
            offered = _offered(deployment.target, node)
            yield Outcome(finished.returncode, finished.stdout, its, request.param, offered, runtime.calls)


def test_no_spec_fails(outcome: Outcome) -> None:
    assert outcome.exit_code == 0, outcome.output
    states = {spec["State"] for spec in outcome.specs}
    assert states <= {"passed", "skipped", "pending"}, outcome.output
    assert len(outcome.names("passed")) >= 62


def test_the_specs_not_run_are_those_whose_capability_is_not_offered(outcome: Outcome) -> None:
    """Drift either way fails: write the printed list to the file only after judging each line."""
    not_run = {f"{_name(spec)} | {_reason(spec)}" for spec in outcome.specs if spec["State"] != "passed"}
    judged = (HERE / f"not-run-{outcome.provider}.txt").read_text().splitlines()
    assert sorted(not_run) == judged, "\n".join(sorted(not_run))


def test_no_offered_capability_excuses_a_spec(outcome: Outcome) -> None:
    assert "controller CREATE_DELETE_VOLUME" in outcome.offered
    skipped = (spec for spec in outcome.specs if spec["State"] == "skipped")
    assert not outcome.offered & {_reason(spec) for spec in skipped}


def test_stats_and_growth_were_answered_by_guests(outcome: Outcome) -> None:
    assert {method for method, _, _ in outcome.guest_calls} == {"GetVolumeStats", "ResizeVolume"}
    passed = outcome.names("passed")
    assert any("NodeGetVolumeStats" in name for name in passed)
    assert "Node Service NodeExpandVolume should work if node-expand is called after node-publish" in passed


def _offered(controller: str, node: DriverProcess) -> set[str]:
    with grpc.insecure_channel(controller) as channel:
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
    return REASONS.get(words, f"unknown capability: {words}")
