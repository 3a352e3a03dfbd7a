"""GetVolumeStats and ResizeVolume, asked by a Go client."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.annotation import CloudVolume
from agent.errors import Refused, Unavailable
from agent.holds import Hold, Holds
from agent.proxy_calls import Workers
from agent.proxy_volumes import VolumeCalls
from agent.ttrpc import Code
from proto import agent_pb2
from tests.peers.kata import SERVICE, GoAgent, go_agent, integer, text
from tests.peers.ttrpc_go import GoCall, GoResult, go_calls
from tests.unit.agent.proxy_support import unix_proxy

DISK = "/var/lib/images/pvc-ÿ?>.raw"
VOLUME = CloudVolume(3, "/data", "ext4", None, DISK, None, "luks2", "a/b/c")


class RecordedGrowth:
    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.failure: Exception | None = None

    def grow(self, volume: CloudVolume, wanted: int) -> None:
        self.asked.append((volume.name, wanted))
        if self.failure is not None:
            raise self.failure


class Setup:
    def __init__(self, path: Path, holds: Holds, growth: RecordedGrowth, agent: GoAgent) -> None:
        self.path = path
        self.holds = holds
        self.growth = growth
        self.agent = agent

    def call(self, method: str, payload: bytes) -> GoResult:
        (result,) = go_calls(self.path, [GoCall(SERVICE, method, payload)])
        return result


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    holds = Holds(tmp_path / "state")
    holds.add(Hold("c1", (VOLUME,)))
    growth = RecordedGrowth()
    calls = VolumeCalls(holds, growth, Workers())
    with go_agent(tmp_path / "u") as agent, unix_proxy(tmp_path, calls.takeovers()) as path:
        yield Setup(path, holds, growth, agent)


def by_disk(disk_id: str) -> str:
    return f"/run/cloud-volumes/by-disk/{base64.urlsafe_b64encode(disk_id.encode()).decode()}"


@pytest.mark.parametrize(
    "path",
    [by_disk(DISK), by_disk(DISK).rstrip("="), "/run/cloud-volumes/vol-3", "/run/cloud-volumes/vol-3/"],
)
def test_a_volume_is_found_by_its_disk_and_by_its_directory(setup: Setup, path: str) -> None:
    size = 7 << 30
    assert setup.call("ResizeVolume", text(1, path) + integer(2, size)).code == 0
    assert setup.growth.asked == [("vol-3", size)]
    assert setup.agent.calls("ResizeVolume") == []
    stats = agent_pb2.VolumeStatsResponse.FromString(setup.call("GetVolumeStats", text(1, path)).payload)
    assert stats.volume_condition.abnormal, "nothing is mounted there: the guest's own disk must not answer"
    assert not stats.usage


def test_stats_are_those_of_the_filesystem(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.proxy_volumes.mounted_at", lambda _: object())
    monkeypatch.setattr(CloudVolume, "mount_directory", property(lambda _: str(tmp_path)))
    result = setup.call("GetVolumeStats", text(1, by_disk(DISK)))
    stats = agent_pb2.VolumeStatsResponse.FromString(result.payload)
    found = os.statvfs(tmp_path)
    size, inodes = stats.usage
    assert (size.unit, size.total) == (agent_pb2.VolumeUsage.BYTES, found.f_blocks * found.f_frsize)
    assert 0 < size.available <= size.total - size.used
    assert (inodes.unit, inodes.total) == (agent_pb2.VolumeUsage.INODES, found.f_files)
    assert not stats.volume_condition.abnormal


def test_where_a_policy_keeps_usage_from_the_host_there_is_only_the_condition(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as one container of the volume was created under such a policy."""
    monkeypatch.setattr(CloudVolume, "mount_directory", property(lambda _: str(tmp_path)))

    def stats() -> agent_pb2.VolumeStatsResponse:
        result = setup.call("GetVolumeStats", text(1, by_disk(DISK)))
        return agent_pb2.VolumeStatsResponse.FromString(result.payload)

    quiet = Hold("c2", (VOLUME,), usage_figures=False)
    setup.holds.add(quiet)
    assert stats().volume_condition.abnormal, "what is wrong is told"
    monkeypatch.setattr("agent.proxy_volumes.mounted_at", lambda _: object())
    told = stats()
    assert not told.usage
    assert (told.volume_condition.abnormal, told.volume_condition.message) == (False, "mounted")
    setup.holds.drop(quiet)
    assert len(stats().usage) == 2


@pytest.mark.parametrize(
    "path",
    [
        "/run//cloud-volumes/vol-3",
        "/run/./cloud-volumes/vol-3",
        "/var/run/cloud-volumes",
        "/proc/42/root/data",
    ],
)
def test_where_a_policy_keeps_usage_from_the_host_no_other_path_tells_it(setup: Setup, path: str) -> None:
    """kata-agent would answer with the usage of whatever it finds there."""
    setup.holds.add(Hold("c2", (VOLUME,), usage_figures=False))
    result = setup.call("GetVolumeStats", text(1, path))
    if result.code == 0:
        assert not agent_pb2.VolumeStatsResponse.FromString(result.payload).usage
    else:
        assert result.code == Code.FAILED_PRECONDITION
        assert "[usage-withheld]" in result.message
    assert setup.agent.calls("GetVolumeStats") == []


def test_other_paths_go_on_and_unknown_volumes_are_not_found(setup: Setup) -> None:
    for method in ("GetVolumeStats", "ResizeVolume"):
        payload = text(1, "/run/kata-containers/sandbox/x") + text(50, b"\xff")
        assert setup.call(method, payload).payload == payload
        assert setup.agent.calls(method)[0]["payload"] == payload
        for path in (by_disk("other"), "/run/cloud-volumes/vol-4", "/run/cloud-volumes"):
            assert setup.call(method, text(1, path)).code == Code.NOT_FOUND
        assert setup.call(method, b"\x0a\xff").code == Code.INVALID_ARGUMENT
        assert len(setup.agent.calls(method)) == 1


@pytest.mark.parametrize(
    ("failure", "code"),
    [(Unavailable("disk-not-grown", "x"), Code.UNAVAILABLE), (Refused("mapping-differs", "x"), 9)],
)
def test_growth_that_failed_is_never_a_success(setup: Setup, failure: Exception, code: int) -> None:
    setup.growth.failure = failure
    result = setup.call("ResizeVolume", text(1, by_disk(DISK)))
    assert (result.code, str(failure) in result.message) == (code, True)
