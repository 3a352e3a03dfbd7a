"""What growth does before it touches anything; for the rest see ``tests/guest/test_online_growth.py``."""

from __future__ import annotations

import fcntl
from contextlib import nullcontext
from pathlib import Path

import pytest

from agent import volume_lock
from agent.annotation import CloudVolume
from agent.block_device import DirectDevice
from agent.cdh import DataHubClient
from agent.clock import SystemClock
from agent.commands import SystemRunner
from agent.device_mapper import Mapping
from agent.devices import DeviceFinder, Disk
from agent.disk_format import RecordKey, State
from agent.errors import Refused, Unavailable
from agent.growth import Growth
from agent.header_guard import update_record
from agent.initialization import initialize
from agent.shield import Shield
from agent.volumes import OpenDevice
from tests.unit.agent.fake_clock import FakeClock
from tests.unit.agent.power_cut import PowerCutDisk

VOLUME = CloudVolume(7, "/data", "ext4", None, "disk", None, "luks2", "a/b/c")
MIB = 2**20
KEY = bytes(range(32))


class ScsiDisk(DeviceFinder):
    """A disk that shows its new size only after it was asked to look again."""

    def __init__(self, sysfs: Path) -> None:
        super().__init__(SystemClock())
        self.rescan = sysfs / "block/sdz/device/rescan"

    def find(self, volume: CloudVolume) -> Disk:
        assert volume == VOLUME
        asked = self.rescan.exists() and self.rescan.read_text() == "1"
        return Disk(Path("/dev/sdz"), "8:400", (96 if asked else 64) * MIB)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(volume_lock, "STATE_ROOT", tmp_path / "state")
    return tmp_path / "state"


def growth(sysfs: Path, open_device: OpenDevice = DirectDevice) -> Growth:
    return Growth(
        hub=DataHubClient("/nonexistent/cdh.sock", 0.1),
        runner=SystemRunner(),
        clock=SystemClock(),
        finder=ScsiDisk(sysfs),
        open_device=open_device,
        sysfs=sysfs,
    )


def test_a_scsi_disk_is_asked_for_its_size(tmp_path: Path) -> None:
    """As on Azure. Other disks tell by themselves."""
    with pytest.raises(Unavailable, match=f"{64 * MIB} bytes in this VM"):
        growth(tmp_path).grow(VOLUME, 128 * MIB)
    rescan = tmp_path / "block/sdz/device/rescan"
    rescan.parent.mkdir(parents=True)
    rescan.write_text("")
    with pytest.raises(Unavailable, match=rf"\[disk-not-grown\].* {96 * MIB} bytes in this VM"):
        growth(tmp_path).grow(VOLUME, 128 * MIB)


def test_a_size_that_is_no_whole_block_is_reached_by_the_blocks_below_it(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"\[volume-not-mounted\]"):
        growth(tmp_path).grow(VOLUME, 64 * MIB + 4095)
    with pytest.raises(Unavailable, match=r"\[disk-not-grown\]"):
        growth(tmp_path).grow(VOLUME, 64 * MIB + 4096)


def test_the_lock_of_a_volume_is_waited_for_and_the_wait_ends(state: Path) -> None:
    clock = FakeClock()
    state.mkdir()
    with (state / "vol-7.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match=r"\[volume-locked\]"), volume_lock.volume_lock("vol-7", clock):
            pass
        with volume_lock.volume_lock("vol-8", clock):
            pass
    with volume_lock.volume_lock("vol-7", clock):
        pass


def test_an_older_record_of_the_same_header_is_not_written_anew(tmp_path: Path) -> None:
    """The host brings back the record from before the filesystem was made, while the volume is in use."""
    medium = PowerCutDisk(64 * MIB)
    unfinished = initialize(medium, KEY, SystemRunner())
    disk = Disk(Path("/dev/sdz"), "8:400", 64 * MIB)
    shield = Shield(
        Mapping("caa-vol-7-shield", "", "253:0", Path("/dev/dm-0")),
        unfinished.audited,
        disk.size,
        "8:400",
        "",
    )
    one = growth(tmp_path, open_device=lambda *_, **__: nullcontext(medium))
    before = bytes(medium.medium)
    with pytest.raises(Refused, match=r"\[header-not-authenticated\]"):
        one._header(disk, KEY, shield)
    assert medium.medium == before

    ready = update_record(medium, RecordKey(KEY), unfinished, state=State.READY)
    assert one._header(disk, KEY, shield) == ready
