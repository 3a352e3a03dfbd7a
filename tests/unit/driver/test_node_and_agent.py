"""The node plugin and the real in-guest agent, each with its own ttrpc, over one socket.

The agent's proxy stands where the PodVM's is, with a stand-in for kata-agent in Go behind it. What the agent
finds at the mount is not under test here (``tests/guest`` does that); what reaches the caller is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.annotation import CloudVolume
from agent.errors import Refused
from agent.errors import Unavailable as NotAvailable
from agent.holds import Hold, Holds
from agent.proxy import Address
from agent.proxy_calls import Workers
from agent.proxy_volumes import VolumeCalls
from driver.errors import DriverError, FailedPrecondition, Unavailable
from proto import csi_pb2
from tests.peers.kata import GoAgent, go_agent
from tests.unit.agent.proxy_support import running_proxy
from tests.unit.driver.node_support import CONTEXT, Worker, expand, publish, stats

#: An Azure disk's id: the longest there is, and with characters that base64 must carry.
DISK = "/subscriptions/5/resourceGroups/Grp/providers/Microsoft.Compute/disks/pvc-\u00ff?>"
VOLUME = CloudVolume(3, "/data", "ext4", None, DISK, None, "luks2", "a/b/c")


class ScriptedGrowth:
    """Grows nothing, and says what it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.failure: Exception | None = None

    def grow(self, volume: CloudVolume, wanted: int) -> None:
        self.asked.append((volume.name, wanted))
        if self.failure is not None:
            raise self.failure


class Rig:
    """A published volume whose PodVM runs the agent's proxy."""

    def __init__(self, node: Worker, holds: Holds, growth: ScriptedGrowth, kata: GoAgent) -> None:
        self.plugin = node.start()
        self.target = node.target()
        self.holds = holds
        self.growth = growth
        self.kata = kata
        publish(self.plugin, self.target, context={**CONTEXT, "cloud-volume-path": DISK})
        (node.record(self.target) / "5a4d").touch()

    def stats(self) -> csi_pb2.NodeGetVolumeStatsResponse:
        return stats(self.plugin, self.target)

    def expand(self) -> int:
        return expand(self.plugin, self.target, required=7 << 30)


@pytest.fixture
def rig(node: Worker, tmp_path: Path) -> Iterator[Rig]:
    holds = Holds(tmp_path / "state")
    growth = ScriptedGrowth()
    socket = node.pods / "5a4d/agent.ttrpc"
    socket.parent.mkdir(parents=True)
    with (
        go_agent(tmp_path / "u") as kata,
        running_proxy(
            Address(path=str(socket)),
            Address(path=str(tmp_path / "u")),
            VolumeCalls(holds, growth, Workers()).takeovers(),
        ),
    ):
        yield Rig(node, holds, growth, kata)


def test_the_agent_s_figures_reach_the_caller(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.holds.add(Hold("c1", (VOLUME,)))
    assert rig.stats().volume_condition.abnormal, "nothing is mounted there"
    monkeypatch.setattr("agent.proxy_volumes.mounted_at", lambda _: object())
    monkeypatch.setattr(CloudVolume, "mount_directory", property(lambda _: str(tmp_path)))
    answer = rig.stats()
    found = os.statvfs(tmp_path)
    size, inodes = answer.usage
    assert (size.unit, size.total) == (csi_pb2.VolumeUsage.BYTES, found.f_blocks * found.f_frsize)
    assert (inodes.unit, inodes.total) == (csi_pb2.VolumeUsage.INODES, found.f_files)
    assert not answer.volume_condition.abnormal
    rig.holds.add(Hold("c2", (VOLUME,), usage_figures=False))
    quiet = rig.stats()
    assert not quiet.usage
    assert quiet.volume_condition.message == "mounted"
    assert not rig.kata.calls("GetVolumeStats")


def test_growth_is_the_agent_s_word(rig: Rig) -> None:
    """Field case F3."""
    rig.holds.add(Hold("c1", (VOLUME,)))
    assert rig.expand() == 7 << 30
    assert rig.growth.asked == [("vol-3", 7 << 30)]
    for failure, error in (
        (NotAvailable("disk-not-grown", "the cloud may need a moment"), Unavailable),
        (NotAvailable("key-not-released", "the broker refused"), Unavailable),
        (Refused("foreign-mount", "not the volume"), FailedPrecondition),
    ):
        rig.growth.failure = failure
        with pytest.raises(DriverError) as caught:
            rig.expand()
        assert type(caught.value) is error
        assert str(failure) in str(caught.value)


def test_a_volume_that_no_container_has_is_unavailable(rig: Rig) -> None:
    for call in (rig.stats, rig.expand):
        with pytest.raises(Unavailable, match=r"\[volume-not-mounted\]"):
            call()
    assert not rig.growth.asked


def test_what_an_agent_echoes_is_no_answer(node: Worker) -> None:
    """The stand-in for kata-agent alone: it returns what it got, with status OK."""
    plugin, target = node.start(), node.target()
    publish(plugin, target)
    (node.record(target) / "plain").touch()
    (node.pods / "plain").mkdir(parents=True)
    with go_agent(node.pods / "plain/agent.ttrpc") as kata:
        with pytest.raises(Unavailable, match="can't be read"):
            stats(plugin, target)
        with pytest.raises(Unavailable, match="not empty"):
            expand(plugin, target, required=7 << 30)
        assert kata.calls("ResizeVolume")
