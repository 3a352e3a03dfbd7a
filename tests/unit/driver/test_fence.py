"""ControllerPublish and -Unpublish: who may start a PodVM with a disk, and what the node is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import grpc
import pytest

from driver import controller_publish
from driver.node_id import is_node_id, node_id
from proto import csi_pb2
from providers.errors import OutcomeUnknownError
from tests.fakes.memory_provider import CloudyProvider, MemoryCloud, raising
from tests.unit.driver.node_support import NO_CONTEXT, Worker
from tests.unit.driver.rig import Client, controller, mount, refused

Code = grpc.StatusCode

ONE, TWO = node_id("worker-1"), node_id("worker-2")


@pytest.fixture
def client(cloud: MemoryCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A controller whose provider is a fence."""
    monkeypatch.setattr(controller_publish, "POLL_SECONDS", 0.02)
    with controller(CloudyProvider(cloud)) as served:
        yield served


def attach(client: Client, volume_id: str, node: str) -> dict[str, str]:
    """ControllerPublishVolume."""
    request = csi_pb2.ControllerPublishVolumeRequest(
        volume_id=volume_id, node_id=node, volume_capability=mount()
    )
    return dict(client.controller.ControllerPublishVolume(request, timeout=60).publish_context)


def detach(client: Client, volume_id: str, node: str, timeout: float = 5) -> None:
    """ControllerUnpublishVolume."""
    request = csi_pb2.ControllerUnpublishVolumeRequest(volume_id=volume_id, node_id=node)
    client.controller.ControllerUnpublishVolume(request, timeout=timeout)


def published(client: Client, volume_id: str) -> list[str]:
    """The nodes that ControllerGetVolume and ListVolumes agree on."""
    got = client.controller.ControllerGetVolume(
        csi_pb2.ControllerGetVolumeRequest(volume_id=volume_id), timeout=5
    )
    listed = client.controller.ListVolumes(csi_pb2.ListVolumesRequest(), timeout=60)
    (entry,) = (entry for entry in listed.entries if entry.volume.volume_id == volume_id)
    assert entry.status.published_node_ids == got.status.published_node_ids
    return list(got.status.published_node_ids)


def test_a_publish_notes_the_node_and_tells_it_the_disk(client: Client, cloud: MemoryCloud) -> None:
    volume_id = client.create().volume_id
    (disk,) = (volume.disk_id for volume in cloud.volumes.values())
    assert published(client, volume_id) == []
    for _ in range(2):
        assert attach(client, volume_id, ONE) == {"cloud-volume-path": disk, "cloud-provider": "memory"}
        assert published(client, volume_id) == [ONE]
    assert cloud.calls.count("set_published_node") == 1


def test_a_volume_in_another_node_s_podvm_is_kept_from_the_second(client: Client, cloud: MemoryCloud) -> None:
    """The message names the machine, which may be an orphan that nobody else would find."""
    volume_id = client.create().volume_id
    attach(client, volume_id, ONE)
    cloud.machines = dict.fromkeys(cloud.volumes, "podvm-7")
    with refused(Code.FAILED_PRECONDITION) as refusal:
        attach(client, volume_id, TWO)
    assert "podvm-7" in refusal.message
    assert published(client, volume_id) == [ONE]
    attach(client, volume_id, ONE)


def test_a_free_volume_moves(client: Client) -> None:
    """Its node may have died with its note left behind."""
    volume_id = client.create().volume_id
    attach(client, volume_id, ONE)
    attach(client, volume_id, TWO)
    assert published(client, volume_id) == [TWO]


def test_a_volume_attached_before_there_was_a_fence_is_published(client: Client, cloud: MemoryCloud) -> None:
    """Switching over from a driver without notes must not stop running pods."""
    volume_id = client.create().volume_id
    cloud.machines = dict.fromkeys(cloud.volumes, "podvm-7")
    attach(client, volume_id, ONE)
    assert published(client, volume_id) == [ONE]


