"""Topology, modification and condition: what the provider is asked, and what Kubernetes is told."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from driver.identity import IdentityService
from driver.topology import ZONE_KEY
from proto import csi_pb2
from providers.interface import VolumeCondition
from tests.fakes.memory_provider import GIB, CloudyProvider, MemoryCloud, MemoryProvider
from tests.unit.driver.rig import Client, controller, mount, refused, serving

Code = grpc.StatusCode


@pytest.fixture
def client(cloud: MemoryCloud) -> Iterator[Client]:
    """A controller whose provider can do everything."""
    with controller(CloudyProvider(cloud)) as served:
        yield served


def _topologies(zones: tuple[str, ...]) -> list[csi_pb2.Topology]:
    return [csi_pb2.Topology(segments={ZONE_KEY: zone}) for zone in zones]


def create(
    client: Client,
    requisite: tuple[str, ...] = (),
    preferred: tuple[str, ...] = (),
    mutable: dict[str, str] | None = None,
    parameters: dict[str, str] | None = None,
) -> csi_pb2.Volume:
    """CreateVolume."""
    request = csi_pb2.CreateVolumeRequest(
        name="pvc-1",
        volume_capabilities=[mount()],
        accessibility_requirements=csi_pb2.TopologyRequirement(
            requisite=_topologies(requisite), preferred=_topologies(preferred)
        ),
        mutable_parameters=mutable,
        parameters=parameters,
    )
    return client.controller.CreateVolume(request, timeout=60).volume


@pytest.mark.parametrize(
    ("requisite", "preferred", "zone"),
    [
        (("zone-a", "zone-b"), ("zone-b", "zone-a"), "zone-b"),
        (("zone-a", "zone-b"), (), "zone-a"),
        ((), ("zone-b",), "zone-b"),
        (("zone-a",), ("zone-c", "zone-a"), "zone-a"),
        ((), (), "zone-1"),
    ],
)
def test_the_preferred_zone_comes_first(
    client: Client, requisite: tuple[str, ...], preferred: tuple[str, ...], zone: str
) -> None:
    """Field case G1."""
    volume = create(client, requisite, preferred)
    assert list(volume.accessible_topology) == _topologies((zone,))
    assert create(client, requisite, preferred) == volume


def test_a_volume_in_another_zone_is_not_the_one_asked_for(client: Client) -> None:
    """Field case A4 (vii)."""
    create(client, ("zone-a",))
    with refused(Code.ALREADY_EXISTS):
        create(client, ("zone-b",))
    create(client, ("zone-b", "zone-a"))


def test_a_full_zone_lets_the_scheduler_choose_again(client: Client, cloud: MemoryCloud) -> None:
    """Field case G1."""
    with refused(Code.RESOURCE_EXHAUSTED):
        create(client, ("zone-full",))
    assert not cloud.volumes


@pytest.mark.parametrize("segments", [{"topology.kubernetes.io/zone": "a"}, {}, {ZONE_KEY: ""}])
def test_a_topology_of_others_is_refused(
    client: Client, cloud: MemoryCloud, segments: dict[str, str]
) -> None:
    """Field case G1."""
    request = csi_pb2.CreateVolumeRequest(
        name="pvc-1",
        volume_capabilities=[mount()],
        accessibility_requirements=csi_pb2.TopologyRequirement(
            requisite=[csi_pb2.Topology(segments=segments)]
        ),
    )
    with refused(Code.INVALID_ARGUMENT) as refusal:
        client.controller.CreateVolume(request, timeout=60)
    assert ZONE_KEY in refusal.message
    assert not cloud.calls


def test_zones_are_advertised_only_where_there_are_any(cloud: MemoryCloud) -> None:
    service = csi_pb2.PluginCapability.Service
    for has_zones in (True, False):
        with serving({"Identity": IdentityService(can_expand=True, has_zones=has_zones)}) as client:
            answer = client.identity.GetPluginCapabilities(csi_pb2.GetPluginCapabilitiesRequest(), timeout=60)
            types = {capability.service.type for capability in answer.capabilities}
            assert (service.VOLUME_ACCESSIBILITY_CONSTRAINTS in types) == has_zones
    with controller(MemoryProvider(cloud)) as without:
        assert list(create(without, ("zone-a",)).accessible_topology) == []


def test_a_class_of_attributes_wins_over_the_storage_class(client: Client, cloud: MemoryCloud) -> None:
    create(client, mutable={"memoryType": "slow"}, parameters={"memoryType": "fast"})
    assert list(cloud.types.values()) == ["slow"]


def _modify(client: Client, volume_id: str, parameters: dict[str, str]) -> None:
    request = csi_pb2.ControllerModifyVolumeRequest(volume_id=volume_id, mutable_parameters=parameters)
    client.controller.ControllerModifyVolume(request, timeout=60)


def test_a_volume_is_modified_by_mutable_parameters_only(client: Client, cloud: MemoryCloud) -> None:
    volume_id = create(client).volume_id
    _modify(client, volume_id, {"memoryType": "slow"})
    assert list(cloud.types.values()) == ["slow"]
    _modify(client, volume_id, {})
    assert cloud.calls.count("modify_volume") == 1
    for parameters in ({"memoryType": "no-such"}, {"kbs-key-id": "default/key/2"}, {"x": "y"}):
        with refused(Code.INVALID_ARGUMENT):
            _modify(client, volume_id, parameters)
    with refused(Code.NOT_FOUND):
        _modify(client, "no-such", {"memoryType": "slow"})
    with refused(Code.INVALID_ARGUMENT):
        _modify(client, "", {"memoryType": "slow"})
    assert cloud.calls.count("modify_volume") == 1


def test_what_the_cloud_says_of_a_disk_s_health_is_passed_on(client: Client, cloud: MemoryCloud) -> None:
    volume_id = create(client).volume_id
    cloud.conditions = dict.fromkeys(cloud.volumes, VolumeCondition(True, "I/O is disabled"))
    got = client.controller.ControllerGetVolume(
        csi_pb2.ControllerGetVolumeRequest(volume_id=volume_id), timeout=5
    )
    listed = client.controller.ListVolumes(csi_pb2.ListVolumesRequest(), timeout=60)
    for status in (got.status, listed.entries[0].status):
        assert (status.volume_condition.abnormal, status.volume_condition.message) == (
            True,
            "I/O is disabled",
        )
    cloud.conditions.clear()
    again = client.controller.ControllerGetVolume(
        csi_pb2.ControllerGetVolumeRequest(volume_id=volume_id), timeout=5
    )
    assert not again.status.HasField("volume_condition")


def test_a_provider_of_everything_offers_everything(client: Client, cloud: MemoryCloud) -> None:
    def offered(of: Client) -> set[str]:
        names = csi_pb2.ControllerServiceCapability.RPC.Type
        answer = of.controller.ControllerGetCapabilities(
            csi_pb2.ControllerGetCapabilitiesRequest(), timeout=5
        )
        return {names.Name(capability.rpc.type) for capability in answer.capabilities}

    optional = {
        "MODIFY_VOLUME",
        "PUBLISH_UNPUBLISH_VOLUME",
        "LIST_VOLUMES_PUBLISHED_NODES",
        "VOLUME_CONDITION",
    }
    assert optional <= offered(client)
    with controller(MemoryProvider(cloud)) as without:
        assert not optional & offered(without)
        volume_id = without.create(required=GIB).volume_id
        with refused(Code.UNIMPLEMENTED):
            _modify(without, volume_id, {"memoryType": "slow"})
