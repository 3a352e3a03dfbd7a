"""Volumes made by cryptsetup alone, taken over where the policy says so, and not otherwise."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.commands import SystemRunner
from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES, SLOT_OFFSETS, RecordKey, State
from agent.errors import Refused
from agent.header_area import HeaderArea
from agent.header_guard import GenuineHeader, decide
from agent.initialization import obtain_header
from agent.policy import VolumeRules
from tests.fakes.luks_headers import Metadata, forge, null_keyslots, null_segment
from tests.unit.agent.fake_clock import FakeClock
from tests.unit.agent.power_cut import PowerCutDisk, PowerCutError

KEY = bytes(range(32))
SIZE = 64 << 20
ADOPT = VolumeRules(key_id="a/b/c", adopt=True)
PBKDF2 = ("--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000")
ARGON2 = (
    "--pbkdf",
    "argon2id",
    "--pbkdf-force-iterations",
    "4",
    "--pbkdf-memory",
    "64",
    "--pbkdf-parallel",
    "1",
)
#: As the data hub formatted volumes before its release 0.18.
HUB = ("--cipher", "aes-xts-plain64", "--sector-size", "4096")

Format = Callable[..., bytes]


@pytest.fixture
def luks_format(tmp_path: Path) -> Format:
    """The first 4 MiB of a volume that cryptsetup formats with these options."""

    def run(*options: str, more_keys: int = 0) -> bytes:
        image, key = tmp_path / "disk", tmp_path / "key"
        key.write_bytes(KEY)
        with image.open("wb") as file:
            file.truncate(SIZE)
        formatting = ["luksFormat", "--batch-mode", "--type", "luks2", *options]
        subprocess.run(["cryptsetup", *formatting, "--key-file", str(key), str(image)], check=True)
        for number in range(more_keys):
            other = tmp_path / f"key{number}"
            other.write_bytes(bytes([number]) * 32)
            adding = ["luksAddKey", *PBKDF2, "--key-file", str(key), str(image), str(other)]
            subprocess.run(["cryptsetup", *adding], check=True)
        with image.open("rb") as file:
            return file.read(HEADER_AREA_BYTES)

    return run


def obtain(disk: PowerCutDisk, rules: VolumeRules = ADOPT, key: bytes = KEY) -> GenuineHeader:
    return obtain_header(HeaderArea(disk), key, SystemRunner(), FakeClock(), rules)


def refusal(area: bytes, rules: VolumeRules = ADOPT, key: bytes = KEY) -> str:
    """The rule by which a disk is refused; nothing may have been written on it."""
    disk = PowerCutDisk(SIZE, area)
    with pytest.raises(Refused) as raised:
        obtain(disk, rules, key)
    assert disk.writes == []
    return raised.value.rule


@pytest.mark.parametrize(
    "options",
    [
        (*HUB, *PBKDF2),
        (*HUB, *ARGON2),
        ("--sector-size", "512", *PBKDF2),
        ("--key-size", "256", "--sector-size", "512", *PBKDF2),
        ("--offset", "8192", "--luks2-keyslots-size", "1m", *HUB, *PBKDF2),
    ],
    ids=["data hub", "argon2id", "small sectors", "128-bit AES", "format 1"],
)
def test_a_foreign_volume_is_adopted_once_and_then_is_one_of_ours(
    luks_format: Format, options: tuple[str, ...]
) -> None:
    area = luks_format(*options)
    disk = PowerCutDisk(SIZE, area)
    header = obtain(disk)
    assert header.record.state is State.READY, "nothing may ever format it"
    assert header.record.minimum_size == SIZE
    assert header.audited.unlock_memory_kib == (64 if "argon2id" in options else 0)
    assert {offset for offset, _ in disk.writes} == set(SLOT_OFFSETS)
    assert disk.medium[:IMAGE_BYTES] == area[:IMAGE_BYTES]
    assert obtain(disk, VolumeRules()) == header, "without adopt from now on"


def test_without_the_policys_word_it_is_refused(luks_format: Format) -> None:
    assert refusal(luks_format(*HUB, *PBKDF2), VolumeRules()) == "header-not-authenticated"


def test_a_key_that_does_not_open_it_adopts_nothing(luks_format: Format) -> None:
    assert refusal(luks_format(*HUB, *PBKDF2), key=bytes(32)) == "adoption-key"


def test_a_pinned_volume_is_the_only_one_adopted(luks_format: Format) -> None:
    pinned = VolumeRules(key_id="a/b/c", adopt=True, luks_uuid="00000000-1111-4222-8333-444444444444")
    assert refusal(luks_format(*HUB, *PBKDF2), pinned) == "policy-uuid"


def test_a_header_without_room_for_the_record_is_refused(luks_format: Format) -> None:
    early = ("--offset", "4096", "--luks2-keyslots-size", "1m")
    assert refusal(luks_format(*early, *HUB, *PBKDF2)) == "adoption-no-room"
    assert refusal(luks_format(*HUB, *PBKDF2, more_keys=4)) == "adoption-no-room"


@pytest.mark.parametrize(
    ("edit", "rule"), [(null_segment, "header-segment-cipher"), (null_keyslots, "header-keyslot-cipher")]
)
def test_a_forged_header_is_not_adopted(
    luks_format: Format, edit: Callable[[Metadata], None], rule: str
) -> None:
    """Field case I4: the key opens it, and the workload would write plaintext."""
    area = luks_format("--offset", "8192", "--luks2-keyslots-size", "1m", *HUB, *PBKDF2)
    assert refusal(forge(area[:IMAGE_BYTES], edit) + area[IMAGE_BYTES:]) == rule


def test_what_is_no_luks2_is_not_adopted() -> None:
    assert refusal(b"x" * HEADER_AREA_BYTES) == "header-invalid"


def test_a_power_cut_leaves_it_adopted_or_as_it_was(luks_format: Format) -> None:
    area = luks_format(*HUB, *PBKDF2)
    for step in (0, 1):
        for share in (0.0, 1.0):
            disk = PowerCutDisk(SIZE, area)
            disk.cut_at = step
            with pytest.raises(PowerCutError):
                obtain(disk)
            after = disk.power_returns(1, share)
            assert after.medium[:IMAGE_BYTES] == area[:IMAGE_BYTES]
            obtain(after)
            assert isinstance(decide(bytes(after.medium), RecordKey(KEY), SIZE), GenuineHeader)