def test_an_unpublish_waits_for_the_machine_to_let_go(client: Client, cloud: MemoryCloud) -> None:
    volume_id = client.create().volume_id
    attach(client, volume_id, ONE)
    cloud.machines = dict.fromkeys(cloud.volumes, "podvm-7")
    letting_go = threading.Timer(0.2, cloud.machines.clear)
    letting_go.start()
    detach(client, volume_id, ONE)
    letting_go.join()
    assert published(client, volume_id) == []


def test_an_unpublish_of_a_disk_that_stays_attached_fails_in_time(
    client: Client, cloud: MemoryCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two looks before the end, so that the answer comes before the caller gives up."""
    monkeypatch.setattr(controller_publish, "POLL_SECONDS", 20.0)
    volume_id = client.create().volume_id
    attach(client, volume_id, ONE)
    cloud.machines = dict.fromkeys(cloud.volumes, "podvm-7")
    with refused(Code.FAILED_PRECONDITION) as refusal:
        detach(client, volume_id, ONE, timeout=30)
    assert "podvm-7" in refusal.message
    assert published(client, volume_id) == [ONE]


def test_an_unpublish_of_nothing_succeeds(client: Client, cloud: MemoryCloud) -> None:
    volume_id = client.create().volume_id
    attach(client, volume_id, ONE)
    for unknown in ("memory:gone", "no-such", "../x"):
        detach(client, unknown, ONE)
    for node in (TWO, "no-node-of-ours"):
        detach(client, volume_id, node)
        assert published(client, volume_id) == [ONE]
    detach(client, volume_id, "")
    detach(client, volume_id, ONE)
    assert published(client, volume_id) == []
    assert cloud.calls.count("set_published_node") == 2


def test_what_can_t_be_published_is_refused(client: Client, cloud: MemoryCloud) -> None:
    volume_id = client.create().volume_id
    for node in ("worker-1", "fake-node-id-1", "node/", "node/UPPER", "node/a b", "node/" + "x" * 188):
        assert not is_node_id(node)
        with refused(Code.NOT_FOUND):
            attach(client, volume_id, node)
    with refused(Code.NOT_FOUND):
        attach(client, "no-such", ONE)
    for request in (
        csi_pb2.ControllerPublishVolumeRequest(volume_id=volume_id, node_id=ONE),
        csi_pb2.ControllerPublishVolumeRequest(volume_id=volume_id, volume_capability=mount()),
        csi_pb2.ControllerPublishVolumeRequest(node_id=ONE, volume_capability=mount()),
    ):
        with refused(Code.INVALID_ARGUMENT):
            client.controller.ControllerPublishVolume(request, timeout=60)
    assert "set_published_node" not in cloud.calls


def test_a_note_that_changed_meanwhile_is_not_overwritten(client: Client, cloud: MemoryCloud) -> None:
    volume_id = client.create().volume_id
    cloud.before["set_published_node"].append(raising(OutcomeUnknownError("changed by another")))
    with refused(Code.ABORTED):
        attach(client, volume_id, ONE)


def test_the_node_prefers_what_the_publish_found(node: Worker) -> None:
    """Older and static PersistentVolumes may name no disk, or an old one."""
    target = node.target()
    request = csi_pb2.NodePublishVolumeRequest(
        volume_id="pvc-1",
        target_path=target,
        volume_capability=mount(),
        volume_context={"cloud-volume-path": "vol-00000000"},
        publish_context={
            "cloud-volume-path": "vol-11111111",
            "cloud-provider": "aws",
            "awsSecretKey": "never copied",
        },
    )
    node.start().NodePublishVolume(request, NO_CONTEXT)
    written = (node.record(target) / "mountInfo.json").read_text()
    record = json.loads(written)
    assert (record["device"], record["metadata"]["cloud-provider"]) == ("vol-11111111", "aws")
    assert "never copied" not in written
