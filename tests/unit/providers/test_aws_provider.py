"""The AWS provider on the strict EC2 over HTTP: what no other provider has, and what can go wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest

from providers.aws import AwsProvider, calls, pacing
from providers.aws.settings import Settings
from providers.aws.volumes import client_token
from providers.deadline import Deadline
from providers.errors import (
    AlreadyExistsError,
    InUseError,
    InvalidParameterError,
    OutcomeUnknownError,
    ProviderError,
    QuotaExceededError,
    SizeOutOfRangeError,
    UnavailableError,
)
from providers.interface import ContentSource, Encryption, SourceKind, Volume, VolumeRequest
from tests.contract.aws_backend import SETTINGS, TIMINGS
from tests.fakes.ec2 import Cloud, Ec2Server, Fault, Rules
from tests.fakes.ec2.objects import Volume as Ec2Volume
from tests.fakes.ec2.server import clients_of

GIB = 1 << 30
LUKS = Encryption("luks2", "default/key/1")


@dataclass
class Rig:
    """A cloud, its address, and a provider of it."""

    cloud: Cloud
    url: str
    provider: AwsProvider

    def another(self, settings: Settings = SETTINGS) -> AwsProvider:
        """A provider that knows nothing of the first."""
        return AwsProvider(settings, clients_of(self.url), ("us-east-1", "eu-west-1"))

    def create(self, name: str = "pvc-1", gib: int = 1, **more: object) -> Volume:
        """A volume."""
        return self.provider.create_volume(wanted(name, gib, **more), soon())

    def disk(self) -> Ec2Volume:
        """The only one."""
        (volume,) = self.cloud.existing_volumes()
        return volume


def soon(seconds: float = 60) -> Deadline:
    """More time than any call of these tests needs."""
    return Deadline.after(seconds)


def wanted(name: str = "pvc-1", gib: int = 1, **more: Any) -> VolumeRequest:
    """A request."""
    return replace(VolumeRequest(name, gib * GIB, LUKS, "ext4"), **more)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """An EC2 of the test's own."""
    cloud = Cloud()
    with Ec2Server(cloud) as server:
        yield Rig(cloud, server.url, AwsProvider(SETTINGS, clients_of(server.url)))


def test_a_volume_is_gp3_encrypted_and_tagged_for_people_and_machines(rig: Rig) -> None:
    settings = replace(SETTINGS, extra_tags={"team": "storage"})
    labels = {"pvc/name": "data", "pvc/namespace": "shop", "pv/name": "pvc-1"}
    volume = rig.another(settings).create_volume(wanted(labels=labels), soon())
    disk = rig.disk()
    assert (disk.now.volume_type, disk.encrypted, disk.zone) == ("gp3", True, "us-east-1a")
    assert dict(disk.now.tags) == {
        "Name": "csi-vol-pvc-1",
        "caa-csi-volume-id": "pvc-1",
        "caa-csi-cluster-id": "contract",
        "caa-csi-format": "1",
        "caa-csi-fs-type": "ext4",
        "caa-csi-created-bytes": str(GIB),
        "caa-csi-created-as": "gp3 key=default",
        "encrypt-type": "luks2",
        "kbs-key-id": "default/key/1",
        "kubernetes.io/created-for/pvc/name": "data",
        "kubernetes.io/created-for/pvc/namespace": "shop",
        "kubernetes.io/created-for/pv/name": "pvc-1",
        "team": "storage",
    }
    assert volume.disk_id == disk.volume_id
    assert volume.attributes == {"ebs-volume-id": disk.volume_id, "availability-zone": "us-east-1a"}
    assert volume.handle == f"us-east-1/{disk.volume_id}"


def test_figures_and_key_reach_ec2(rig: Rig) -> None:
    rig.create(
        "pvc-1",
        8,
        parameters={"awsIops": "4000", "awsThroughput": "250", "awsKmsKeyId": "alias/volumes"},
    )
    disk = rig.disk()
    assert (disk.now.iops, disk.now.throughput, disk.kms_key) == (4000, 250, "alias/volumes")
    rig.create("pvc-2", parameters={"awsEncrypted": "false", "awsVolumeType": "gp2"})
    (plain,) = (one for one in rig.cloud.existing_volumes() if one is not disk)
    assert not plain.encrypted


