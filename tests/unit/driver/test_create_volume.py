"""CreateVolume over a real socket: idempotency, sizes, names, capabilities."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from proto import csi_pb2
from tests.fakes.memory_provider import GIB, MemoryCloud, MemoryProvider, waiting_for
from tests.unit.driver.rig import (
    ENCRYPTED,
    Client,
    controller,
    from_snapshot,
    from_volume,
    mount,
    refused,
)

Code = grpc.StatusCode
Mode = csi_pb2.VolumeCapability.AccessMode


def test_two_calls_racing_on_one_name_make_one_disk(client: Client, cloud: MemoryCloud) -> None:
    """Field case A1."""
    release = threading.Event()
    cloud.before["create_volume"].append(waiting_for(release.wait))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.create)
        while "create_volume" not in cloud.calls:
            threading.Event().wait(0.01)
        with refused(Code.ABORTED):
            client.create()
        release.set()
        assert first.result().volume_id
    assert client.create().volume_id == first.result().volume_id
    assert len(cloud.volumes) == 1


def test_two_controllers_racing_on_one_name_make_one_disk(cloud: MemoryCloud) -> None:
    """Field case A1: no lock is shared, the provider alone makes creation idempotent."""
    together = threading.Barrier(2, timeout=60)
    cloud.before["create_volume"] += [waiting_for(together.wait)] * 2
    with (
        controller(MemoryProvider(cloud)) as one,
        controller(MemoryProvider(cloud)) as two,
        ThreadPoolExecutor() as pool,
    ):
        answers = [pool.submit(client.create) for client in (one, two)]
        assert len({answer.result().volume_id for answer in answers}) == 1
    assert len(cloud.volumes) == 1


def test_a_replay_after_attachment_returns_the_volume_at_once(client: Client, cloud: MemoryCloud) -> None:
    """Field case A3."""
    volume = client.create()
    cloud.in_use |= set(cloud.volumes)
    assert client.create(timeout=20) == volume


@pytest.mark.parametrize(
    ("required", "limit", "matches"),
    [
        pytest.param(5 * GIB, 20 * GIB, True, id="i"),
        pytest.param(10 * GIB, 0, True, id="ii"),
        pytest.param(11 * GIB, 0, False, id="iii"),
        pytest.param(0, 9 * GIB, False, id="iv"),
        pytest.param(0, 0, True, id="v"),
    ],
)
def test_an_existing_volume_is_compared_by_range(
    client: Client, cloud: MemoryCloud, required: int, limit: int, matches: bool
) -> None:
    """Field case A4."""
    volume = client.create(required=10 * GIB)
    if matches:
        assert client.create(required=required, limit=limit) == volume
    else:
        with refused(Code.ALREADY_EXISTS) as refusal:
            client.create(required=required, limit=limit)
        assert "pvc-1" in refusal.message
    assert [stored.size_bytes for stored in cloud.volumes.values()] == [10 * GIB]


def test_an_existing_volume_with_other_provider_parameters_is_refused(client: Client) -> None:
    """Field case A4 (vi)."""
    client.create(parameters={"memoryType": "fast"})
    with refused(Code.ALREADY_EXISTS):
        client.create(parameters={"memoryType": "slow"})


@pytest.mark.parametrize(
    "parameters",
    [{}, ENCRYPTED | {"encrypt-type": "luks"}, ENCRYPTED | {"kbs-key-id": "default/key/other"}],
)
def test_an_existing_volume_with_other_encryption_is_refused(
    client: Client, parameters: dict[str, str]
) -> None:
    """Field case A4, for what matters most."""
    client.create(parameters=ENCRYPTED)
    with refused(Code.ALREADY_EXISTS):
        client.create(parameters=parameters)


def test_an_existing_volume_for_another_file_system_is_refused(client: Client) -> None:
    client.create(capability=mount(fs_type="ext4"))
    with refused(Code.ALREADY_EXISTS):
        client.create(capability=mount(fs_type="xfs"))


def test_the_original_request_still_matches_after_an_expansion(client: Client, cloud: MemoryCloud) -> None:
    """Field case A4 (viii)."""
    volume = client.create(required=10 * GIB, limit=10 * GIB)
    client.expand(volume.volume_id, 20 * GIB)
    again = client.create(required=10 * GIB, limit=10 * GIB)
    assert (again.volume_id, again.capacity_bytes) == (volume.volume_id, 20 * GIB)
    assert len(cloud.volumes) == 1


def test_an_existing_volume_with_another_source_is_refused(client: Client) -> None:
    """Field cases A4 (ix) and E3."""
    source = client.create("source")
    first = client.snapshot("s1", source.volume_id)
    second = client.snapshot("s2", source.volume_id)
    client.create("copy", source=from_snapshot(first.snapshot_id))
    for other in (from_snapshot(second.snapshot_id), from_volume(source.volume_id), None):
        with refused(Code.ALREADY_EXISTS):
            client.create("copy", source=other)
    client.create("blank")
    with refused(Code.ALREADY_EXISTS):
        client.create("blank", source=from_snapshot(first.snapshot_id))


@pytest.mark.parametrize(
    ("required", "limit", "size"),
    [
        (10_000_000_000, 0, 10 * GIB),
        (1, 0, GIB),
        (GIB + 1, 0, 2 * GIB),
        (0, 2 * GIB, GIB),
        (0, 0, GIB),
    ],
)
def test_sizes_are_rounded_up_and_reported(client: Client, required: int, limit: int, size: int) -> None:
    """Field case A5."""
    assert client.create(required=required, limit=limit).capacity_bytes == size


@pytest.mark.parametrize(
    ("required", "limit", "code"),
    [
        (10_000_000_000, 10_000_000_000, Code.OUT_OF_RANGE),
        (5 * GIB, 4 * GIB, Code.INVALID_ARGUMENT),
        (-1, 0, Code.INVALID_ARGUMENT),
        (0, -1, Code.INVALID_ARGUMENT),
        (2**62, 0, Code.OUT_OF_RANGE),
        (0, 1, Code.OUT_OF_RANGE),
    ],
)
def test_impossible_sizes_are_refused(
    client: Client, cloud: MemoryCloud, required: int, limit: int, code: grpc.StatusCode
) -> None:
    """Field case A5."""
    with refused(code):
        client.create(required=required, limit=limit)
    assert not cloud.volumes


@pytest.mark.parametrize(
    "names",
    [
        ("x" * 127 + "a", "x" * 127 + "b"),
        ("pvc/\u03b1 b&<", "pvc/\u03b1 b&>"),
        ("a-b", "a_b"),
        ("PVC-1", "pvc-1"),
    ],
)
def test_similar_names_are_different_volumes(client: Client, names: tuple[str, str]) -> None:
    """Field case A7."""
    ids = [client.create(name).volume_id for name in names]
    assert ids == [client.create(name).volume_id for name in names]
    assert len(set(ids)) == 2
    assert all(len(volume_id.encode()) <= 128 for volume_id in ids)


@pytest.mark.parametrize("name", ["", "a\u0007b", "é" * 64 + "x", "\u0085"])
def test_impossible_names_are_refused(client: Client, cloud: MemoryCloud, name: str) -> None:
    """Field case A7."""
    with refused(Code.INVALID_ARGUMENT):
        client.create(name)
    assert not cloud.calls


BLOCK = csi_pb2.VolumeCapability(
    block=csi_pb2.VolumeCapability.BlockVolume(),
    access_mode=csi_pb2.VolumeCapability.AccessMode(mode=Mode.SINGLE_NODE_WRITER),
)
NO_MODE = csi_pb2.VolumeCapability(mount=csi_pb2.VolumeCapability.MountVolume())
NO_TYPE = csi_pb2.VolumeCapability(
    access_mode=csi_pb2.VolumeCapability.AccessMode(mode=Mode.SINGLE_NODE_WRITER)
)


@pytest.mark.parametrize(
    "capabilities",
    [
        [],
        [NO_MODE],
        [NO_TYPE],
        [BLOCK],
        [mount(), BLOCK],
        [mount(), mount(Mode.MULTI_NODE_MULTI_WRITER)],
        [mount(Mode.MULTI_NODE_READER_ONLY)],
        [mount(Mode.SINGLE_NODE_MULTI_WRITER)],
        [mount(fs_type="btrfs")],
        [mount(fs_type="ext4"), mount(fs_type="xfs")],
        [mount(flags=("discard",))],
        [mount(flags=("nodev", "bind"))],
    ],
)
def test_one_unsupported_capability_refuses_the_volume(
    client: Client, cloud: MemoryCloud, capabilities: list[csi_pb2.VolumeCapability]
) -> None:
    """Field case A10."""
    request = csi_pb2.CreateVolumeRequest(name="pvc-1", volume_capabilities=capabilities)
    with refused(Code.INVALID_ARGUMENT):
        client.controller.CreateVolume(request, timeout=10)
    assert not cloud.calls


@pytest.mark.parametrize("mode", [Mode.SINGLE_NODE_WRITER, Mode.SINGLE_NODE_SINGLE_WRITER])
def test_both_single_writer_modes_are_accepted_everywhere(
    client: Client, mode: csi_pb2.VolumeCapability.AccessMode.Mode.ValueType
) -> None:
    """Field case A10."""
    volume = client.create(capability=mount(mode))
    request = csi_pb2.ValidateVolumeCapabilitiesRequest(
        volume_id=volume.volume_id, volume_capabilities=[mount(mode)]
    )
    assert client.controller.ValidateVolumeCapabilities(request, timeout=10).HasField("confirmed")
    expand = csi_pb2.ControllerExpandVolumeRequest(
        volume_id=volume.volume_id,
        capacity_range=csi_pb2.CapacityRange(required_bytes=2 * GIB),
        volume_capability=mount(mode),
    )
    assert client.controller.ControllerExpandVolume(expand, timeout=10).capacity_bytes == 2 * GIB


def test_xfs_is_for_unencrypted_volumes(client: Client) -> None:
    """Field case I7: CDH knows only ext4, and says so only at the pod's start."""
    client.create("plain", capability=mount(fs_type="xfs"))
    with refused(Code.INVALID_ARGUMENT):
        client.create("encrypted", parameters=ENCRYPTED, capability=mount(fs_type="xfs"))


