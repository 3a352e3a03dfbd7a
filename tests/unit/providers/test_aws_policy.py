"""The role that ``deploy/aws`` grants is what the provider needs: all of it, and no more."""

from __future__ import annotations

import json
import time

import pytest

from providers.aws import AwsProvider
from providers.deadline import Deadline
from providers.errors import UnavailableError
from providers.interface import ContentSource, SourceKind, VolumeRequest
from tests.contract.aws_backend import IAM_POLICY, SETTINGS
from tests.fakes.ec2 import Cloud, Ec2Server
from tests.fakes.ec2.policy import Policy
from tests.fakes.ec2.server import clients_of

GIB = 1 << 30


def test_every_permission_is_used_and_none_is_missing() -> None:
    """One permission too few also fails the contract suite, whose EC2 has this policy in force."""
    policy = Policy(json.loads(IAM_POLICY.read_text()))
    cloud = Cloud()
    cloud.policy = policy
    deadline = Deadline.after(60)
    with Ec2Server(cloud) as server:
        provider = AwsProvider(SETTINGS, clients_of(server.url))
        volume = provider.create_volume(VolumeRequest("pvc-1", GIB, None, "ext4"), deadline)
        provider.set_published_node(volume.handle, "node/a", "", deadline)
        provider.set_published_node(volume.handle, "", "node/a", deadline)
        provider.expand_volume(volume.handle, 2 * GIB, deadline)
        provider.volume_conditions([volume], deadline)
        snapshot = provider.create_snapshot("snap-1", volume.handle, deadline)
        for name, kind, handle in (
            ("restored", SourceKind.SNAPSHOT, snapshot.handle),
            ("clone", SourceKind.VOLUME, volume.handle),
        ):
            request = VolumeRequest(name, 2 * GIB, None, "ext4", source=ContentSource(kind, handle))
            provider.create_volume(request, deadline)
        provider.delete_snapshot(snapshot.handle, deadline)
        provider.delete_volume(volume.handle, deadline)
    assert policy.granted() == policy.used


def test_nothing_but_the_driver_s_own_can_be_deleted() -> None:
    cloud = Cloud()
    with Ec2Server(cloud) as server:
        owner = clients_of(server.url)("us-east-1")
        foreign = owner.create_volume(Size=1, AvailabilityZone="us-east-1a")["VolumeId"]
        time.sleep(0.1)
        cloud.policy = Policy(json.loads(IAM_POLICY.read_text()))
        provider = AwsProvider(SETTINGS, clients_of(server.url))
        with pytest.raises(UnavailableError, match=r"iam-policy\.json"):
            provider.delete_volume(f"us-east-1/{foreign}", Deadline.after(10))
    assert len(cloud.existing_volumes()) == 1


def test_a_policy_holds_no_wildcard_action() -> None:
    assert "*" not in json.dumps([one["Action"] for one in json.loads(IAM_POLICY.read_text())["Statement"]])
