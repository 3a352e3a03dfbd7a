"""Key rotation: which key vouches for a disk, and opens it, by the real cryptsetup."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from agent.commands import Result, SystemRunner
from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES, SLOT_OFFSETS, Record, RecordKey, State
from agent.errors import Unavailable
from agent.header_area import HeaderArea
from agent.header_guard import GenuineHeader, update_record, write_record
from agent.initialization import initialize, obtain_header
from agent.keys import ReleasedKey
from agent.luks2 import newest_valid
from agent.policy import VolumeRules
from agent.rotation import KeyedHeaders
from tests.unit.agent.fake_clock import FakeClock
from tests.unit.agent.power_cut import PowerCutDisk, key_opens
from tests.unit.agent.rotation_support import (
    CURRENT_ID,
    NEW,
    NEWEST,
    OLD,
    PREVIOUS_ID,
    ROTATES,
    RUNNER,
    SIZE,
    Broker,
    broker,
    obtain,
    refusal,
    rests_under_new,
    rotated_disk,
    verdict,
    volume_key,
    volume_under_old,
    vouches,
    with_current_only,
)

PBKDF2 = ("--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000")


@pytest.fixture
def ready() -> bytes:
    """A volume under OLD."""
    return volume_under_old()


@pytest.fixture
def rotation() -> PowerCutDisk:
    """The disk after a rotation, with all its writes."""
    return rotated_disk()


def test_a_rotated_volume_opens_with_the_new_key_alone(
    ready: bytes, rotation: PowerCutDisk, tmp_path: Path
) -> None:
    area = bytes(rotation.medium)
    rests_under_new(area, ready, tmp_path)
    assert with_current_only(area).steps == 0, "the policy may forget the previous key now"


def test_the_previous_key_is_asked_for_only_when_it_is_needed(ready: bytes, rotation: PowerCutDisk) -> None:
    hub = broker()
    keyed = obtain(PowerCutDisk(SIZE, ready), OLD, hub)
    assert (hub.asked, keyed.key.key_id) == ([], CURRENT_ID)
    keyed = obtain(PowerCutDisk(SIZE, bytes(rotation.medium)), NEW, hub)
    assert (hub.asked, keyed.key.value) == ([], NEW)
    obtain(PowerCutDisk(SIZE), NEW, hub)
    assert hub.asked == [], "a blank disk has no key yet"
    obtain(PowerCutDisk(SIZE, ready), NEW, hub)
    assert hub.asked == [PREVIOUS_ID]


def test_a_read_only_volume_is_opened_with_the_previous_key_and_not_rotated(ready: bytes) -> None:
    disk = PowerCutDisk(SIZE, ready)
    keyed = obtain(disk, rules=replace(ROTATES, read_only=True))
    assert keyed.key == ReleasedKey(PREVIOUS_ID, OLD)
    assert keyed.header.image == ready[:IMAGE_BYTES]
    assert disk.steps == 0


def test_without_a_previous_key_in_the_policy_nothing_is_rotated(ready: bytes) -> None:
    hub = broker()
    error = refusal(PowerCutDisk(SIZE, ready), hub=hub, rules=VolumeRules(key_id=CURRENT_ID))
    assert (error.rule, hub.asked) == ("header-not-authenticated", [])


def test_a_previous_key_that_is_gone_is_waited_for(ready: bytes) -> None:
    error = refusal(PowerCutDisk(SIZE, ready), hub=Broker({}))
    assert (error.rule, type(error)) == ("data-hub-failed", Unavailable)
    assert "header-not-authenticated" in error.__notes__[0]


@pytest.mark.parametrize(
    ("previous", "rule", "note"),
    [
        (NEWEST, "header-not-authenticated", "does not fit either"),
        (NEW, "header-not-authenticated", "the same value"),
        (OLD[:31], "key-too-short", "the previous key, and needed"),
    ],
)
def test_a_previous_key_that_does_not_help_changes_nothing(
    ready: bytes, previous: bytes, rule: str, note: str
) -> None:
    error = refusal(PowerCutDisk(SIZE, ready), hub=broker(previous))
    assert error.rule == rule
    assert note in error.__notes__[0]
    assert len("; ".join([str(error), *error.__notes__])) < 990
    assert "ghij" not in str(error), "the key's bytes"


@pytest.mark.parametrize(
    ("rules", "rule"),
    [
        (replace(ROTATES, luks_uuid="00000000-1111-4222-8333-444444444444"), "policy-uuid"),
        (replace(ROTATES, previous_key_id=None), "header-not-authenticated"),
    ],
)
def test_a_volume_that_breaks_the_policy_is_not_rotated(ready: bytes, rules: VolumeRules, rule: str) -> None:
    assert refusal(PowerCutDisk(SIZE, ready), rules=rules).rule == rule


def test_a_disk_that_shrank_is_not_rotated(ready: bytes) -> None:
    assert refusal(PowerCutDisk(SIZE - 4096, ready)).rule == "device-too-small"


def test_a_volume_is_rotated_again_and_again_and_its_header_does_not_fill_up(
    ready: bytes, tmp_path: Path
) -> None:
    disk = PowerCutDisk(SIZE, ready)
    keys = [OLD, NEW, NEWEST, OLD, NEW, NEWEST]
    for previous, current in pairwise(keys):
        keyed = obtain(disk, current, broker(previous))
        assert len(keyed.header.audited.keyslot_ids) == 1
        assert [key for key in (OLD, NEW, NEWEST) if vouches(bytes(disk.medium), key)] == [current]
    assert volume_key(bytes(disk.medium), NEWEST, tmp_path) == volume_key(ready, OLD, tmp_path)


def test_the_holder_of_the_old_key_can_not_wear_out_the_sequence_numbers(ready: bytes) -> None:
    """A leaked key's holder can write any record under it, for instance with the highest number."""
    old = verdict(ready, OLD)
    assert isinstance(old, GenuineHeader)
    disk = PowerCutDisk(SIZE, ready)
    write_record(disk, RecordKey(OLD), old.image, replace(old.record, sequence=2**64 - 1), old.slot)
    keyed = obtain(disk)
    assert keyed.header.record.sequence == 3
    update_record(disk, RecordKey(NEW), keyed.header, minimum_size=SIZE)


