"""DeleteVolume, expansion, listing, capacity, validation: what happens to volumes that exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest

from proto import csi_pb2
from providers.errors import OutcomeUnknownError, QuotaExceededError, UnavailableError
from tests.fakes.memory_provider import GIB, MemoryCloud, MemoryProvider, MinimalProvider, raising
from tests.unit.driver.rig import ENCRYPTED, Client, controller, mount, refused

Code = grpc.StatusCode
Mode = csi_pb2.VolumeCapability.AccessMode

HOSTILE_IDS = [
    "../../../escape/x",
    "a/b",
    ".",
    "..",
    "x\0y",
    "y" * 300,
    "memory:",
    "memory:a b",
    "memory:\u00e9",
]


def test_deleting_twice_and_deleting_nothing_succeeds(client: Client, cloud: MemoryCloud) -> None:
    """Field case A6."""
    volume = client.create()
    client.delete(volume.volume_id)
    client.delete(volume.volume_id)
    client.delete("no-such")
    assert not cloud.volumes


def test_a_volume_that_can_t_be_looked_up_is_not_deleted(client: Client, cloud: MemoryCloud) -> None:
    """Field case A6: "could not be asked" is not "gone"."""
    volume = client.create()
    cloud.before["delete_volume"].append(raising(UnavailableError("RequestLimitExceeded")))
    with refused(Code.UNAVAILABLE):
        client.delete(volume.volume_id)
    assert len(cloud.volumes) == 1


def test_a_disk_in_use_is_left_alone_until_it_is_free(client: Client, cloud: MemoryCloud) -> None:
    """Field case A9."""
    volume = client.create()
    cloud.in_use |= set(cloud.volumes)
    with refused(Code.FAILED_PRECONDITION):
        client.delete(volume.volume_id)
    assert len(cloud.volumes) == 1
    cloud.in_use.clear()
    client.delete(volume.volume_id)
    assert not cloud.volumes


def test_the_older_driver_s_ids_resolve(client: Client, cloud: MemoryCloud) -> None:
    """Field case C10, and design decision 1: its volume handle is the bare CSI name."""
    client.create("pvc-0d9c9a4e-6f1e-4b1e-9f0e-3b8d3d3f3f3f")
    name = "pvc-0d9c9a4e-6f1e-4b1e-9f0e-3b8d3d3f3f3f"
    got = client.controller.ControllerGetVolume(
        csi_pb2.ControllerGetVolumeRequest(volume_id=name), timeout=10
    )
    assert got.volume.volume_id == name
    assert client.expand(name, 2 * GIB).capacity_bytes == 2 * GIB
    assert client.snapshot("s1", name).ready_to_use
    client.delete(name)
    assert not cloud.volumes


def test_a_disk_made_by_someone_else_is_found_by_asking_the_cloud(cloud: MemoryCloud) -> None:
    """Field case C10: nothing was created through this controller."""
    with controller(MemoryProvider(cloud)) as other:
        volume_id = other.create().volume_id
    with controller(MemoryProvider(cloud)) as client:
        request = csi_pb2.ValidateVolumeCapabilitiesRequest(
            volume_id=volume_id, volume_capabilities=[mount()]
        )
        assert client.controller.ValidateVolumeCapabilities(request, timeout=10).HasField("confirmed")
        client.delete(volume_id)
    assert not cloud.volumes


@pytest.mark.parametrize("volume_id", HOSTILE_IDS)
def test_hostile_ids_are_unknown_and_reach_no_cloud(
    client: Client, cloud: MemoryCloud, volume_id: str
) -> None:
    """Field case C9."""
    client.delete(volume_id)
    calls: list[Callable[[], object]] = [
        lambda: client.expand(volume_id, GIB),
        lambda: client.snapshot("s1", volume_id),
        lambda: client.controller.ControllerGetVolume(
            csi_pb2.ControllerGetVolumeRequest(volume_id=volume_id), timeout=10
        ),
        lambda: client.controller.ValidateVolumeCapabilities(
            csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id=volume_id, volume_capabilities=[mount()]),
            timeout=10,
        ),
    ]
    for call in calls:
        with refused(Code.NOT_FOUND):
            call()
    assert not cloud.calls


def test_an_empty_id_is_refused_by_every_rpc(client: Client, cloud: MemoryCloud) -> None:
    """Field case C9."""
    calls: list[Callable[[], object]] = [
        lambda: client.create(""),
        lambda: client.delete(""),
        lambda: client.expand("", GIB),
        lambda: client.snapshot("", "memory:x"),
        lambda: client.snapshot("s1", ""),
        lambda: client.delete_snapshot(""),
        lambda: client.controller.ControllerGetVolume(csi_pb2.ControllerGetVolumeRequest(), timeout=10),
        lambda: client.controller.ValidateVolumeCapabilities(
            csi_pb2.ValidateVolumeCapabilitiesRequest(volume_capabilities=[mount()]), timeout=10
        ),
    ]
    for call in calls:
        with refused(Code.INVALID_ARGUMENT):
            call()
    assert not cloud.calls


def test_another_provider_s_volume_is_not_taken_for_deleted(client: Client) -> None:
    """Field case A6: OK would make Kubernetes forget a disk that exists."""
    with refused(Code.FAILED_PRECONDITION) as refusal:
        client.delete("azure:disk-1")
    assert "--provider azure" in refusal.message


def test_expansion_is_idempotent_and_never_shrinks(client: Client, cloud: MemoryCloud) -> None:
    """Field case F1."""
    volume_id = client.create(required=10 * GIB).volume_id
    assert client.expand(volume_id, 20 * GIB - 5) == csi_pb2.ControllerExpandVolumeResponse(
        capacity_bytes=20 * GIB, node_expansion_required=True
    )
    sent = len(cloud.changes())
    for required in (20 * GIB, 10 * GIB, 1):
        answer = client.expand(volume_id, required)
        assert (answer.capacity_bytes, answer.node_expansion_required) == (20 * GIB, True)
    assert len(cloud.changes()) == sent


@pytest.mark.parametrize(
    ("required", "limit", "code"),
    [
        (GIB, 5 * GIB, Code.OUT_OF_RANGE),
        (10 * GIB + 1, 11 * GIB - 1, Code.OUT_OF_RANGE),
        (2**62, 0, Code.OUT_OF_RANGE),
        (12 * GIB, 11 * GIB, Code.INVALID_ARGUMENT),
        (-1, 0, Code.INVALID_ARGUMENT),
        (0, 0, Code.INVALID_ARGUMENT),
    ],
)
def test_impossible_expansions_are_refused(
    client: Client, cloud: MemoryCloud, required: int, limit: int, code: grpc.StatusCode
) -> None:
    """Field case F1."""
    volume_id = client.create(required=10 * GIB).volume_id
    with refused(code):
        client.expand(volume_id, required, limit)
    assert "expand_volume" not in cloud.calls


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OutcomeUnknownError("IncorrectModificationState"), Code.ABORTED),
        (UnavailableError("throttled"), Code.UNAVAILABLE),
        (QuotaExceededError("no space"), Code.RESOURCE_EXHAUSTED),
        (KeyError("bug"), Code.ABORTED),
    ],
)
def test_a_failed_expansion_tells_whether_it_may_be_in_progress(
    client: Client, cloud: MemoryCloud, error: Exception, code: grpc.StatusCode
) -> None:
    """Field cases F1 and A11."""
    volume_id = client.create().volume_id
    cloud.before["expand_volume"].append(raising(error))
    with refused(code):
        client.expand(volume_id, 2 * GIB)


def test_volumes_are_listed_page_by_page(client: Client) -> None:
    ids = {client.create(f"pvc-{number}").volume_id for number in range(3)}
    first = client.controller.ListVolumes(csi_pb2.ListVolumesRequest(max_entries=2), timeout=10)
    rest = client.controller.ListVolumes(
        csi_pb2.ListVolumesRequest(starting_token=first.next_token), timeout=10
    )
    assert {entry.volume.volume_id for entry in (*first.entries, *rest.entries)} == ids
    assert (len(first.entries), rest.next_token) == (2, "")
    for request, code in (
        (csi_pb2.ListVolumesRequest(starting_token=first.next_token + "x"), Code.ABORTED),
        (csi_pb2.ListVolumesRequest(max_entries=-1), Code.INVALID_ARGUMENT),
    ):
        with refused(code):
            client.controller.ListVolumes(request, timeout=10)


def test_a_volume_of_the_older_driver_is_listed_by_the_id_of_its_pv(
    client: Client, cloud: MemoryCloud
) -> None:
    """The attacher looks for that id among the published ones, and attaches again what it does not find."""
    client.create()
    (handle,) = cloud.volumes
    cloud.volumes[handle] = replace(cloud.volumes[handle], older_id="pvc-1")
    (entry,) = client.controller.ListVolumes(csi_pb2.ListVolumesRequest(), timeout=10).entries
    assert entry.volume.volume_id == "pvc-1"


def test_capacity_is_the_provider_s_and_none_for_what_it_can_t_serve(client: Client) -> None:
    def capacity(request: csi_pb2.GetCapacityRequest) -> csi_pb2.GetCapacityResponse:
        return client.controller.GetCapacity(request, timeout=10)

    answer = capacity(csi_pb2.GetCapacityRequest(parameters=ENCRYPTED, volume_capabilities=[mount()]))
    assert answer.available_capacity == 100 * GIB
    assert (answer.minimum_volume_size.value, answer.maximum_volume_size.value) == (GIB, 16384 * GIB)
    shared = csi_pb2.GetCapacityRequest(volume_capabilities=[mount(Mode.MULTI_NODE_MULTI_WRITER)])
    assert capacity(shared).available_capacity == 0
    with refused(Code.INVALID_ARGUMENT):
        capacity(csi_pb2.GetCapacityRequest(parameters={"encryptType": "luks2"}))


def test_validation_confirms_what_fits_the_volume_and_says_what_does_not(client: Client) -> None:
    """Field case A10."""
    volume = client.create(parameters=ENCRYPTED)

    def validate(
        *capabilities: csi_pb2.VolumeCapability, parameters: dict[str, str] | None = None
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        request = csi_pb2.ValidateVolumeCapabilitiesRequest(
            volume_id=volume.volume_id,
            volume_capabilities=capabilities,
            volume_context=volume.volume_context,
            parameters=parameters,
        )
        return client.controller.ValidateVolumeCapabilities(request, timeout=10)

    good = validate(mount(), parameters=ENCRYPTED)
    assert dict(good.confirmed.volume_context) == dict(volume.volume_context)
    assert list(good.confirmed.volume_capabilities) == [mount()]
    for bad in (
        validate(mount(), mount(Mode.MULTI_NODE_MULTI_WRITER)),
        validate(mount(fs_type="xfs")),
        validate(mount(), parameters=ENCRYPTED | {"kbs-key-id": "default/key/other"}),
    ):
        assert not bad.HasField("confirmed")
        assert bad.message
    for malformed in ((), (csi_pb2.VolumeCapability(mount=mount().mount),)):
        with refused(Code.INVALID_ARGUMENT):
            validate(*malformed)


def test_capabilities_follow_from_the_provider_s_interfaces(client: Client) -> None:
    def offered(of: Client) -> set[str]:
        names = csi_pb2.ControllerServiceCapability.RPC.Type
        request = csi_pb2.ControllerGetCapabilitiesRequest()
        response = of.controller.ControllerGetCapabilities(request, timeout=10)
        return {names.Name(capability.rpc.type) for capability in response.capabilities}

    always = {"CREATE_DELETE_VOLUME", "GET_VOLUME"}
    assert offered(client) == always | {
        "LIST_VOLUMES",
        "GET_CAPACITY",
        "CREATE_DELETE_SNAPSHOT",
        "LIST_SNAPSHOTS",
        "CLONE_VOLUME",
        "EXPAND_VOLUME",
    }
    with controller(MinimalProvider(MemoryCloud())) as minimal:
        assert offered(minimal) == always
        volume_id = minimal.create().volume_id
        for call in (
            lambda: minimal.expand(volume_id, 2 * GIB),
            lambda: minimal.controller.ListVolumes(csi_pb2.ListVolumesRequest(), timeout=10),
            lambda: minimal.controller.GetCapacity(csi_pb2.GetCapacityRequest(), timeout=10),
            lambda: minimal.controller.ControllerPublishVolume(
                csi_pb2.ControllerPublishVolumeRequest(volume_id=volume_id, node_id="n"), timeout=10
            ),
        ):
            with refused(Code.UNIMPLEMENTED):
                call()
