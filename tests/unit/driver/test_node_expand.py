"""Node expansion, and what the node says of itself."""

from __future__ import annotations

import pytest

from driver.direct_volumes import DirectVolumes
from driver.errors import (
    InvalidArgument,
    NotFound,
    Unavailable,
)
from driver.guests import Guests
from driver.node import NodeService
from driver.pod_sockets import PodSockets
from driver.topology import ZONE_KEY
from proto import csi_pb2
from tests.unit.driver.node_support import (
    NO_CONTEXT,
    Worker,
    expand,
    publish,
    unpublish,
)


def test_expanding_before_the_sandbox_exists_is_ok(node: Worker) -> None:
    """Field case F3: an error would block the mount for good."""
    target = node.target()
    publish(node.start(), target)
    assert expand(node.start(), target, required=2 << 30) == 2 << 30
    assert expand(node.start(), target, required=2 << 30, limit=3 << 30) == 2 << 30
    assert expand(node.start(), target, limit=3 << 30) == 0
    assert expand(node.start(), target) == 0


def test_expanding_under_a_running_guest_is_not_claimed(node: Worker) -> None:
    """Field case F3."""
    target = node.target()
    publish(node.start(), target)
    (node.record(target) / "sandbox-7").touch()
    with pytest.raises(Unavailable, match="PodVM"):
        expand(node.start(), target, required=2 << 30)


def test_expanding_at_an_unknown_path_is_not_found(node: Worker) -> None:
    """Field cases F3 and C9."""
    target = node.target()
    plugin = node.start()
    publish(plugin, target)
    for path in ("/unknown", "relative", "/" + "p" * 300, "../../etc", target + "/", "/x\0y"):
        with pytest.raises(NotFound):
            expand(plugin, path)
    unpublish(plugin, target)
    with pytest.raises(NotFound):
        expand(plugin, target)


def test_expanding_by_a_senseless_range_is_refused(node: Worker) -> None:
    """Field case A5."""
    target = node.target()
    publish(node.start(), target)
    for required, limit in ((-1, 0), (0, -1), (5 << 30, 4 << 30)):
        with pytest.raises(InvalidArgument):
            expand(node.start(), target, required=required, limit=limit)


def test_expanding_on_a_damaged_record_asks_to_come_again(node: Worker) -> None:
    target = node.target()
    publish(node.start(), target)
    (node.record(target) / "mountInfo.json").write_bytes(b"{")
    with pytest.raises(Unavailable, match="damaged"):
        expand(node.start(), target)


def test_the_node_reports_its_name_and_no_limit(node: Worker) -> None:
    info = node.start().NodeGetInfo(csi_pb2.NodeGetInfoRequest(), NO_CONTEXT)
    assert info.node_id == "node/worker-1"
    assert info.max_volumes_per_node == 0
    assert not info.HasField("accessible_topology")


def test_the_node_reports_the_zone_of_its_podvms(node: Worker) -> None:
    plugin = NodeService("worker-1", DirectVolumes(node.root), Guests(PodSockets(node.pods)), "us-east-1a")
    info = plugin.NodeGetInfo(csi_pb2.NodeGetInfoRequest(), NO_CONTEXT)
    assert dict(info.accessible_topology.segments) == {ZONE_KEY: "us-east-1a"}


def test_what_guests_answer_is_advertised_and_no_second_writer(node: Worker) -> None:
    """Field case A10: SINGLE_NODE_MULTI_WRITER would change the mode of every ReadWriteOnce claim."""
    response = node.start().NodeGetCapabilities(csi_pb2.NodeGetCapabilitiesRequest(), NO_CONTEXT)
    types = [capability.rpc.type for capability in response.capabilities]
    rpc = csi_pb2.NodeServiceCapability.RPC
    assert types == [rpc.EXPAND_VOLUME, rpc.GET_VOLUME_STATS, rpc.VOLUME_CONDITION]
