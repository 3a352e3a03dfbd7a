"""The active dm-crypt table must be what the checked header says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.crypt_mapping import backing_bytes, require_same
from agent.device_mapper import Mapping, Target
from agent.errors import Refused
from agent.luks2_profile import AuditedHeader

UUID = "6f1c7c0e-3f0a-4d5e-9a57-0c8a5a0d9b11"
HEADER = AuditedHeader(
    uuid=UUID,
    cipher="aes-xts-plain64",
    volume_key_bytes=64,
    sector_size=4096,
    data_offset_bytes=4 << 20,
    iv_tweak=0,
    header_image_bytes=1081344,
    digest_id=0,
    keyslot_ids=(0,),
    unlock_memory_kib=0,
)
MAPPING = Mapping(
    name="caa-vol-0",
    uuid="CRYPT-LUKS2-6f1c7c0e3f0a4d5e9a570c8a5a0d9b11-caa-vol-0",
    number="253:1",
    path=Path("/dev/mapper/caa-vol-0"),
)
SIZE = 64 << 20
LENGTH = (SIZE - (4 << 20)) // 512
KEY = f":64:logon:cryptsetup:{UUID}-d0"
ARGUMENTS = ("aes-xts-plain64", KEY, "0", "253:0", "8192", "1", "sector_size:4096")
TARGET = Target(0, LENGTH, "crypt", ARGUMENTS)


def check(mapping: Mapping = MAPPING, *table: Target) -> None:
    require_same(mapping, table or (TARGET,), HEADER, "253:0", SIZE)


def test_the_table_that_cryptsetup_makes_is_accepted() -> None:
    check()
    # A kernel without the keyring shows zeros for the key.
    check(MAPPING, replace(TARGET, arguments=(ARGUMENTS[0], "00" * 64, *ARGUMENTS[2:])))


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, "cipher_null-ecb"),
        (0, "aes-cbc-essiv:sha256"),
        (1, f":32:logon:cryptsetup:{UUID}-d0"),
        (1, ":64:user:cryptsetup:other"),
        (1, "00" * 32),
        (1, "-"),
        (2, "8"),
        (3, "254:16"),
        (4, "0"),
        (4, "8200"),
        (5, "2"),
        (6, "sector_size:512"),
    ],
)
def test_any_other_argument_is_refused(position: int, value: str) -> None:
    """Field case I4."""
    arguments = list(ARGUMENTS)
    arguments[position] = value
    with pytest.raises(Refused, match="mapping-differs"):
        check(MAPPING, replace(TARGET, arguments=tuple(arguments)))


@pytest.mark.parametrize(
    "target",
    [
        replace(TARGET, arguments=(*ARGUMENTS[:5], "2", "sector_size:4096", "allow_discards")),
        replace(TARGET, arguments=ARGUMENTS[:5]),
        replace(TARGET, arguments=ARGUMENTS[:3]),
        replace(TARGET, kind="linear", arguments=("253:0", "8192")),
        replace(TARGET, length=LENGTH - 8),
        replace(TARGET, start=8),
    ],
)
def test_another_target_or_extent_is_refused(target: Target) -> None:
    with pytest.raises(Refused, match="mapping-differs"):
        check(MAPPING, target)


def test_more_or_fewer_targets_are_refused() -> None:
    with pytest.raises(Refused, match="mapping-differs"):
        check(MAPPING, TARGET, replace(TARGET, start=LENGTH))
    with pytest.raises(Refused, match="mapping-differs"):
        require_same(MAPPING, (), HEADER, "253:0", SIZE)


@pytest.mark.parametrize(
    "uuid",
    ["", MAPPING.uuid.replace("LUKS2", "LUKS1"), MAPPING.uuid[:-1] + "1", "CRYPT-PLAIN-caa-vol-0"],
)
def test_another_device_mapper_uuid_is_refused(uuid: str) -> None:
    with pytest.raises(Refused, match="mapping-differs"):
        check(replace(MAPPING, uuid=uuid))


def test_discards_pass_only_where_they_may() -> None:
    table = (replace(TARGET, arguments=(*ARGUMENTS[:5], "2", "allow_discards", "sector_size:4096")),)
    require_same(MAPPING, table, HEADER, "253:0", SIZE, may_discard=True)
    with pytest.raises(Refused, match="mapping-differs"):
        require_same(MAPPING, table, HEADER, "253:0", SIZE, may_discard=False)


def test_the_kernel_shows_no_option_for_its_own_sector_size() -> None:
    header = replace(HEADER, sector_size=512)
    require_same(MAPPING, (replace(TARGET, arguments=ARGUMENTS[:5]),), header, "253:0", SIZE)
    with pytest.raises(Refused, match="mapping-differs"):
        require_same(MAPPING, (TARGET,), header, "253:0", SIZE)


def test_a_mapping_that_growth_left_behind_its_device_is_known_by_its_length() -> None:
    """It is compared at the size it has; one that is longer than its device, at the device's."""
    grown = 2 * SIZE
    assert backing_bytes((TARGET,), HEADER, grown) == SIZE
    require_same(MAPPING, (TARGET,), HEADER, "253:0", backing_bytes((TARGET,), HEADER, grown))
    assert backing_bytes((TARGET,), HEADER, SIZE - 4096) == SIZE - 4096
    assert backing_bytes((), HEADER, SIZE) == HEADER.data_offset_bytes
    with pytest.raises(Refused):
        require_same(MAPPING, (), HEADER, "253:0", backing_bytes((), HEADER, SIZE))
