"""Key rotation: which key vouches for a disk at each moment, whatever is cut, by the real cryptsetup."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.commands import Result, SystemRunner
from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES, SLOT_OFFSETS, Record, RecordKey, State
from agent.errors import AgentError, Refused, Unavailable
from agent.header_guard import GenuineHeader, Unformatted, decide, update_record, write_record
from agent.initialization import initialize, obtain_header
from agent.keys import ReleasedKey
from agent.luks2 import newest_valid
from agent.policy import Format, VolumeRules
from agent.rotation import KeyedHeader, KeyedHeaders
from tests.unit.agent.fake_clock import FakeClock
from tests.unit.agent.power_cut import PowerCutDisk, PowerCutError, areas_between_block_writes, key_opens

OLD = bytes(range(100, 132))
NEW = bytes(range(200, 232))
NEWEST = bytes(range(32))
SIZE = 64 << 20
RUNNER = SystemRunner()
CURRENT_ID = "default/volume-key/ledger"
PREVIOUS_ID = "default/volume-key/ledger.previous"
ROTATES = VolumeRules(key_id=CURRENT_ID, previous_key_id=PREVIOUS_ID)
PBKDF2 = ("--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000")

seeds = st.integers(0, 2**32)
shares = st.sampled_from([0.0, 1.0]) | st.floats(0.01, 0.99)


@dataclass
class Broker:
    """Holds the keys, and remembers what was asked for."""

    keys: Mapping[str, bytes]
    asked: list[str] = field(default_factory=list)

    def get_resource(self, uri: str) -> bytes:
        self.asked.append(uri.removeprefix("kbs:///"))
        try:
            return self.keys[self.asked[-1]]
        except KeyError:
            raise Unavailable("data-hub-failed", f"{uri} is not released") from None


def broker(previous: bytes = OLD) -> Broker:
    return Broker({PREVIOUS_ID: previous})


def obtain(
    disk: PowerCutDisk, current: bytes = NEW, hub: Broker | None = None, rules: VolumeRules = ROTATES
) -> KeyedHeader:
    headers = KeyedHeaders(hub or broker(), RUNNER, FakeClock())
    return headers.obtain(disk, ReleasedKey(CURRENT_ID, current), rules)


def with_current_only(area: bytes, current: bytes = NEW) -> PowerCutDisk:
    """The disk after a mount under a policy that names no previous key."""
    disk = PowerCutDisk(SIZE, area)
    obtain(disk, current, Broker({}), VolumeRules(key_id=CURRENT_ID))
    return disk


def refusal(disk: PowerCutDisk, *, hub: Broker | None = None, rules: VolumeRules = ROTATES) -> AgentError:
    """Why a disk is not opened; nothing may have been written on it."""
    with pytest.raises(AgentError) as raised:
        obtain(disk, NEW, hub, rules)
    assert disk.writes == []
    return raised.value


def verdict(area: bytes, key: bytes) -> GenuineHeader | Unformatted | None:
    try:
        return decide(area, RecordKey(key), SIZE)
    except Refused:
        return None


def vouches(area: bytes, key: bytes) -> bool:
    """Whether a record under ``key`` fits anything on the disk."""
    return verdict(area, key) is not None


def volume_key(area: bytes, key: bytes, folder: Path) -> str:
    """The digest of the volume key, after checking that ``key`` opens a keyslot with it."""
    assert key_opens(area, key, folder)
    digests = newest_valid(area[:IMAGE_BYTES]).metadata["digests"]
    assert len(digests) == 1
    return json.dumps([digests["0"]["salt"], digests["0"]["digest"]])


def rests_under_new(area: bytes, before: bytes, folder: Path) -> None:
    """Assert that nothing of the old key is left on the disk, and that the volume is the same."""
    found = verdict(area, NEW)
    assert isinstance(found, GenuineHeader)
    assert found.in_place
    assert found.backed
    assert not vouches(area, OLD)
    assert not key_opens(area, OLD, folder)
    assert volume_key(area, NEW, folder) == volume_key(before, OLD, folder)
    old = verdict(before, OLD)
    assert isinstance(old, GenuineHeader)
    assert replace(found.record, sequence=0) == replace(old.record, sequence=0)
    assert set(found.audited.keyslot_ids).isdisjoint(old.audited.keyslot_ids)
    # The encrypted volume key that the old key opens: nowhere, in the redo area neither.
    keyslot = before[32768 : 32768 + 258048]
    for start in range(0, len(keyslot), 4096):
        assert keyslot[start : start + 4096] not in area


@pytest.fixture(scope="module")
def ready() -> bytes:
    """A volume under OLD."""
    disk = PowerCutDisk(SIZE)
    update_record(disk, RecordKey(OLD), initialize(disk, OLD, RUNNER), state=State.READY)
    return bytes(disk.medium)


@pytest.fixture(scope="module")
def rotation(ready: bytes) -> PowerCutDisk:
    """The disk after a rotation, with all its writes."""
    disk = PowerCutDisk(SIZE, ready)
    obtain(disk)
    return disk


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


def test_at_no_block_of_a_rotation_does_neither_key_or_do_both_open(
    ready: bytes, rotation: PowerCutDisk, tmp_path: Path
) -> None:
    """Every single block, in order. Up to the record the old key's header is whole, then the new one's."""
    new_image = bytes(rotation.medium)[:IMAGE_BYTES]
    seen: list[bool] = []
    last_old = b""
    for area in areas_between_block_writes(ready, rotation.writes):
        new = verdict(area, NEW)
        if new is None:
            old = verdict(area, OLD)
            assert isinstance(old, GenuineHeader)
            assert (old.image, old.in_place) == (ready[:IMAGE_BYTES], True)
            last_old = area
        else:
            assert isinstance(new, GenuineHeader)
            assert new.image == new_image
            if len(seen) % 60 == 0:
                rests_under_new(bytes(with_current_only(area).medium), ready, tmp_path)
        seen.append(new is not None)
    assert len(seen) > 250, "a header with another keyslot changes many blocks, twice"
    assert seen == sorted(seen), "once the new key's header is in force it stays so"
    assert 100 < seen.index(True) < len(seen) - 100
    disk = PowerCutDisk(SIZE, last_old)
    obtain(disk)
    rests_under_new(bytes(disk.medium), ready, tmp_path)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), seed=seeds, share=shares, twice=st.booleans())
def test_a_rotation_cut_anywhere_is_completed_by_the_next_mount(
    data: st.DataObject,
    *,
    seed: int,
    share: float,
    twice: bool,
    ready: bytes,
    rotation: PowerCutDisk,
    tmp_path: Path,
) -> None:
    """Blocks are lost out of order here, and the next mount may be cut, too."""
    area = ready
    for _ in range(2 if twice else 1):
        disk = PowerCutDisk(SIZE, area)
        disk.cut_at = data.draw(st.integers(0, rotation.steps - 1))
        # The second time there may be less to do.
        with suppress(PowerCutError):
            obtain(disk)
        area = bytes(disk.power_returns(seed, share).medium)
        assert vouches(area, OLD) or vouches(area, NEW)
    disk = PowerCutDisk(SIZE, area)
    obtain(disk)
    rests_under_new(bytes(disk.medium), ready, tmp_path)


def cut_rotation(area: bytes, step: int, share: float) -> bytes:
    disk = PowerCutDisk(SIZE, area)
    disk.cut_at = step
    with pytest.raises(PowerCutError):
        obtain(disk)
    return bytes(disk.power_returns(1, share).medium)


@pytest.mark.parametrize("step", [1, 3, 5, 9])
def test_a_cut_rotation_can_be_taken_back_or_led_on(ready: bytes, step: int, tmp_path: Path) -> None:
    """The operator changes the values in the key broker before the next mount."""
    area = cut_rotation(ready, step, 0.5)
    back = PowerCutDisk(SIZE, area)
    obtain(back, OLD, broker(NEW))
    assert not vouches(bytes(back.medium), NEW)
    assert volume_key(bytes(back.medium), OLD, tmp_path) == volume_key(ready, OLD, tmp_path)
    if vouches(area, NEW):
        on = PowerCutDisk(SIZE, area)
        obtain(on, NEWEST, broker(NEW))
        for gone in (OLD, NEW):
            assert not vouches(bytes(on.medium), gone)
            assert not key_opens(bytes(on.medium), gone, tmp_path)
        assert volume_key(bytes(on.medium), NEWEST, tmp_path) == volume_key(ready, OLD, tmp_path)


operations = st.lists(
    st.sampled_from(["upload", "take back", "mount"])
    | st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.3, 1.0])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=operations, seed=seeds)
def test_an_operator_and_a_host_that_cuts_the_power_never_lose_a_volume(
    operations: list[str | tuple[int, float]], *, seed: int, ready: bytes, tmp_path: Path
) -> None:
    """The operator keeps to the one rule: no other new value before a mount has ended well."""
    values = iter(bytes([number]) * 32 for number in range(10))
    current, previous, settled = OLD, next(values), True
    area = ready
    for operation in operations:
        disk = PowerCutDisk(SIZE, area)
        if operation == "upload" and settled:
            current, previous, settled = next(values), current, False
        elif operation == "take back":
            current, previous, settled = previous, current, False
        elif operation == "mount":
            obtain(disk, current, broker(previous))
            settled = True
        elif isinstance(operation, tuple):
            disk.cut_at, share = operation
            with suppress(PowerCutError):
                obtain(disk, current, broker(previous))
            disk = disk.power_returns(seed, share)
        area = bytes(disk.medium)
        assert vouches(area, current) or vouches(area, previous)
    disk = PowerCutDisk(SIZE, area)
    obtain(disk, current, broker(previous))
    after = bytes(disk.medium)
    assert not vouches(after, previous)
    assert not key_opens(after, previous, tmp_path)
    assert volume_key(after, current, tmp_path) == volume_key(ready, OLD, tmp_path)


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


def test_a_header_change_under_the_old_key_that_was_cut_is_rotated_from_the_redo_image(
    ready: bytes, tmp_path: Path
) -> None:
    torn = bytes(8192) + ready[8192:]
    steps = PowerCutDisk(SIZE, torn)
    obtain(steps)
    rests_under_new(bytes(steps.medium), ready, tmp_path)
    for step in (0, 1, 3, 5):
        disk = PowerCutDisk(SIZE, cut_rotation(torn, step, 0.5))
        obtain(disk)
        rests_under_new(bytes(disk.medium), ready, tmp_path)


def cut_initialization(step: int) -> bytes:
    disk = PowerCutDisk(SIZE)
    disk.cut_at = step
    with pytest.raises(PowerCutError):
        initialize(disk, OLD, RUNNER)
    return bytes(disk.power_returns(1, 1.0).medium)


def test_an_initialization_that_was_cut_is_carried_on_under_the_new_key(tmp_path: Path) -> None:
    for step in (2, 3, 5, 7):
        area = cut_initialization(step)
        before = verdict(area, OLD)
        assert before is not None
        disk = PowerCutDisk(SIZE, area)
        keyed = obtain(disk)
        assert (keyed.key.value, keyed.header.record.state) == (NEW, State.INITIALISING)
        assert key_opens(bytes(disk.medium), NEW, tmp_path)
        assert not key_opens(bytes(disk.medium), OLD, tmp_path)
        update_record(disk, RecordKey(NEW), keyed.header, state=State.READY)
        assert not vouches(bytes(disk.medium), OLD)
        assert with_current_only(bytes(disk.medium)).steps == 0
        forbidden = refusal(PowerCutDisk(SIZE, area), rules=replace(ROTATES, format=Format.NEVER))
        assert forbidden.rule == "format-forbidden"


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
    obtain_header(disk, OLD, RUNNER, FakeClock(), VolumeRules(key_id=CURRENT_ID, adopt=True))
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