def test_a_claim_under_the_old_key_beside_data_stays_refused() -> None:
    area = bytearray(HEADER_AREA_BYTES)
    area[SLOT_OFFSETS[0] : SLOT_OFFSETS[1]] = Record.claim().seal(RecordKey(OLD), b"")
    area[4096] = 1
    assert refusal(PowerCutDisk(SIZE, bytes(area))).rule == "header-not-authenticated"


@pytest.fixture
def foreign(tmp_path: Path) -> Callable[..., bytes]:
    """A header that cryptsetup made alone, with keyslots for these keys."""

    def make(*keys: bytes) -> bytes:
        image = tmp_path / "foreign.img"
        with image.open("wb") as file:
            file.truncate(SIZE)
        command = ("--batch-mode", *PBKDF2, "--key-file", "-")
        hub = ("--cipher", "aes-xts-plain64", "--sector-size", "4096", "--type", "luks2")
        subprocess.run(["cryptsetup", "luksFormat", *command, *hub, str(image)], input=keys[0], check=True)
        for number, key in enumerate(keys[1:]):
            other = tmp_path / f"key{number}"
            other.write_bytes(key)
            subprocess.run(
                ["cryptsetup", "luksAddKey", *command, str(image), str(other)], input=keys[0], check=True
            )
        return image.read_bytes()[:HEADER_AREA_BYTES]

    return make


def adopted(area: bytes) -> bytes:
    disk = PowerCutDisk(SIZE, area)
    obtain_header(HeaderArea(disk), OLD, RUNNER, FakeClock(), VolumeRules(key_id=CURRENT_ID, adopt=True))
    return bytes(disk.medium)