@pytest.mark.parametrize(
    ("parameters", "fs_type"),
    [({"fsType": "xfs"}, ""), ({"fsType": "ext4"}, "xfs"), ({"csi.storage.k8s.io/fstype": "xfs"}, "ext4")],
)
def test_the_deprecated_file_system_parameter_must_equal_the_capability(
    client: Client, parameters: dict[str, str], fs_type: str
) -> None:
    with refused(Code.INVALID_ARGUMENT):
        client.create(parameters=parameters, capability=mount(fs_type=fs_type))
    value = fs_type or "ext4"
    assert client.create(parameters=dict.fromkeys(parameters, value), capability=mount(fs_type=fs_type))


def test_the_context_is_the_parameters_and_where_the_disk_is(client: Client) -> None:
    """Field case L2, and the attributes that PVs have had since the older Go driver."""
    parameters = {**ENCRYPTED, "memoryType": "slow"}
    kubernetes = {"csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/serviceAccount.tokens": "x"}
    volume = client.create(parameters={**parameters, **kubernetes})
    handle = volume.volume_id.removeprefix("memory:")
    assert dict(volume.volume_context) == {
        **parameters,
        "cloudProvider": "memory",
        "cloud-provider": "memory",
        "cloud-volume-path": f"disk-{handle}",
        "cloud-volume-id": "pvc-1",
        "memory-zone": "zone-1",
    }


