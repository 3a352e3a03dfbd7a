"""What the chart does on AWS beyond a volume's life, with the strict EC2."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.cluster.api import Api, Object, until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.deployments import ENCRYPTED, ZONES, Deployment
from tests.cluster.volumes import attachment, claim, delete_everything, pod, volume_of
from tests.fakes.ec2.objects import Volume

pytestmark = pytest.mark.parametrize("deployment", ["aws"], indirect=True)

_MANY = 500
_PODVM = "i-0123456789abcdef0"


@pytest.mark.parametrize("worker", sorted(ZONES))
def test_a_disk_is_made_in_the_zone_of_its_first_pod(deployment: Deployment, api: Api, worker: str) -> None:
    """Field case G1."""
    other = next(name for name in ZONES if name != worker)
    api.create(claim("data", ENCRYPTED))
    api.create(pod("user", "data", worker))
    name = volume_of(api, "data")["metadata"]["name"]
    assert _disk(deployment, name).zone == ZONES[worker]

    api.create(pod("elsewhere", "data", other))
    until(
        lambda: any("node affinity" in event for event in api.events("elsewhere")),
        what="the scheduler says that the volume is in another zone",
    )


def test_a_claim_gets_another_attributes_class(deployment: Deployment, api: Api) -> None:
    api.create(claim("data", ENCRYPTED, "16Gi"))  # a smaller gp3 volume can't have so many iops
    api.create(pod("user", "data"))
    name = volume_of(api, "data")["metadata"]["name"]
    before = _disk(deployment, name).now
    assert (before.iops, before.throughput) != (6000, 250)

    api.patch(
        "PersistentVolumeClaim", "data", {"spec": {"volumeAttributesClassName": "confidential-csi-fast"}}
    )
    until(
        lambda: api.get("PersistentVolumeClaim", "data")["status"].get("currentVolumeAttributesClassName"),
        what="the claim has its class",
    )
    after = _disk(deployment, name).now
    assert (after.iops, after.throughput) == (6000, 250)


def test_a_volume_moves_to_another_node_when_its_machine_is_gone(
    deployment: Deployment, api: Api, immediate: str
) -> None:
    """The fence, seen from VolumeAttachments."""
    api.create(claim("data", immediate))
    volume = volume_of(api, "data")
    name = volume["metadata"]["name"]
    node = next(worker for worker, zone in ZONES.items() if zone == _disk(deployment, name).zone)
    other = next(worker for worker in ZONES if worker != node)
    api.create(pod("user", "data", node))
    (first,) = until(lambda: _attachments(api, name), what="a VolumeAttachment")
    until(lambda: _status(api, first)["attached"], what="the volume is attached")
    disk = _disk(deployment, name)
    assert _status(api, first)["attachmentMetadata"]["cloud-volume-path"] == disk.volume_id
    deployment.cloud.attach(disk.volume_id, _PODVM)  # as cloud-api-adaptor does

    api.create(attachment("second", name, other))
    # Before that it can be told that another call is at work.
    until(lambda: _is_refused_for(_PODVM, api, "second"), what="the second node is refused")

    api.delete("Pod", "user")
    until(lambda: "deletionTimestamp" in api.get("VolumeAttachment", first)["metadata"])
    assert not _status(api, "second")["attached"]
    deployment.cloud.attach(disk.volume_id, "")  # the PodVM is gone
    until(lambda: not api.find("VolumeAttachment", first), what="the first node is done with it")
    until(lambda: _status(api, "second")["attached"], what="the second node has it")

    api.delete("VolumeAttachment", "second")
    until(lambda: not api.list("VolumeAttachment"), what="nobody has it")


def test_a_leader_that_dies_in_the_middle_loses_and_doubles_nothing(
    deployment: Deployment, api: Api, immediate: str
) -> None:
    leader = deployment.leader()
    before, rules = deployment.cloud.calls["CreateVolume"], deployment.cloud.rules
    deployment.cloud.rules = replace(rules, creating=600.0)  # none is made until the leader is gone
    for number in range(50):
        api.create(claim(f"data-{number}", immediate))
    until(lambda: deployment.cloud.calls["CreateVolume"] >= before + 10, what="ten creations began")
    deployment.crash(leader)
    deployment.cloud.rules = rules

    _wait_until_bound(api, 50)
    assert deployment.leader() != leader
    assert deployment.disks.names() == _volumes(api)
    until(lambda: len(deployment.controllers()) == 2, what="a pod in the place of the lost one")


def test_the_control_plane_may_be_away_for_a_while(
    deployment: Deployment, control_plane: ControlPlane, api: Api, immediate: str
) -> None:
    before = deployment.cloud.calls["CreateVolume"]
    for number in range(20):
        api.create(claim(f"data-{number}", immediate))
    until(lambda: deployment.cloud.calls["CreateVolume"] > before, what="a creation began")
    control_plane.stop()
    control_plane.start()
    for number in range(20, 30):
        api.create(claim(f"data-{number}", immediate))
    _wait_until_bound(api, 30)
    for worker in deployment.workers.values():
        worker.forgive()
    assert deployment.disks.names() == _volumes(api)


def test_five_hundred_claims_at_once(deployment: Deployment, api: Api, immediate: str) -> None:
    calls, began = dict(deployment.cloud.calls), time.monotonic()
    for number in range(_MANY):
        api.create(claim(f"data-{number}", immediate))
    _wait_until_bound(api, _MANY)
    seconds = time.monotonic() - began
    assert deployment.disks.names() == _volumes(api)

    made = {name: count - calls.get(name, 0) for name, count in deployment.cloud.calls.items()}
    print({name: round(count / _MANY, 3) for name, count in made.items()})
    assert made["CreateVolume"] / _MANY <= 1.05
    # All who wait are asked for together, so a slow machine asks more often, but never for each volume.
    assert made["DescribeVolumes"] <= max(0.1 * _MANY, seconds / 2)

    calls, began = dict(deployment.cloud.calls), time.monotonic()
    delete_everything(api)
    seconds = time.monotonic() - began
    assert deployment.disks.names() == set()

    # The provisioner asks for most deletions twice: it looks at the volume as it was before the first.
    made = {name: count - calls.get(name, 0) for name, count in deployment.cloud.calls.items()}
    print({name: round(count / _MANY, 3) for name, count in made.items()})
    assert made["DeleteVolume"] / _MANY <= 1.05
    assert made["DescribeVolumes"] <= max(0.1 * _MANY, seconds / 2)


def _disk(deployment: Deployment, name: str) -> Volume:
    (disk,) = (
        volume
        for volume in deployment.cloud.existing_volumes()
        if volume.now.tags["caa-csi-volume-id"] == name
    )
    return disk


def _volumes(api: Api) -> set[str]:
    return {volume["metadata"]["name"] for volume in api.list("PersistentVolume")}


def _wait_until_bound(api: Api, count: int) -> None:
    def bound() -> int:
        claims = api.list("PersistentVolumeClaim", "default")
        return sum(one["status"].get("phase") == "Bound" for one in claims)

    until(lambda: bound() == count, seconds=600, what=f"{count} claims are bound")


def _attachments(api: Api, volume: str) -> list[str]:
    found = api.list("VolumeAttachment")
    return [
        one["metadata"]["name"] for one in found if one["spec"]["source"]["persistentVolumeName"] == volume
    ]


def _is_refused_for(machine: str, api: Api, attachment_name: str) -> bool:
    message = _status(api, attachment_name).get("attachError", {}).get("message", "")
    return "FailedPrecondition" in message and machine in message


def _status(api: Api, name: str) -> Object:
    status: Object = api.get("VolumeAttachment", name).get("status", {"attached": False})
    return status
