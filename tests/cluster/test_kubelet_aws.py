"""The chart for AWS on a worker with the real kubelet, and the strict EC2 behind it.

Zone and credentials come from where they come from on AWS: the addresses of the instance metadata and of
EKS's Pod Identity, at which stand-ins answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.cluster.api import Object, until
from tests.cluster.deployments import EC2_RULES
from tests.cluster.installation import Installation
from tests.cluster.peer_pods import PeerPod, VolumeClaim
from tests.cluster.pod_identity import pod_identity
from tests.cluster.programs import Programs
from tests.cluster.worker_cluster import cluster_with_worker
from tests.fakes.ec2 import Cloud, Ec2Server
from tests.fakes.instance_metadata import AWS_ZONE, metadata

_METADATA = "169.254.169.254"
_POD_IDENTITY = "169.254.170.23"
_EC2 = "192.0.2.10"
_PODVM = "i-0123456789abcdef0"
_ZONE_LABEL = "topology.caa-csi-block.csi.confidentialcontainers.io/zone"


@pytest.fixture(scope="module")
def cloud() -> Cloud:
    """The EC2 of the cluster."""
    return Cloud(EC2_RULES)


@pytest.fixture(scope="module")
def cluster(kubernetes: Programs, cloud: Cloud) -> Iterator[Installation]:
    """A cluster with one worker in AWS, and the chart in it."""
    with Ec2Server(cloud) as ec2, pod_identity() as credentials, metadata() as machine:
        services = {
            f"{_EC2}:80": _port(ec2.url),
            f"{_POD_IDENTITY}:80": _port(credentials),
            f"{_METADATA}:80": _port(f"http://{machine}"),
        }
        with cluster_with_worker("aws", kubernetes, services) as (control_plane, worker):
            environment = {
                "AWS_ENDPOINT_URL_EC2": f"http://{_EC2}",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://{_POD_IDENTITY}/v1/credentials",
            }
            values: dict[str, object] = {
                "clusterId": "kubelet-tests",
                "aws": {"region": "us-east-1"},
                "controller": {"env": environment},
            }
            installation = Installation(control_plane, worker, values)
            installation.prepare()
            installation.install()
            yield installation


def test_a_disk_is_made_in_the_workers_zone_and_stays_with_it_until_its_podvm_is_gone(
    cluster: Installation, cloud: Cloud
) -> None:
    """The whole way of a volume on AWS, and the fence as kubelet sees it."""
    claim = VolumeClaim(cluster, "data", "1Gi")
    pod = PeerPod(cluster, "user", claim)
    pod.running()
    volume = claim.bound()
    (disk,) = cloud.existing_volumes()
    assert disk.zone == AWS_ZONE
    labels = cluster.api.get("Node", cluster.worker.name)["metadata"]["labels"]
    assert labels[_ZONE_LABEL] == AWS_ZONE
    (attachment,) = cluster.api.list("VolumeAttachment")
    assert attachment["status"]["attached"]
    record = json.loads((pod.record() / "mountInfo.json").read_text())
    assert record["device"] == record["metadata"]["cloud-volume-path"] == disk.volume_id

    cloud.attach(disk.volume_id, _PODVM)  # as cloud-api-adaptor does
    pod.delete()
    assert not pod.record().exists()
    until(lambda: "deletionTimestamp" in _metadata_of(cluster, attachment), what="the detach is asked for")
    looks = cloud.calls["DescribeVolumes"]
    until(lambda: cloud.calls["DescribeVolumes"] >= looks + 3, what="the driver looks again and again")
    assert _metadata_of(cluster, attachment)
    cloud.attach(disk.volume_id, "")
    until(lambda: not cluster.api.list("VolumeAttachment"), what="the detach")

    again = PeerPod(cluster, "again", claim)
    again.running()
    assert claim.bound()["metadata"]["name"] == volume["metadata"]["name"]
    again.delete()
    claim.delete()
    until(lambda: not cloud.existing_volumes(), what="the disk is gone")


def _metadata_of(cluster: Installation, attachment: Object) -> Object:
    metadata: Object = cluster.api.get("VolumeAttachment", attachment["metadata"]["name"])["metadata"]
    return metadata


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port