def test_the_largest_context_stays_within_the_specification(client: Client) -> None:
    parameters = {**ENCRYPTED, "kbs-key-id": "a/b/" + "c" * 196, "cloudProvider": "memory"}
    volume = client.create("x" * 128, parameters=parameters)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in volume.volume_context.items())
    assert size <= 4096


def test_mutable_parameters_that_the_provider_can_t_change_are_refused(client: Client) -> None:
    request = csi_pb2.CreateVolumeRequest(
        name="pvc-1", volume_capabilities=[mount()], mutable_parameters={"memoryType": "slow"}
    )
    with refused(Code.INVALID_ARGUMENT):
        client.controller.CreateVolume(request, timeout=10)


def test_a_killed_controller_s_volume_is_found_again(cloud: MemoryCloud) -> None:
    """Field case D3: the create reached the cloud, its answer never reached the controller."""

    def die(_deadline: object) -> None:
        raise SystemError("stands for SIGKILL")

    cloud.after["create_volume"].append(die)
    with controller(MemoryProvider(cloud)) as first, refused(Code.ABORTED):
        first.create()
    with controller(MemoryProvider(cloud)) as second:
        volume = second.create()
        assert len(cloud.volumes) == 1
        second.delete(volume.volume_id)
        assert not cloud.volumes
        listed = second.controller.ListSnapshots(csi_pb2.ListSnapshotsRequest(), timeout=10)
        assert not listed.entries
