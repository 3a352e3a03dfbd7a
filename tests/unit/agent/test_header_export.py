"""Exported headers: authenticated, complete, private; and the disk is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from agent import volume_lock
from agent.annotation import CloudVolume
from agent.block_device import BlockDevice
from agent.commands import SystemRunner
from agent.devices import DeviceFinder, Disk
from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES, REDO_OFFSET, RecordKey, State
from agent.errors import AgentError, Refused, Unavailable
from agent.header_area import HeaderArea
from agent.header_export import ExportedHeader, HeaderExport
from agent.header_guard import GenuineHeader, decide, update_record
from agent.initialization import initialize, obtain_header
from agent.policy import Encryption, VolumeRules
from agent.rotation import KeyedHeaders
from tests.unit.agent.fake_clock import FakeClock
from tests.unit.agent.policy_support import KEY_ID, encrypted
from tests.unit.agent.power_cut import PowerCutDisk, key_opens

KEY = bytes(range(100, 132))
NEW = bytes(range(200, 232))
SIZE = 64 << 20
RUNNER = SystemRunner()
PREVIOUS_ID = "default/key/previous"
ANY = VolumeRules()


class Broker:
    """Releases what it has."""

    def __init__(self, **keys: bytes) -> None:
        self._keys = {f"kbs:///default/key/{tag}": key for tag, key in keys.items()}

    def get_resource(self, uri: str) -> bytes:
        if uri not in self._keys:
            raise Unavailable("data-hub-failed", f"{uri} is not released")
        return self._keys[uri]


class Finder(DeviceFinder):
    def __init__(self) -> None:
        super().__init__(FakeClock())

    def find(self, volume: CloudVolume) -> Disk:
        assert volume.disk_id == "d"
        return Disk(Path("/dev/sdx"), "8:1", SIZE)


class Bench:
    """Exports from a disk in memory."""

    def __init__(self, disk: PowerCutDisk, folder: Path) -> None:
        self.disk = disk
        self.output = folder / "header.img"

    @contextmanager
    def open_device(
        self, path: Path, *, writable: bool, exclusive: bool, number: str
    ) -> Iterator[BlockDevice]:
        assert (path, number) == (Path("/dev/sdx"), "8:1")
        assert not writable
        assert not exclusive, "the volume may be mounted"
        yield self.disk

    def export(self, hub: Broker, rules: VolumeRules = ANY) -> ExportedHeader:
        clock = FakeClock()
        headers = KeyedHeaders(hub, RUNNER, clock)
        export = HeaderExport(
            hub=hub, headers=headers, clock=clock, finder=Finder(), open_device=self.open_device
        )
        return export.export(encrypted(), rules, self.output)

    def refusal(self, hub: Broker, rules: VolumeRules = ANY) -> str:
        with pytest.raises(AgentError) as raised:
            self.export(hub, rules)
        assert not self.output.exists()
        return raised.value.rule


@pytest.fixture(scope="module")
def ready() -> bytes:
    disk = PowerCutDisk(SIZE)
    update_record(disk, RecordKey(KEY), initialize(disk, KEY, RUNNER), state=State.READY)
    return bytes(disk.medium)


@pytest.fixture
def bench(ready: bytes, tmp_path: Path) -> Iterator[Bench]:
    with mock.patch.object(volume_lock, "STATE_ROOT", tmp_path / "state"):
        yield Bench(PowerCutDisk(SIZE, ready), tmp_path)


def test_a_header_is_exported_whole_private_and_without_what_nobody_vouches_for(
    bench: Bench, tmp_path: Path
) -> None:
    original = bytes(bench.disk.medium)
    stray = b"left by the host" * 100
    bench.disk.medium[IMAGE_BYTES + 4096 : IMAGE_BYTES + 4096 + len(stray)] = stray
    exported = bench.export(Broker(vol1=KEY))
    content = bench.output.read_bytes()
    found = decide(content, RecordKey(KEY), SIZE)
    assert isinstance(found, GenuineHeader)
    assert found.backed
    assert (content[:IMAGE_BYTES], len(content)) == (original[:IMAGE_BYTES], HEADER_AREA_BYTES)
    assert exported == ExportedHeader(found.audited.uuid, KEY_ID, str(bench.output))
    assert bench.output.stat().st_mode & 0o777 == 0o600
    assert b"left by the host" not in content
    assert KEY not in content
    assert key_opens(content, KEY, tmp_path)
    assert bench.disk.steps == 0


def test_put_back_on_a_disk_it_is_the_volume_again(bench: Bench) -> None:
    bench.export(Broker(vol1=KEY))
    disk = PowerCutDisk(SIZE, bench.output.read_bytes())
    header = obtain_header(HeaderArea(disk), KEY, RUNNER, FakeClock(), VolumeRules())
    assert header.record.state is State.READY, "nothing formats it"
    assert disk.steps == 0


def test_a_header_that_stands_in_the_redo_area_only_is_exported_in_place(bench: Bench) -> None:
    bench.disk.medium[:8192] = bytes(8192)
    bench.export(Broker(vol1=KEY))
    content = bench.output.read_bytes()
    assert content[:IMAGE_BYTES] == content[REDO_OFFSET : REDO_OFFSET + IMAGE_BYTES]
    assert content.startswith(b"LUKS\xba\xbe")
    assert bench.disk.steps == 0


def test_a_volume_that_is_still_to_be_rotated_is_exported_under_its_previous_key(bench: Bench) -> None:
    rotates = VolumeRules(key_id=KEY_ID, previous_key_id=PREVIOUS_ID)
    assert bench.export(Broker(vol1=NEW, previous=KEY), rotates).key_id == PREVIOUS_ID
    assert isinstance(decide(bench.output.read_bytes(), RecordKey(KEY), SIZE), GenuineHeader)
    assert bench.disk.steps == 0


@pytest.mark.parametrize(
    ("hub", "rules", "rule"),
    [
        (Broker(vol1=NEW), VolumeRules(), "header-not-authenticated"),
        (Broker(vol1=NEW), VolumeRules(key_id=KEY_ID, adopt=True), "header-not-authenticated"),
        (Broker(), VolumeRules(), "data-hub-failed"),
        (Broker(vol1=KEY), VolumeRules(minimum_size=SIZE + 1), "policy-size"),
        (Broker(vol1=KEY), VolumeRules(luks_uuid="00000000-1111-4222-8333-444444444444"), "policy-uuid"),
        (Broker(vol1=KEY), VolumeRules(encryption=Encryption.NONE), "volume-not-encrypted"),
    ],
)
def test_what_is_not_this_volumes_header_is_not_exported(
    bench: Bench, hub: Broker, rules: VolumeRules, rule: str
) -> None:
    assert bench.refusal(hub, rules) == rule
    assert bench.disk.steps == 0


def test_a_volume_that_is_blank_or_not_finished_is_not_exported(bench: Bench) -> None:
    """Put back over the finished volume, its record would let it be formatted."""
    bench.disk = PowerCutDisk(SIZE)
    assert bench.refusal(Broker(vol1=KEY)) == "format-forbidden"
    assert bench.disk.steps == 0
    initialize(bench.disk, KEY, RUNNER)
    assert bench.refusal(Broker(vol1=KEY)) == "format-forbidden"


def test_no_file_is_overwritten_and_none_is_left_half_written(bench: Bench) -> None:
    bench.output.write_bytes(b"precious")
    with pytest.raises(Refused) as raised:
        bench.export(Broker(vol1=KEY))
    assert raised.value.rule == "output-exists"
    assert bench.output.read_bytes() == b"precious"
    bench.output.unlink()
    with mock.patch("os.fsync", side_effect=OSError("no space")), pytest.raises(OSError, match="no space"):
        bench.export(Broker(vol1=KEY))
    assert not bench.output.exists()
    bench.output.symlink_to("elsewhere")
    with pytest.raises(Refused):
        bench.export(Broker(vol1=KEY))
    assert not (bench.output.parent / "elsewhere").exists()