def test_a_token_is_a_function_of_the_name_and_burned_ones_are_passed_by(rig: Rig) -> None:
    """Field case A1."""
    tokens = [client_token("c", "pvc-1", number) for number in range(3)]
    assert len({*tokens, client_token("d", "pvc-1", 0), client_token("c", "pvc-2", 0)}) == 5
    assert all(len(token) == 64 for token in tokens)
    for gib in (1, 1, 2, 2):
        volume = rig.create(gib=gib)
        assert volume.size_bytes == gib * GIB
        rig.provider.delete_volume(volume.handle, soon())
    assert rig.cloud.calls["CreateVolume"] == 1 + 2 + 3 + 4


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.SERVER_ERROR])
def test_a_creation_that_is_not_answered_is_sent_again_and_makes_one_volume(rig: Rig, fault: Fault) -> None:
    """Field case A11."""
    rig.cloud.faults["CreateVolume"] = [fault] * 2
    rig.create()
    assert rig.cloud.calls["CreateVolume"] == 3
    rig.disk()


def test_a_creation_that_is_never_answered_may_have_been_done(rig: Rig) -> None:
    """Field case A11: any other error would let the provisioner forget the disk."""
    rig.cloud.faults["CreateVolume"] = [Fault.LOST_ANSWER] * 3
    with pytest.raises(OutcomeUnknownError):
        rig.create()
    rig.create()
    rig.disk()