def test_an_adopted_volume_is_rotated_and_keeps_the_keyslots_of_others(
    foreign: Callable[..., bytes], tmp_path: Path
) -> None:
    area = adopted(foreign(OLD, NEWEST, OLD))
    for rules in (ROTATES, replace(ROTATES, adopt=True)):
        disk = PowerCutDisk(SIZE, area)
        keyed = obtain(disk, rules=rules)
        after = bytes(disk.medium)
        assert len(keyed.header.audited.keyslot_ids) == 2
        assert not vouches(after, OLD)
        for opener in (NEW, NEWEST):
            assert volume_key(after, opener, tmp_path) == volume_key(area, OLD, tmp_path)
        assert not key_opens(after, OLD, tmp_path), "in none of its two keyslots"
        assert with_current_only(after).steps == 0


def test_a_volume_that_nobody_vouches_for_is_adopted_under_the_current_key_only(
    foreign: Callable[..., bytes],
) -> None:
    adopting = replace(ROTATES, adopt=True)
    assert refusal(PowerCutDisk(SIZE, foreign(OLD)), rules=adopting).rule == "adoption-key"
    keyed = obtain(PowerCutDisk(SIZE, foreign(NEW)), rules=adopting)
    assert keyed.key.value == NEW


def test_without_room_for_another_keyslot_nothing_is_written(foreign: Callable[..., bytes]) -> None:
    area = adopted(foreign(OLD, NEWEST, bytes(32), bytes(33)))
    assert refusal(PowerCutDisk(SIZE, area)).rule == "rotation-no-room"


class WatchedRunner(SystemRunner):
    """Remembers what it ran."""

    def __init__(self) -> None:
        self.ran: list[Sequence[str]] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        expected: Collection[int] = (0,),
        timeout: float = 60.0,
        pass_fds: Sequence[int] = (),
    ) -> Result:
        self.ran.append(argv)
        return super().run(argv, stdin=stdin, expected=expected, timeout=timeout, pass_fds=pass_fds)


def test_keys_are_in_no_argument_and_not_shown(ready: bytes) -> None:
    runner = WatchedRunner()
    headers = KeyedHeaders(broker(), runner, FakeClock())
    keyed = headers.obtain(PowerCutDisk(SIZE, ready), ReleasedKey(CURRENT_ID, NEW), ROTATES)
    assert {argv[1] for argv in runner.ran} == {"luksAddKey", "luksRemoveKey", "open"}
    arguments = [argument for argv in runner.ran for argument in argv]
    for key in (OLD, NEW):
        assert not any(key.hex() in one or key.decode("latin1") in one for one in arguments)
        assert repr(key) not in repr(keyed)
    assert all(one.startswith("/proc/self/fd/") for one in arguments if "/" in one)


def test_who_knows_the_previous_key_makes_volumes_for_as_long_as_the_policy_names_it(ready: bytes) -> None:
    """Not defended, and the reason to remove ``previous-key``: a volume key of the forger's choice."""
    forged = PowerCutDisk(SIZE)
    update_record(forged, RecordKey(OLD), initialize(forged, OLD, RUNNER), state=State.READY)
    area = bytes(forged.medium)
    assert newest_valid(area[:IMAGE_BYTES]).binary.uuid != newest_valid(ready[:IMAGE_BYTES]).binary.uuid
    assert (
        refusal(PowerCutDisk(SIZE, area), rules=VolumeRules(key_id=CURRENT_ID)).rule
        == "header-not-authenticated"
    )
    pinned = replace(ROTATES, luks_uuid=newest_valid(ready[:IMAGE_BYTES]).binary.uuid)
    assert refusal(PowerCutDisk(SIZE, area), rules=pinned).rule == "policy-uuid", "but a forger can copy it"
    assert obtain(PowerCutDisk(SIZE, area)).key.value == NEW
