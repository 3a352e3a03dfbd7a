"""The driver on Azure: a switch from the older Go driver, and what the sidecars are told under throttling."""

from __future__ import annotations

import time

import grpc
import pytest

from driver.disk_id import cloud_provider, disk_id
from proto import csi_pb2
from tests.fakes.arm.cloud import ArmCloud
from tests.fakes.arm.messages import Fault, poll, throttled
from tests.fakes.arm.rig import GIB, Rig
from tests.unit.driver.rig import ENCRYPTED, controller, mount

NODE = "node/worker-1"


def test_volumes_of_the_go_driver_go_on_under_their_bare_names() -> None:
    """Its tag, its disk name, its volume handle, and attributes that lack cloud-volume-path."""
    rig = Rig()
    rig.add_disk("csi-vol-pvc-0d9c", {"caa-csi-volume-id": "pvc-0d9c"})
    go_attributes = {
        "cloudProvider": "azure",
        "azure-disk-name": "csi-vol-pvc-0d9c",
        "azure-resource-id": f"/subscriptions/{rig.cloud.subscription}/resourceGroups/disks"
        "/providers/Microsoft.Compute/disks/csi-vol-pvc-0d9c",
    }
    with controller(rig.provider(), ("azure",)) as client:
        publish = csi_pb2.ControllerPublishVolumeRequest(
            volume_id="pvc-0d9c", node_id=NODE, volume_capability=mount(), volume_context=go_attributes
        )
        context = client.controller.ControllerPublishVolume(publish, timeout=10).publish_context
        assert context["cloud-volume-path"] == go_attributes["azure-resource-id"]
        rig.cloud.attach("csi-vol-pvc-0d9c", "podvm-1")
        other = csi_pb2.ControllerPublishVolumeRequest(
            volume_id="pvc-0d9c", node_id="node/worker-2", volume_capability=mount()
        )
        with pytest.raises(grpc.RpcError, match="podvm-1") as refused:
            client.controller.ControllerPublishVolume(other, timeout=10)
        assert isinstance(refused.value, grpc.Call)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        rig.cloud.attach("csi-vol-pvc-0d9c", "")
        unpublish = csi_pb2.ControllerUnpublishVolumeRequest(volume_id="pvc-0d9c", node_id=NODE)
        client.controller.ControllerUnpublishVolume(unpublish, timeout=10)
        assert client.expand("pvc-0d9c", 6 * GIB).capacity_bytes == 6 * GIB
        snapshot = client.snapshot("snapshot-1", "pvc-0d9c")
        assert snapshot.source_volume_id.startswith("azure:csi-vol-pvc-0d9c@")
        client.delete("pvc-0d9c")
        client.delete_snapshot(snapshot.snapshot_id)
    assert rig.cloud.objects() == []
    # The node finds the disk from what the Go driver wrote, without asking anybody.
    disk = disk_id("pvc-0d9c", go_attributes)
    assert disk == go_attributes["azure-resource-id"]
    assert cloud_provider("pvc-0d9c", go_attributes, disk) == "azure"


def test_a_claim_deleted_while_azure_throttles_leaks_no_disk() -> None:
    """Field case B1: ABORTED well inside the call's time, found by the replay, then deleted."""
    rig = Rig(ArmCloud(operation_looks=1))
    rig.cloud.faults.append(Fault(poll, before=throttled(303)))
    with controller(rig.provider(), ("azure",)) as client:
        begun = time.monotonic()
        with pytest.raises(grpc.RpcError) as throttling:
            client.create(parameters=ENCRYPTED)
        assert isinstance(throttling.value, grpc.Call)
        assert throttling.value.code() is grpc.StatusCode.ABORTED
        assert time.monotonic() - begun < 60
        volume = client.create(parameters=ENCRYPTED)
        assert len(volume.volume_id.encode()) <= 128
        assert volume.volume_context["cloud-volume-path"] == volume.volume_context["azure-resource-id"]
        client.delete(volume.volume_id)
    assert rig.cloud.objects() == []