def test_throttling_while_an_accepted_volume_is_waited_for_is_no_failure(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field case B1: an answer in time, and a replay that finds the disk."""
    rig.cloud.faults["DescribeVolumes"] = [Fault.THROTTLED] * 2
    rig.create("pvc-0")
    monkeypatch.setattr(calls, "_FIRST_PAUSE", 30.0)
    deadline = Deadline.after(20)
    hook = rig.cloud.perform

    def throttle_from_now_on(action: str, arguments: dict[str, object]) -> dict[str, object]:
        if action == "CreateVolume":
            rig.cloud.faults["DescribeVolumes"] = [Fault.THROTTLED] * 100
        return hook(action, arguments)

    with mock.patch.object(rig.cloud, "perform", throttle_from_now_on), pytest.raises(OutcomeUnknownError):
        rig.provider.create_volume(wanted(), deadline)
    assert deadline.remaining() > 0
    rig.cloud.faults.clear()
    rig.create()
    assert len(rig.cloud.existing_volumes()) == 2


def test_a_throttled_creation_that_finds_no_turn_says_so_in_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "_FIRST_INTERVAL", 30.0)
    rig.cloud.faults["CreateVolume"] = [Fault.THROTTLED] * 100
    deadline = Deadline.after(20)
    with pytest.raises(UnavailableError):
        rig.provider.create_volume(wanted(), deadline)
    assert deadline.remaining() > 0
    assert rig.cloud.calls["CreateVolume"] < 10
    assert not rig.cloud.existing_volumes()


@pytest.mark.parametrize("fault", [Fault.THROTTLED, Fault.DENIED, Fault.SERVER_ERROR, Fault.LOST_REQUEST])
def test_what_could_not_be_looked_up_is_not_gone(
    rig: Rig, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field case A6."""
    volume = rig.create()
    monkeypatch.setattr(calls, "_FIRST_PAUSE", 30.0)
    rig.cloud.faults["DescribeVolumes"] = [fault] * 100
    with pytest.raises(UnavailableError):
        rig.provider.delete_volume(volume.handle, Deadline.after(20))
    assert rig.cloud.calls["DeleteVolume"] == 0
    rig.disk()


def test_a_call_that_hangs_ends_by_the_deadline(rig: Rig) -> None:
    """Field case B3."""
    rig.cloud.faults["CreateVolume"] = [Fault.HANG]
    begun = time.monotonic()
    with pytest.raises(ProviderError):
        rig.provider.create_volume(wanted(), Deadline.after(0.4))
    assert time.monotonic() - begun < 20
    rig.create()
    rig.disk()


def test_quotas_and_full_zones_let_the_scheduler_try_elsewhere(rig: Rig) -> None:
    """Field cases A11, G1."""
    rig.cloud.full_zones = {"us-east-1a"}
    with pytest.raises(QuotaExceededError, match="InsufficientVolumeCapacity"):
        rig.create()
    assert rig.create(zones=("us-east-1a", "us-east-1b")).zones == ("us-east-1b",)
    rig.cloud.rules = replace(rig.cloud.rules, volumes=1)
    with pytest.raises(QuotaExceededError, match="VolumeLimitExceeded"):
        rig.create("pvc-2", zones=("us-east-1b",))


def test_the_zone_comes_from_topology_then_parameter_then_setting(rig: Rig) -> None:
    """Field case G1."""
    assert rig.create("one", zones=("us-east-1b", "us-east-1a")).zones == ("us-east-1b",)
    assert rig.create("two", parameters={"awsAvailabilityZone": "us-east-1c"}).zones == ("us-east-1c",)
    assert rig.create("three").zones == ("us-east-1a",)
    for more in (
        {"zones": ("us-east-1b",), "parameters": {"awsAvailabilityZone": "us-east-1a"}},
        {"zones": ("eu-west-1a",)},
    ):
        with pytest.raises(InvalidParameterError, match=r"awsAvailabilityZone|awsRegion"):
            rig.create("four", **more)
    with pytest.raises(InvalidParameterError, match="awsAvailabilityZone"):
        rig.another(replace(SETTINGS, zone="")).create_volume(wanted("five"), soon())
    assert len(rig.cloud.existing_volumes()) == 3


def test_a_volume_of_other_parameters_is_not_the_one_asked_for(rig: Rig) -> None:
    """Field case A4 (vi); a modification since does not matter."""
    volume = rig.create(gib=8)
    for parameters in (
        {"awsVolumeType": "io2", "awsIops": "4000"},
        {"awsIops": "4000"},
        {"awsEncrypted": "false"},
        {"awsAvailabilityZone": "us-east-1b"},
    ):
        with pytest.raises(AlreadyExistsError):
            rig.create(gib=8, parameters=parameters)
    rig.provider.modify_volume(volume.handle, {"awsIops": "4000"}, soon())
    assert rig.create(gib=8) == volume
    assert rig.cloud.calls["CreateVolume"] == 1


def test_size_type_and_iops_that_arrive_together_take_one_call(rig: Rig) -> None:
    volume = rig.create()
    provider = rig.another(replace(SETTINGS, timings=replace(TIMINGS, merge=1.5)))
    calls = (
        lambda: provider.expand_volume(volume.handle, 16 * GIB, soon()),
        lambda: provider.modify_volume(volume.handle, {"awsIops": "5000"}, soon()),
        lambda: provider.modify_volume(volume.handle, {"awsThroughput": "300"}, soon()),
    )
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = rig.disk().now
    assert (now.size, now.iops, now.throughput) == (16, 5000, 300)
    assert rig.cloud.calls["ModifyVolume"] == 1


def test_an_expansion_is_not_repeated_while_ec2_optimizes(rig: Rig) -> None:
    """Field case F1."""
    rig.cloud.rules = Rules(optimizing=60)
    volume = rig.create(gib=10)
    for size in (20, 20, 10):
        assert rig.provider.expand_volume(volume.handle, size * GIB, soon()) == 20 * GIB
    with pytest.raises(UnavailableError):
        rig.provider.expand_volume(volume.handle, 21 * GIB, soon())
    assert rig.cloud.calls["ModifyVolume"] == 1


def test_a_cool_down_is_worth_another_try(rig: Rig) -> None:
    """Field case F1."""
    rig.cloud.rules = Rules(cool_down=3600)
    volume = rig.create()
    rig.provider.expand_volume(volume.handle, 2 * GIB, soon())
    time.sleep(0.1)
    with pytest.raises(UnavailableError, match="VolumeModificationRateExceeded"):
        rig.provider.expand_volume(volume.handle, 3 * GIB, soon())


def test_a_modification_that_was_not_answered_is_found_again(rig: Rig) -> None:
    rig.cloud.faults["ModifyVolume"] = [Fault.LOST_ANSWER]
    volume = rig.create()
    with pytest.raises(OutcomeUnknownError):
        rig.provider.expand_volume(volume.handle, 2 * GIB, soon())
    assert rig.provider.expand_volume(volume.handle, 2 * GIB, soon()) == 2 * GIB
    assert rig.cloud.calls["ModifyVolume"] == 1


def test_a_modification_beyond_the_limits_is_not_sent(rig: Rig) -> None:
    volume = rig.create(gib=4)
    for parameters in ({"awsIops": "4000"}, {"awsVolumeType": "io2"}, {"awsVolumeType": "st1"}):
        with pytest.raises((InvalidParameterError, SizeOutOfRangeError)):
            rig.provider.modify_volume(volume.handle, parameters, soon())
    with pytest.raises(SizeOutOfRangeError):
        rig.provider.expand_volume(volume.handle, 65537 * GIB, soon())
    assert rig.cloud.calls["ModifyVolume"] == 0


def test_a_snapshot_that_was_not_answered_is_found_not_repeated(rig: Rig) -> None:
    """Field case E2: there is no client token."""
    volume = rig.create()
    rig.cloud.faults["CreateSnapshot"] = [Fault.LOST_ANSWER]
    snapshot = rig.provider.create_snapshot("snap-1", volume.handle, soon())
    rig.cloud.faults["CreateSnapshot"] = [Fault.LOST_REQUEST]
    with pytest.raises(OutcomeUnknownError):
        rig.provider.create_snapshot("snap-2", volume.handle, soon())
    assert rig.another().create_snapshot("snap-1", volume.handle, soon()) == snapshot
    assert len(rig.cloud.existing_snapshots()) == 1
    assert rig.cloud.calls["CreateSnapshot"] == 2


def test_a_clone_leaves_no_snapshot_behind(rig: Rig) -> None:
    source = rig.create()
    rig.disk().content[3] = 7
    copy = ContentSource(SourceKind.VOLUME, source.handle)
    rig.cloud.faults["CreateVolume"] = [Fault.DENIED]
    with pytest.raises(UnavailableError):
        rig.create("clone", source=copy)
    assert [one.tags["caa-csi-temp-snapshot"] for one in rig.cloud.existing_snapshots()] == ["clone"]
    assert not rig.provider.list_snapshots(None, 0, "", soon()).items
    clone = rig.create("clone", source=copy)
    assert rig.cloud.volumes[clone.disk_id].content == {3: 7}
    assert not rig.cloud.existing_snapshots()


def test_a_disk_in_an_instance_stays_and_the_error_names_the_instance(rig: Rig) -> None:
    """Field case A9."""
    volume = rig.create()
    rig.cloud.attach(volume.disk_id, "i-0123456789abcdef0")
    rig.cloud.settle()
    assert rig.provider.get_volume_info(volume.handle, soon()).attached_to == "i-0123456789abcdef0"
    with pytest.raises(InUseError, match="i-0123456789abcdef0"):
        rig.provider.delete_volume(volume.handle, soon())
    assert rig.cloud.calls["DeleteVolume"] == 0


def test_a_note_is_read_by_another_controller_and_removed_only_as_seen(rig: Rig) -> None:
    volume = rig.create()
    provider, other = rig.provider, rig.another()
    provider.set_published_node(volume.handle, "node/one", "", soon())
    assert other.get_volume_info(volume.handle, soon()).published_node_id == "node/one"
    with pytest.raises(OutcomeUnknownError):
        other.set_published_node(volume.handle, "node/two", "", soon())
    rig.cloud.faults["CreateTags"] = [Fault.LOST_ANSWER]
    other.set_published_node(volume.handle, "node/two", "node/one", soon())
    with pytest.raises(OutcomeUnknownError):
        provider.set_published_node(volume.handle, "", "node/one", soon())
    provider.set_published_node(volume.handle, "", "node/two", soon())
    assert provider.get_volume_info(volume.handle, soon()).published_node_id == ""


def test_ec2_s_status_checks_are_told_in_words(rig: Rig) -> None:
    good, bad, gone = (rig.create(name) for name in ("good", "bad", "gone"))
    rig.cloud.impaired = {bad.disk_id}
    rig.provider.delete_volume(gone.handle, soon())
    time.sleep(0.1)  # EC2 has forgotten it, and refuses a question that names it
    found = rig.provider.volume_conditions([good, bad, gone], soon())
    assert {handle: one.abnormal for handle, one in found.items()} == {
        good.handle: False,
        bad.handle: True,
    }
    assert "io-enabled: failed" in found[bad.handle].message


def test_a_key_that_ec2_can_t_use_is_reported_and_leaves_no_disk(rig: Rig) -> None:
    rig.cloud.bad_keys = {"alias/broken"}
    with pytest.raises(OutcomeUnknownError, match="awsKmsKeyId"):
        rig.create(parameters={"awsKmsKeyId": "alias/broken"})
    assert not rig.cloud.existing_volumes()


def test_two_clusters_in_one_account_do_not_meet(rig: Rig) -> None:
    mine = rig.create("data")
    theirs = rig.another(replace(SETTINGS, cluster_id="other"))
    volume = theirs.create_volume(wanted("data"), soon())
    assert volume.handle != mine.handle
    assert [one.handle for one in theirs.list_volumes(0, "", soon()).items] == [volume.handle]
    theirs.delete_volume(theirs.handle_for_name("data"), soon())
    assert rig.disk().volume_id == mine.disk_id


def test_a_volume_of_the_go_driver_is_expanded_snapshotted_and_deleted(rig: Rig) -> None:
    """Field case C10 and contracts, section 10: its id is the bare name, its tags are two."""
    owner = clients_of(rig.url)("us-east-1")
    made = {"Name": "csi-vol-pvc-old", "caa-csi-volume-id": "pvc-old"}
    owner.create_volume(
        Size=1,
        VolumeType="gp3",
        AvailabilityZone="us-east-1a",
        TagSpecifications=[
            {
                "ResourceType": "volume",
                "Tags": [{"Key": key, "Value": value} for key, value in made.items()],
            }
        ],
    )
    time.sleep(0.1)
    provider = rig.provider
    handle = provider.handle_for_name("pvc-old")
    volume = provider.get_volume_info(handle, soon())
    assert (volume.name, volume.size_bytes, volume.encryption) == ("pvc-old", GIB, None)
    assert provider.expand_volume(handle, 2 * GIB, soon()) == 2 * GIB
    provider.set_published_node(handle, "node/a", "", soon())
    snapshot = provider.create_snapshot("snap-1", handle, soon())
    assert snapshot.source_handle == volume.handle
    assert provider.list_snapshots(handle, 0, "", soon()).items == (snapshot,)
    (listed,) = provider.list_volumes(0, "", soon()).items
    assert (listed.handle, listed.older_id) == (volume.handle, "pvc-old")
    replayed = provider.create_volume(wanted("pvc-old", encryption=None), soon())
    assert replayed.handle == volume.handle
    provider.delete_volume(handle, soon())
    assert not rig.cloud.existing_volumes()


def test_an_imported_disk_is_found_by_its_id_and_really_deleted(rig: Rig) -> None:
    """Field case C10; it has no tags at all (field case B5)."""
    owner = clients_of(rig.url)("us-east-1")
    volume_id = owner.create_volume(Size=3, AvailabilityZone="us-east-1a")["VolumeId"]
    time.sleep(0.1)
    handle = rig.provider.handle_for_name(volume_id)
    volume = rig.provider.get_volume_info(handle, soon())
    assert (volume.disk_id, volume.size_bytes) == (volume_id, 3 * GIB)
    rig.provider.delete_volume(handle, soon())
    assert not rig.cloud.existing_volumes()


def test_a_deletion_asked_for_twice_is_sent_once(rig: Rig) -> None:
    """The external provisioner asks so; another controller sends it again, which is harmless."""
    volume = rig.create()
    for _ in range(3):
        rig.provider.delete_volume(volume.handle, soon())
    assert rig.cloud.calls["DeleteVolume"] == 1
    rig.another().delete_volume(volume.handle, soon())
    assert rig.cloud.calls["DeleteVolume"] == 2


def test_a_deletion_is_sent_again_if_it_failed_or_the_volume_is_seen(rig: Rig) -> None:
    volume = rig.create()
    rig.cloud.faults["DeleteVolume"].append(Fault.DENIED)
    with pytest.raises(ProviderError):
        rig.provider.delete_volume(volume.handle, soon())
    rig.provider.delete_volume(volume.handle, soon())
    assert not rig.cloud.existing_volumes()

    deleted = rig.cloud.volumes[volume.disk_id]
    deleted.change(replace(deleted.now, deleted_at=None), rig.cloud.clock())  # somebody brought it back
    rig.cloud.settle()
    rig.provider.delete_volume(volume.handle, soon())
    assert not rig.cloud.existing_volumes()


def test_a_controller_of_another_region_serves_an_id(rig: Rig) -> None:
    volume = rig.create()
    elsewhere = rig.another(replace(SETTINGS, region="eu-west-1", zone="eu-west-1a"))
    assert elsewhere.expand_volume(volume.handle, 2 * GIB, soon()) == 2 * GIB
    elsewhere.delete_volume(volume.handle, soon())
    assert not rig.cloud.existing_volumes()


def test_a_region_that_does_not_exist_is_never_asked(rig: Rig) -> None:
    """Field case C9: a handle is untrusted text, and its region becomes part of a host's name."""
    asked: list[str] = []
    provider = AwsProvider(SETTINGS, asked.append, ("eu-west-1",))
    for handle in ("xx-evil-1/vol-0123456789abcdef0", "xx-evil-1/csi-vol-pvc-1"):
        provider.delete_volume(handle, soon())
        assert not provider.volume_exists(handle, soon())
    provider.delete_snapshot("xx-evil-1/snap-0123456789abcdef0", soon())
    assert not asked
    assert not rig.cloud.calls


def test_one_corrupt_object_does_not_hide_the_others(rig: Rig) -> None:
    good, bad = rig.create("good"), rig.create("bad")
    disk = rig.cloud.volumes[bad.disk_id]
    disk.change(replace(disk.now, tags={**disk.now.tags, "caa-csi-source": "tape x"}), time.monotonic())
    rig.cloud.settle()
    assert rig.provider.list_volumes(0, "", soon()).items == (good,)
