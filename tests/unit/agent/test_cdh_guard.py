"""The guard on the data hub's socket, with Go clients in front."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.annotation import CloudVolume
from agent.cdh_guard import Guard
from agent.policy import DEFAULT_POLICY, Policy, VolumeRules
from agent.proxy_calls import Workers
from agent.ttrpc import Code
from agent.volumes import MountedVolume, VolumeStatus
from proto import cdh_pb2
from tests.peers.ttrpc_go import GoCall, GoResult, go_calls
from tests.peers.ttrpc_raw import RawFrame, read_frame, response, scripted_server
from tests.unit.agent.proxy_support import REFUSAL, CountingVolumes, unix_proxy

#: What cloud-api-adaptor's forwarder sends for a disk without LUKS magic (secureMount in interceptor.go).
OPTIONS = {
    "devicePath": "/dev/null",
    "sourceType": "empty",
    "targetType": "fileSystem",
    "encryptionType": "luks2",
    "filesystemType": "ext4",
    "key": "kbs:///default/key/a",
    "mapperName": "caa-vol-2",
}


class SeenVolumes(CountingVolumes):
    """Also keeps what it was asked to mount."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[CloudVolume] = []
        self.leftovers: list[str] = []

    def mount(self, volumes: Sequence[CloudVolume], policy: Policy) -> list[MountedVolume]:
        self.asked.extend(volumes)
        return super().mount(volumes, policy)

    def status(self) -> list[VolumeStatus]:
        return [VolumeStatus(name, False, name not in self.leftovers, True) for name in sorted(self.mounted)]


class Hub:
    """The guard, with a real hub behind it that answers everything with its own request."""

    def __init__(self, path: Path, volumes: SeenVolumes, frames: list[RawFrame], guard: Guard) -> None:
        self.path = path
        self.volumes = volumes
        self.frames = frames
        self.guard = guard

    def call(self, payload: bytes, service: str = "api.SecureMountService") -> GoResult:
        (result,) = go_calls(self.path, [GoCall(service, "SecureMount", payload)])
        return result

    def mount(
        self,
        options: Mapping[str, str] = OPTIONS,
        mount_point: str = "/run/cloud-volumes/vol-2",
        volume_type: str = "block-device",
    ) -> GoResult:
        request = cdh_pb2.SecureMountRequest(
            volume_type=volume_type, options=options, mount_point=mount_point
        )
        return self.call(request.SerializeToString())


@contextmanager
def running_hub(tmp_path: Path, policy: Policy) -> Iterator[Hub]:
    frames: list[RawFrame] = []

    def answer(connection: socket.socket) -> None:
        while True:
            frames.append(read_frame(connection))
            connection.sendall(response(frames[-1].stream_id, b""))

    volumes = SeenVolumes()
    guard = Guard(volumes, lambda: policy, Workers())
    with scripted_server(tmp_path / "u", answer), unix_proxy(tmp_path, guard.takeovers()) as path:
        yield Hub(path, volumes, frames, guard)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running_hub(tmp_path, DEFAULT_POLICY) as running:
        yield running


@pytest.mark.parametrize("source_type", ["empty", "encrypted", "nonsense", ""])
def test_a_disk_with_a_key_is_mounted_here_whatever_the_source_type(hub: Hub, source_type: str) -> None:
    """Field case I1: ``empty`` would format with a header in memory, and lose the data."""
    for _ in range(2):
        assert hub.mount(OPTIONS | {"sourceType": source_type}).code == 0, "the same again is fine"
    assert hub.frames == []
    for volume in hub.volumes.asked:
        assert (volume.name, volume.disk_id, volume.key_id) == ("vol-2", "/dev/null", "default/key/a")
        assert volume.mount_directory == "/run/cloud-volumes/vol-2"
        assert volume.mapper_name == "caa-vol-2"


def test_a_disk_may_be_named_by_its_number(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / "block/vdb").mkdir(parents=True)
    (tmp_path / "dev/block/253:16").symlink_to("../../block/vdb")
    hub.guard._sysfs = tmp_path
    assert hub.mount(OPTIONS | {"deviceId": "253:16", "devicePath": "/dev/zero"}).code == 0
    assert hub.volumes.asked[0].disk_id == "/dev/vdb"
    assert "[device-missing]" in hub.mount(OPTIONS | {"deviceId": "7:99"}).message
    assert "[guard-request]" in hub.mount(OPTIONS | {"deviceId": "../../x"}).message


