"""Volumes made from snapshots and from volumes."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest

from proto import csi_pb2
from tests.fakes.memory_provider import GIB, MemoryCloud, MemoryProvider, MinimalProvider
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


def test_a_restored_volume_s_response_is_the_same_byte_for_byte(cloud: MemoryCloud) -> None:
    """Field case E3: replayed by a second controller, after snapshot and source are gone."""
    with controller(MemoryProvider(cloud)) as first:
        source = first.create("source", parameters=ENCRYPTED)
        snapshot = first.snapshot("s1", source.volume_id)
        content = from_snapshot(snapshot.snapshot_id)
        answer = first.create("copy", parameters=ENCRYPTED, source=content)
    assert answer.content_source.snapshot.snapshot_id == snapshot.snapshot_id
    with controller(MemoryProvider(cloud)) as second:
        second.delete_snapshot(snapshot.snapshot_id)
        second.delete(source.volume_id)
        again = second.create("copy", parameters=ENCRYPTED, source=content)
    assert again.SerializeToString(deterministic=True) == answer.SerializeToString(deterministic=True)


def test_a_copy_can_be_larger_than_its_source(client: Client) -> None:
    """Field case E5: the reported size is the requested one; the guest grows the file system."""
    source = client.create("source", required=GIB)
    clone = client.create("clone", required=2 * GIB, source=from_volume(source.volume_id))
    assert clone.capacity_bytes == 2 * GIB
    assert clone.content_source.volume.volume_id == source.volume_id


@pytest.mark.parametrize("kind", ["snapshot", "volume"])
def test_a_copy_is_never_smaller_than_its_source(client: Client, cloud: MemoryCloud, kind: str) -> None:
    """Field case B5: moto would make it."""
    source = client.create("source", required=3 * GIB)
    content = from_volume(source.volume_id)
    if kind == "snapshot":
        content = from_snapshot(client.snapshot("s1", source.volume_id).snapshot_id)
    for required, limit in ((GIB, 0), (0, 2 * GIB)):
        with refused(Code.OUT_OF_RANGE):
            client.create("copy", source=content, required=required, limit=limit)
    assert len(cloud.volumes) == 1
    assert client.create("copy", required=0, source=content).capacity_bytes == 3 * GIB


def test_a_size_that_rounds_up_to_the_source_s_is_enough(client: Client) -> None:
    source = client.create("source", required=10_000_000_000)
    clone = client.create("clone", required=10_000_000_000, source=from_volume(source.volume_id))
    assert clone.capacity_bytes == source.capacity_bytes


@pytest.mark.parametrize(
    ("of_source", "of_copy"),
    [
        (ENCRYPTED, ENCRYPTED | {"kbs-key-id": "default/key/other"}),
        (ENCRYPTED, {}),
        ({}, ENCRYPTED),
    ],
)
def test_a_copy_has_its_source_s_encryption(
    client: Client, cloud: MemoryCloud, of_source: dict[str, str], of_copy: dict[str, str]
) -> None:
    """Field case E5: the copied LUKS header opens with the source's key and no other."""
    source = client.create("source", parameters=of_source)
    snapshot = client.snapshot("s1", source.volume_id)
    for content in (from_volume(source.volume_id), from_snapshot(snapshot.snapshot_id)):
        with refused(Code.INVALID_ARGUMENT):
            client.create("copy", parameters=of_copy, source=content)
    assert len(cloud.volumes) == 1


def test_a_copy_has_its_source_s_file_system(client: Client) -> None:
    source = client.create("source", capability=mount(fs_type="xfs"))
    with refused(Code.INVALID_ARGUMENT):
        client.create("copy", source=from_volume(source.volume_id), capability=mount(fs_type="ext4"))


@pytest.mark.parametrize(
    "source",
    [
        from_snapshot("memory:nope"),
        from_snapshot("nope"),
        from_volume("memory:nope"),
        from_volume("nope"),
        from_volume("../../x"),
    ],
)
def test_a_missing_source_is_not_found(
    client: Client, cloud: MemoryCloud, source: csi_pb2.VolumeContentSource
) -> None:
    with refused(Code.NOT_FOUND):
        client.create(source=source)
    assert not cloud.changes()


@pytest.mark.parametrize("source", [from_snapshot(""), from_volume(""), csi_pb2.VolumeContentSource()])
def test_an_empty_source_is_refused(client: Client, source: csi_pb2.VolumeContentSource) -> None:
    """Field case C9."""
    with refused(Code.INVALID_ARGUMENT):
        client.create(source=source)


def test_a_snapshot_that_is_not_ready_is_waited_for_by_the_caller(client: Client, cloud: MemoryCloud) -> None:
    snapshot = client.snapshot("s1", client.create("source").volume_id)
    handle = snapshot.snapshot_id.removeprefix("memory:")
    cloud.snapshots[handle] = replace(cloud.snapshots[handle], ready=False)
    with refused(Code.UNAVAILABLE):
        client.create("copy", source=from_snapshot(snapshot.snapshot_id))
    assert len(cloud.volumes) == 1


def test_a_provider_without_copies_refuses_sources(cloud: MemoryCloud) -> None:
    with controller(MinimalProvider(cloud)) as client:
        for source in (from_snapshot("memory:x"), from_volume("memory:x")):
            with refused(Code.INVALID_ARGUMENT):
                client.create(source=source)
