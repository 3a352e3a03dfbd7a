"""EC2 behind the AWS provider: the strict one of ``tests/fakes``, and moto's server."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from providers.aws import AwsProvider, handles
from providers.aws.calls import Ec2
from providers.aws.failures import NotSent
from providers.aws.settings import Settings, Timings
from providers.deadline import Deadline
from tests.contract.backend import Backend
from tests.fakes.ec2 import Cloud, Ec2Server
from tests.fakes.ec2.policy import Policy
from tests.fakes.ec2.server import clients_of

REGION = "us-east-1"

IAM_POLICY = Path(__file__).parents[2] / "deploy" / "aws" / "iam-policy.json"
"""In force in every test, so that one permission too few fails."""

#: As short as the answers of the strict EC2 lag behind.
TIMINGS = Timings(consistency=0.1, first_poll=0.005, last_poll=0.02, gather=0.001, merge=0.01, snapshot=30)
SETTINGS = Settings(REGION, zone="us-east-1a", cluster_id="contract", timings=TIMINGS)


@functools.cache
def shared_server() -> Ec2Server:
    """One server for all backends of the run."""
    return Ec2Server().__enter__()


@functools.cache
def moto() -> str:
    """The address of a moto server, for the whole run."""
    descriptor, log = tempfile.mkstemp()  # not a pipe, which would fill up and stop it
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", "0"],
        env={**os.environ, "MOTO_EC2_LOAD_DEFAULT_AMIS": "false"},
        stdout=subprocess.DEVNULL,
        stderr=descriptor,
    )
    owner = os.getpid()
    atexit.register(lambda: process.kill() if os.getpid() == owner else None)
    while process.poll() is None:
        if match := re.search(r"Running on (http://127[^ \n]+)", Path(log).read_text()):
            Path(log).unlink()
            return match[1]
        time.sleep(0.05)
    raise AssertionError("moto's server did not start")


class AwsBackend(Backend):
    """An EC2 that is stricter than the real one."""

    provider_class = AwsProvider

    def __init__(self, directory: Path) -> None:
        del directory
        self.cloud = Cloud()
        self.cloud.policy = Policy(json.loads(IAM_POLICY.read_text()))
        self.url = shared_server().add(self.cloud)

    def connect(self) -> AwsProvider:
        return AwsProvider(SETTINGS, clients_of(self.url))

    def objects(self) -> list[str]:
        volumes = (f"volume {one.now.tags.get('Name')}" for one in self.cloud.existing_volumes())
        snapshots = (f"snapshot {one.tags.get('Name')}" for one in self.cloud.existing_snapshots())
        self.cloud.settle()
        return sorted((*volumes, *snapshots))

    @contextmanager
    def attached(self, handle: str) -> Iterator[None]:
        parsed = handles.volume(handle)
        assert parsed is not None
        self.cloud.attach(parsed.object_id, "i-0123456789abcdef0")
        self.cloud.settle()
        try:
            yield
        finally:
            self.cloud.attach(parsed.object_id, "")
            self.cloud.settle()

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        self.cloud.is_reachable = False
        try:
            yield
        finally:
            self.cloud.is_reachable = True

    @contextmanager
    def watched(self, before_step: Callable[[], None]) -> Iterator[None]:
        """A step is a call that changes something; its answer's arrival is the next one."""
        with watching_calls(lambda action: not action.startswith("describe"), before_step):
            yield


class MotoBackend(AwsBackend):
    """moto's EC2, which is kinder than the real one (field case B5)."""

    label = "moto"
    cannot: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            (
                "test_two_threads_creating_one_name_get_one_volume",
                "test_two_processes_creating_one_name_get_one_volume",
                "test_two_processes_cloning_to_one_name_get_one_volume",
            ),
            "it ignores client tokens, which alone keep apart what starts at one moment",
        ),
        **dict.fromkeys(
            (
                "test_a_new_volume_is_well_and_that_is_said_in_words",
                "test_external_health_monitor_gets_what_it_needs",
            ),
            "it has no DescribeVolumeStatus",
        ),
        "test_two_processes_taking_one_snapshot_get_one": "snapshots of one moment have no order in it",
        "test_expansions_at_one_time_end_at_the_largest": "it makes volumes smaller",
        "tests.contract.test_crashes": "nothing: they pass, but take a minute more than these tests have",
        **dict.fromkeys(
            (
                "test_foreign_handles_are_unknown",
                "test_foreign_snapshot_handles_are_unknown",
                "test_nothing_is_copied_from_what_does_not_exist",
                "test_there_is_no_snapshot_of_what_does_not_exist",
                "test_what_does_not_exist_is_not_expanded",
            ),
            "nothing: their questions never reach any EC2",
        ),
    }

    def __init__(self, directory: Path) -> None:
        del directory
        self.url = moto()
        self._client = clients_of(self.url)(REGION)
        for volume in self._client.describe_volumes()["Volumes"]:
            for attachment in volume["Attachments"]:
                self._client.detach_volume(VolumeId=volume["VolumeId"], InstanceId=attachment["InstanceId"])
            self._client.delete_volume(VolumeId=volume["VolumeId"])
        for snapshot in self._client.describe_snapshots(OwnerIds=["self"])["Snapshots"]:
            self._client.delete_snapshot(SnapshotId=snapshot["SnapshotId"])

    def objects(self) -> list[str]:
        volumes = self._client.describe_volumes()["Volumes"]
        snapshots = self._client.describe_snapshots(OwnerIds=["self"])["Snapshots"]
        # An instance's own disk has no name.
        found = [f"volume {_name(one)}" for one in volumes if _name(one)]
        return sorted(found + [f"snapshot {_name(one)}" for one in snapshots])

    @contextmanager
    def attached(self, handle: str) -> Iterator[None]:
        parsed = handles.volume(handle)
        assert parsed is not None
        image = "ami-12345678"
        (instance,) = self._client.run_instances(ImageId=image, MinCount=1, MaxCount=1)["Instances"]
        instance_id = instance["InstanceId"]
        self._client.attach_volume(VolumeId=parsed.object_id, InstanceId=instance_id, Device="/dev/sdf")
        try:
            yield
        finally:
            self._client.detach_volume(VolumeId=parsed.object_id, InstanceId=instance_id)
            self._client.terminate_instances(InstanceIds=[instance_id])

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        # moto can't be switched off for a while; a call that never gets there looks the same.
        with mock.patch.object(Ec2, "send", _never_sent):
            yield


def _never_sent(_: Ec2, action: str, deadline: Deadline, **__: Any) -> Any:
    deadline.check()
    raise NotSent(action)


def _name(one: dict[str, Any]) -> str:
    return next((tag["Value"] for tag in one.get("Tags", ()) if tag["Key"] == "Name"), "")


@contextmanager
def watching_calls(is_step: Callable[[str], bool], before_step: Callable[[], None]) -> Iterator[None]:
    """Within it, ``before_step`` runs before each call that ``is_step`` names, and before its answer."""
    send = Ec2.send

    def watched(ec2: Ec2, action: str, deadline: Deadline, **arguments: Any) -> Any:
        if not is_step(action):
            return send(ec2, action, deadline, **arguments)
        before_step()
        answer = send(ec2, action, deadline, **arguments)
        before_step()
        return answer

    with mock.patch.object(Ec2, "send", watched):
        yield
