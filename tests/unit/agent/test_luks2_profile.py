"""What the profiles let through and what they refuse, by rule."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from agent.errors import Refused
from agent.luks2 import Header, newest_valid
from agent.luks2_profile import (
    FOREIGN,
    FORMAT_1,
    RULES,
    AuditedHeader,
    Profile,
    ProfileViolation,
    audit,
    require_equal_copies,
)
from tests.fakes import luks_headers as forged

Edit = Callable[[forged.Metadata], object]


def parsed(edit: Edit | None = None) -> Header:
    """A header of on-disk format 1 with its metadata edited."""
    area = forged.build_area()
    return newest_valid(forged.forge(area, edit) if edit else area)


def change(path: str, value: Any) -> Edit:
    """Set the member at a dotted path."""

    def edit(document: forged.Metadata) -> None:
        *steps, last = path.split(".")
        holder: Any = document
        for step in steps:
            holder = holder[step]
        holder[last] = copy.deepcopy(value)

    return edit


def remove(path: str) -> Edit:
    def edit(document: forged.Metadata) -> None:
        *steps, last = path.split(".")
        holder: Any = document
        for step in steps:
            holder = holder[step]
        del holder[last]

    return edit


def both(*edits: Edit) -> Edit:
    def edit(document: forged.Metadata) -> None:
        for each in edits:
            each(document)

    return edit


ARGON2 = {"type": "argon2id", "time": 4, "memory": 1048576, "cpus": 4, "salt": forged.encoded("argon2")}
SECOND_KEYSLOT = both(change("keyslots.1", forged.keyslot(1)), change("digests.0.keyslots", ["0", "1"]))


def test_the_facts_of_a_header_of_format_1() -> None:
    assert audit(parsed(SECOND_KEYSLOT), FORMAT_1) == AuditedHeader(
        uuid=forged.UUID,
        cipher="aes-xts-plain64",
        volume_key_bytes=64,
        sector_size=4096,
        data_offset_bytes=4 * 1024 * 1024,
        iv_tweak=0,
        header_image_bytes=32 * 1024 + 1024 * 1024,
        digest_id=0,
        keyslot_ids=(0, 1),
        unlock_memory_kib=0,
    )


REFUSED: list[tuple[str, Edit]] = [
    ("header-segment-cipher", forged.null_segment),
    ("header-keyslot-cipher", forged.null_keyslots),
    ("header-segment-cipher", change("segments.0.encryption", "aes-cbc-essiv:sha256")),
    ("header-segment-cipher", change("segments.0.encryption", "AES-XTS-PLAIN64")),
    ("header-segment-cipher", change("segments.0.encryption", "capi:xts(aes)-plain64")),
    ("header-segment-cipher", change("segments.0.iv_tweak", "8")),
    ("header-segment-cipher", change("segments.0.iv_tweak", "00")),
    ("header-segment-cipher", change("segments.0.sector_size", 512)),
    ("header-segment", change("segments.0.type", "linear")),
    ("header-segment", change("segments.0.offset", "8388608")),
    ("header-segment", change("segments.0.size", "1048576")),
    (
        "header-segment",
        both(
            change("segments.0.size", "4096"),
            change("segments.1", {"type": "linear", "offset": "8388608", "size": "dynamic"}),
        ),
    ),
    (
        "header-unknown-member",
        change(
            "segments.0.integrity",
            {"type": "hmac(sha256)", "journal_encryption": "none", "journal_integrity": "none"},
        ),
    ),
    ("header-unknown-member", change("segments.0.flags", [])),
    ("header-unknown-member", change("keyslots.0.kdf.time", 4)),
    ("header-unknown-member", change("keyslots.0.area.x", 0)),
    ("header-unknown-member", change("keyslots.0.af.x", 0)),
    ("header-unknown-member", change("keyslots.0.x", 0)),
    ("header-unknown-member", change("digests.0.x", 0)),
    ("header-unknown-member", change("config.x", 0)),
    ("header-unknown-member", change("x", 0)),
    ("header-unknown-member", remove("digests.0.salt")),
    ("header-unknown-member", remove("digests.0.iterations")),
    ("header-number", change("segments.0.offset", "04194304")),
    ("header-number", change("keyslots.0.area.offset", "032768")),
    ("header-number", change("config.keyslots_size", "01048576")),
    ("header-number", change("digests.0.iterations", "1000")),
    ("header-number", change("digests.0.iterations", True)),
    ("header-number", change("digests.0.iterations", 1000.0)),
    ("header-number", change("keyslots.0.priority", "1")),
    ("header-base64", change("digests.0.salt", "AAAA")),
    ("header-base64", change("digests.0.digest", 1)),
    ("header-base64", change("digests.0.digest", forged.encoded("digest") + "\n")),
    ("header-base64", change("keyslots.0.kdf.salt", "é" * 44)),
    ("header-base64", change("keyslots.0.kdf.salt", "A" * 42 + "B=")),
    ("header-config", change("config.requirements", {})),
    ("header-config", change("config.requirements", {"mandatory": ["offline-reencrypt"]})),
    ("header-config", change("config.flags", [])),
    ("header-config", change("config.flags", ["allow-discards"])),
    ("header-config", change("config.keyslots_size", "524288")),
    ("header-tokens", change("tokens.0", {"type": "systemd-tpm2", "keyslots": ["0"]})),
    ("header-digest", change("digests.1", {"type": "pbkdf2", "keyslots": [], "segments": []})),
    ("header-digest", change("digests.0.keyslots", ["0", "0"])),
    ("header-digest", change("digests.0.segments", ["0", "0"])),
    ("header-digest", change("digests.0.type", "argon2id")),
    ("header-digest", change("digests.0.hash", "sha1")),
    ("header-digest", change("digests.0.hash", ["sha256"])),
    ("header-digest", change("digests.0.iterations", 999)),
    ("header-digest", change("digests.0.iterations", 10**9)),
    ("header-digest", both(lambda document: document["digests"].update({"8": document["digests"].pop("0")}))),
    (
        "header-digest",
        # The digest ties a keyslot of another type to the segment, and not the one that opens.
        both(
            change("digests.1", {"type": "pbkdf2", "keyslots": ["0"], "segments": []}),
            change("digests.0.keyslots", []),
        ),
    ),
    ("header-keyslot", both(change("keyslots", {}), change("digests.0.keyslots", []))),
    ("header-keyslot", change("keyslots.1", {**forged.keyslot(1), "type": "x"})),
    ("header-keyslot", change("keyslots.0.priority", 2)),
    ("header-keyslot", change("keyslots.0.key_size", 32)),
    (
        "header-keyslot",
        lambda document: (
            document["keyslots"].update({"32": document["keyslots"].pop("0")}),
            document["digests"]["0"].update(keyslots=["32"]),
        ),
    ),
    ("header-keyslot-cipher", change("keyslots.0.area.key_size", 32)),
    ("header-keyslot-area", change("keyslots.0.area.size", "253952")),
    ("header-keyslot-area", change("keyslots.0.area.size", "258049")),
    ("header-keyslot-area", change("keyslots.0.area.offset", "33280")),
    ("header-keyslot-af", change("keyslots.0.af.stripes", 1)),
    ("header-keyslot-af", change("keyslots.0.af.hash", "sha512")),
    ("header-keyslot-kdf", change("keyslots.0.kdf.iterations", 1)),
    ("header-keyslot-kdf", change("keyslots.0.kdf.iterations", 2**31)),
    ("header-keyslot-kdf", change("keyslots.0.kdf.hash", "sha1")),
    ("header-keyslot-kdf", change("keyslots.0.kdf", ARGON2)),
    ("header-keyslot-kdf", change("keyslots.0.kdf", {"type": "scrypt"})),
]


@pytest.mark.parametrize(("rule", "edit"), REFUSED)
def test_format_1_refuses_a_well_formed_header_that_says_anything_else(rule: str, edit: Edit) -> None:
    """Field case I4: null cipher, linear, re-encryption, two segments, one iteration, untied digest …"""
    header = parsed(edit)
    with pytest.raises(ProfileViolation) as caught:
        audit(header, FORMAT_1)
    assert caught.value.rule == rule
    assert isinstance(caught.value, Refused)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (forged.UUID_FIELD, b"\0" * 40),
        (forged.UUID_FIELD, forged.UUID.upper().encode()),
        (forged.UUID_FIELD, forged.UUID.encode()[:-1] + b"\n"),
        (264, b"\1"),
        (447, b"\1"),
        (512, b"\1"),
        (4095, b"\1"),
    ],
)
def test_the_binary_header_holds_a_uuid_and_nothing_in_its_padding(field: int, value: bytes) -> None:
    header = newest_valid(forged.with_field(forged.build_area(), field, value))
    with pytest.raises(ProfileViolation) as caught:
        audit(header, FORMAT_1)
    assert caught.value.rule == "header-binary"


def test_the_part_of_the_checksum_field_that_no_checksum_covers_is_checked() -> None:
    area = bytearray(forged.build_area())
    area[forged.CHECKSUM_FIELD + 63] = 1
    with pytest.raises(ProfileViolation, match="header-binary"):
        audit(newest_valid(bytes(area)), FORMAT_1)


def test_other_checksums_and_metadata_sizes_are_refused() -> None:
    with pytest.raises(ProfileViolation, match=r"header-binary.*sha512"):
        audit(newest_valid(forged.build_area(checksum="sha512")), FORMAT_1)
    document = forged.metadata()
    document["config"]["json_size"] = str(32768 - 4096)
    document["keyslots"]["0"]["area"]["offset"] = "65536"
    header = newest_valid(forged.build_area(document, size=32768))
    with pytest.raises(ProfileViolation, match=r"header-binary.*32768"):
        audit(header, FORMAT_1)
    assert audit(header, FOREIGN).header_image_bytes == 65536 + 1048576


def test_a_member_written_twice_is_refused() -> None:
    text = forged.json_text(forged.metadata()).replace(b'"type":"crypt"', b'"type":"linear","type":"crypt"')
    with pytest.raises(ProfileViolation) as caught:
        audit(newest_valid(forged.build_area(text)), FORMAT_1)
    assert caught.value.rule == "header-duplicate-member"


def test_copies_that_differ_are_refused() -> None:
    area = forged.build_area()
    require_equal_copies(area)
    for different in (
        forged.with_field(area, forged.SEQUENCE_FIELD, b"\0\0\0\0\0\0\0\x09", copies=(1,)),
        forged.with_field(area, forged.LABEL_FIELD, b"x", copies=(0,)),
        forged.forge(area, SECOND_KEYSLOT, copies=(1,)),
        forged.with_json(area, forged.json_text(forged.metadata()) + b"\n", copies=(0,)),
        bytes(4096) + area[4096:],
        area[:20000] + b"\1" + area[20001:],
    ):
        with pytest.raises(ProfileViolation) as caught:
            require_equal_copies(different)
        assert caught.value.rule == "header-copies"


def test_what_foreign_lets_through_and_format_1_does_not() -> None:
    for edit in (
        change("keyslots.0.kdf", ARGON2),
        change("keyslots.0.kdf", {**ARGON2, "type": "argon2i", "memory": 32}),
        change("keyslots.0.kdf.hash", "sha512"),
        change("keyslots.0.kdf.iterations", 5_000_000),
        change("keyslots.0.af.hash", "sha512"),
        change("keyslots.0.area.key_size", 32),
        change("keyslots.0.key_size", 32),
        change("keyslots.0.priority", 2),
        change("digests.0.iterations", 500_000),
        both(change("digests.0.hash", "sha512"), change("digests.0.digest", forged.encoded("digest", 64))),
        change("segments.0.sector_size", 512),
        change("segments.0.offset", "16777216"),
        both(change("config.keyslots_size", "16744448"), change("segments.0.offset", "16777216")),
    ):
        header = parsed(edit)
        assert audit(header, FOREIGN)
        with pytest.raises(ProfileViolation):
            audit(header, FORMAT_1)


@pytest.mark.parametrize(
    "edit",
    [
        change("keyslots.0.kdf", {**ARGON2, "memory": 1048577}),
        change("keyslots.0.kdf", {**ARGON2, "memory": 1}),
        change("keyslots.0.kdf", {**ARGON2, "time": 0}),
        change("keyslots.0.kdf", {**ARGON2, "time": 65}),
        change("keyslots.0.kdf", {**ARGON2, "cpus": 5}),
        change("keyslots.0.kdf", {**ARGON2, "type": "argon2d"}),
        change("keyslots.0.kdf.iterations", 20_000_001),
        change("segments.0.sector_size", 8192),
        change("segments.0.offset", str(128 * 1024 * 1024)),
        change("segments.0.offset", "0"),
        change("segments.0.offset", "4194816"),
        change("keyslots.0.key_size", 16),
        change("keyslots.0.priority", 3),
        forged.null_segment,
        forged.null_keyslots,
    ],
)
def test_foreign_has_bounds_too(edit: Edit) -> None:
    with pytest.raises(ProfileViolation):
        audit(parsed(edit), FOREIGN)


def test_keyslots_are_limited_in_number_and_hold_one_size_of_key() -> None:
    assert audit(newest_valid(forged.build_area(forged.metadata(4))), FORMAT_1).keyslot_ids == (0, 1, 2, 3)
    document = forged.metadata(9)
    document["config"]["keyslots_size"] = str(9 * 258048 // 4096 * 4096)
    for profile in (FORMAT_1, FOREIGN):
        with pytest.raises(ProfileViolation):
            audit(newest_valid(forged.build_area(document)), profile)
    mixed = parsed(both(SECOND_KEYSLOT, change("keyslots.1.key_size", 32)))
    with pytest.raises(ProfileViolation, match="different sizes"):
        audit(mixed, FOREIGN)


def test_every_rule_is_documented_and_reached() -> None:
    elsewhere = {"header-binary", "header-copies", "header-duplicate-member"}
    assert set(RULES) == {rule for rule, _ in REFUSED} | elsewhere
    assert all(RULES.values())


@pytest.mark.parametrize("profile", [FORMAT_1, FOREIGN])
def test_profiles_bound_what_an_unlock_costs(profile: Profile) -> None:
    """Every keyslot may be tried: rounds of hashing and memory stay within what a pod start can wait for."""
    assert profile.max_keyslots * profile.pbkdf2_iterations.high <= 160_000_000
    if profile.argon2 is not None:
        assert profile.argon2.memory_kib.high == 1024 * 1024