def test_what_is_no_volume_of_ours_goes_to_the_real_hub(hub: Hub) -> None:
    """Kata's scratch disks have a throw-away key; other volume types are no disks."""
    scratch = {"deviceId": "253:32", "sourceType": "empty", "encryptionType": "luks2"}
    assert hub.mount(scratch, mount_point="/run/kata/scratch").code == 0
    assert hub.mount({}, volume_type="alibaba-cloud-oss", mount_point="/mnt").code == 0
    assert hub.call(b"", "api.GetResourceService").code == 0
    assert len(hub.frames) == 3
    assert hub.volumes.asked == []


@pytest.mark.parametrize(
    "changes",
    [
        {"mapperName": "caa-vol-3"},
        {"targetType": "device"},
        {"encryptionType": "zfs"},
        {"filesystemType": "xfs"},
        {"key": "file:///etc/key"},
        {"key": ""},
        {"devicePath": "/etc/passwd"},
        {"devicePath": "/dev/../etc/passwd"},
    ],
)
def test_what_the_forwarder_never_sends_is_refused(hub: Hub, changes: dict[str, str]) -> None:
    result = hub.mount(OPTIONS | changes)
    assert (result.code, "[guard-request]" in result.message) == (Code.FAILED_PRECONDITION, True)
    assert hub.frames == []
    assert hub.volumes.asked == []


@pytest.mark.parametrize(
    "mount_point", ["/mnt", "/run/cloud-volumes/vol-2/../../etc", "/run/cloud-volumes/vol-999", ""]
)
def test_a_disk_with_a_key_goes_to_a_cloud_volume_or_nowhere(hub: Hub, mount_point: str) -> None:
    assert "[guard-request]" in hub.mount(mount_point=mount_point).message
    assert hub.frames == []


def test_a_refusal_names_the_rule_and_a_call_that_can_not_be_read_goes_nowhere(hub: Hub) -> None:
    hub.volumes.refuse["vol-2"] = REFUSAL
    result = hub.mount()
    assert (result.code, "[header-not-authenticated]" in result.message) == (9, True)
    assert hub.call(b"\x12\xff").code == Code.INVALID_ARGUMENT
    assert hub.frames == []


def test_a_shield_whose_mapping_the_caller_closed_is_removed(hub: Hub) -> None:
    hub.mount()
    hub.guard.sweep()
    assert hub.volumes.mounted == {"vol-2"}
    hub.volumes.leftovers = ["vol-2"]
    hub.guard.sweep()
    assert hub.volumes.unmounts == ["vol-2"]
    hub.volumes.mounted = {"vol-2"}
    hub.volumes.busy = {"vol-2"}
    hub.guard.sweep()


def test_a_policy_is_matched_by_the_key(tmp_path: Path) -> None:
    policy = Policy(
        {
            "/data": VolumeRules(key_id="default/key/a"),
            "/one": VolumeRules(key_id="default/key/twice"),
            "/two": VolumeRules(key_id="default/key/twice"),
            "/any": VolumeRules(),
        }
    )
    with running_hub(tmp_path, policy) as hub:
        assert hub.mount().code == 0
        assert hub.volumes.asked[0].mount_point == "/data"
        for key, rule in (("twice", "policy-ambiguous"), ("none", "policy-key")):
            assert f"[{rule}]" in hub.mount(OPTIONS | {"key": f"kbs:///default/key/{key}"}).message


def test_the_policy_that_named_the_entry_is_the_one_that_is_enforced(tmp_path: Path) -> None:
    """A policy from the key broker may change between two questions."""
    left = iter([Policy({"/data": VolumeRules(key_id="default/key/a", minimum_size=n)}) for n in range(1, 9)])
    volumes = SeenVolumes()
    guard = Guard(volumes, lambda: next(left), Workers())
    with scripted_server(tmp_path / "u", lambda _: None), unix_proxy(tmp_path, guard.takeovers()) as path:
        hub = Hub(path, volumes, [], guard)
        assert [hub.mount().code for _ in range(2)] == [0, 0]
    sizes = [policy.volumes["/data"].minimum_size for policy in volumes.policies if policy.volumes]
    assert sizes == [1, 2]
