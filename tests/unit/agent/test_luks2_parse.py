"""Reading LUKS2 header copies: what is taken, what is refused, and that nothing else can happen."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.luks2 import (
    SECONDARY_MAGIC,
    SECONDARY_OFFSETS,
    Header,
    HeaderError,
    newest_valid,
    parse_copy,
    parse_pair,
)
from tests.fakes import luks_headers as forged

Edit = Callable[[forged.Metadata], object]


def test_the_fields_of_both_copies_are_read() -> None:
    area = forged.build_area(label=b"backups", subsystem=b"tests", sequence=7)
    pair = parse_pair(area)
    assert isinstance(pair.primary, Header)
    assert isinstance(pair.secondary, Header)
    primary = pair.primary.binary
    assert (primary.offset, primary.header_offset, primary.version, primary.sequence) == (0, 0, 2, 7)
    assert (primary.label, primary.subsystem, primary.uuid) == ("backups", "tests", forged.UUID)
    assert (primary.header_size_bytes, primary.checksum_algorithm) == (16384, "sha256")
    assert primary.salt == forged.fixed_bytes("primary", 64)
    assert pair.secondary.binary.offset == pair.secondary.binary.header_offset == 16384
    assert pair.secondary.binary.salt == forged.fixed_bytes("secondary", 64)
    assert pair.primary.metadata == pair.secondary.metadata == forged.metadata()
    assert pair.primary.raw + pair.secondary.raw == area
    assert pair.primary.image_bytes == 32768 + 1048576
    assert (pair.primary, pair.secondary) == (parse_copy(area, 0), parse_copy(area, 16384))


@pytest.mark.parametrize("size", SECONDARY_OFFSETS)
def test_the_secondary_copy_is_found_at_every_known_offset(size: int) -> None:
    """Field case I2: the primary is gone, the secondary proves there is a LUKS2 disk."""
    document = forged.metadata()
    document["config"]["json_size"] = str(size - 4096)
    document["keyslots"]["0"]["area"]["offset"] = str(2 * size)
    document["segments"]["0"]["offset"] = str(16 * 1024 * 1024)
    area = forged.build_area(document, size=size)
    area = bytes(4096) + area[4096:]
    pair = parse_pair(area)
    assert isinstance(pair.primary, HeaderError)
    assert isinstance(pair.secondary, Header)
    assert pair.secondary.binary.offset == size
    assert newest_valid(area) == pair.secondary


def test_a_search_names_the_damaged_secondary_copy_rather_than_the_empty_places() -> None:
    area = bytearray(65536)
    area[0x8000:0x8006] = SECONDARY_MAGIC
    error = parse_pair(bytes(area)).secondary
    assert isinstance(error, HeaderError)
    assert error.reason == "LUKS version 0, not 2"


def test_of_two_valid_copies_the_one_with_the_higher_sequence_number_is_used() -> None:
    older, newer = forged.metadata(1), forged.metadata(2)
    area = forged.build_copy(older, sequence=3) + forged.build_copy(newer, secondary=True, sequence=4)
    assert newest_valid(area).metadata == newer
    area = forged.build_copy(newer, sequence=4) + forged.build_copy(older, secondary=True, sequence=3)
    assert newest_valid(area).metadata == newer
    area = forged.build_copy(older, sequence=4) + forged.build_copy(newer, secondary=True, sequence=4)
    assert newest_valid(area).metadata == older


def test_one_valid_copy_is_enough_and_the_other_says_what_is_wrong() -> None:
    area = bytearray(forged.build_area())
    area[5000] ^= 1
    pair = parse_pair(bytes(area))
    assert isinstance(pair.primary, HeaderError)
    assert "checksum" in pair.primary.reason
    assert newest_valid(bytes(area)) == pair.secondary
    area[16384 + 5000] ^= 1
    with pytest.raises(HeaderError, match=r"primary: the checksum .* secondary: "):
        newest_valid(bytes(area))


@pytest.mark.parametrize("version", [1, 3, 512])
def test_a_primary_of_another_luks_version_settles_it(version: int) -> None:
    """cryptsetup does not look at the secondary copy then."""
    area = bytearray(forged.build_area())
    area[6:8] = version.to_bytes(2, "big")
    with pytest.raises(HeaderError, match=f"LUKS version {version}, not 2"):
        newest_valid(bytes(area))
    area[6:8] = bytes(2)
    assert newest_valid(bytes(area)).binary.offset == 16384


def test_a_good_primary_checksum_fixes_the_place_of_the_secondary() -> None:
    """cryptsetup believes the size in a primary with a good checksum even if its JSON is refused."""
    valid = forged.build_area()
    primary = forged.build_copy(b"{}", size=32768)
    area = primary[:16384] + valid[16384:32768]
    assert isinstance(parse_pair(area).secondary, Header)  # checksum broken: search
    area = primary + bytes(65536)
    assert isinstance(parse_pair(area).secondary, HeaderError)


def test_a_device_too_small_for_its_header_is_refused() -> None:
    area = forged.build_area()
    assert newest_valid(area, 32768 + 1048576)
    with pytest.raises(HeaderError, match="takes 1081344 bytes"):
        newest_valid(area, 32768 + 1048575)


@pytest.mark.parametrize("length", [0, 5, 511, 4095, 4096, 16383, 16384, 20000, 32767])
def test_a_short_area_is_an_error_not_a_crash(length: int) -> None:
    area = forged.build_area()[:length]
    pair = parse_pair(area)
    assert isinstance(pair.primary, Header) == (length >= 16384)
    assert isinstance(pair.secondary, HeaderError)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (0, b"LUKS\xba\xbf", "magic"),
        (6, b"\0\x01", "version 1"),
        (8, (8192).to_bytes(8, "big"), "metadata size"),
        (8, (2**63).to_bytes(8, "big"), "metadata size"),
        (8, (32768).to_bytes(8, "big"), "checksum|beyond"),
        (72, b"md5\0\0\0", "unknown checksum algorithm"),
        (72, b"sha512", "checksum"),
        (72, b"sha256\xff", "unknown checksum algorithm"),
        (256, (512).to_bytes(8, "big"), "says it is at 512"),
    ],
)
def test_a_bad_binary_field_is_refused_though_the_checksum_is_good(
    field: int, value: bytes, reason: str
) -> None:
    area = forged.with_field(forged.build_area(), field, value, copies=(0,))
    with pytest.raises(HeaderError, match=reason):
        parse_copy(area, 0)


def test_a_secondary_copy_must_say_its_own_size_and_place() -> None:
    copy = forged.build_copy(forged.metadata(), secondary=True)
    area = bytes(32768) + copy + bytes(32768)
    with pytest.raises(HeaderError, match="says it is at 16384"):
        parse_copy(area, 32768)


def test_strings_end_at_the_first_nul_and_never_fail_to_decode() -> None:
    area = forged.build_area(label=b"a\xff\0b" + b"c" * 44, uuid=b"u" * 40)
    header = newest_valid(area)
    assert header.binary.label == "a\ufffd"
    assert header.binary.uuid == "u" * 39


def _set(*path: str | int, value: Any) -> Edit:
    def edit(document: forged.Metadata) -> None:
        holder: Any = document
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = value

    return edit


def _drop(*path: str) -> Edit:
    def edit(document: forged.Metadata) -> None:
        holder: Any = document
        for step in path[:-1]:
            holder = holder[step]
        del holder[path[-1]]

    return edit


SEGMENT = {"type": "linear", "offset": "4194304", "size": "4096"}
REENCRYPT_SLOT = {
    "type": "reencrypt",
    "key_size": 1,
    "mode": "reencrypt",
    "direction": "forward",
    "area": {"type": "none", "offset": str(32768 + 258048), "size": "4096"},
}


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (_drop("keyslots"), "no dict 'keyslots'"),
        (_drop("tokens"), "no dict 'tokens'"),
        (_drop("segments"), "no dict 'segments'"),
        (_drop("digests"), "no dict 'digests'"),
        (_drop("config"), "no dict 'config'"),
        (_set("keyslots", value=[]), "no dict 'keyslots'"),
        (_set("keyslots", "0", value=None), "refers to '0'"),
        (_set("keyslots", "x", value=forged.keyslot(1)), "not a number"),
        (_set("keyslots", "01", value=forged.keyslot(1)), "not a number"),
        (_set("keyslots", "1", value=forged.keyslot(1)), "exactly one digest"),
        (_set("keyslots", "0", "key_size", value="64"), "no int 'key_size'"),
        (_set("keyslots", "0", "key_size", value=True), "no int 'key_size'"),
        (_set("keyslots", "0", "key_size", value=-1), "out of range"),
        (_set("keyslots", "0", "key_size", value=2**32), "out of range"),
        (_set("keyslots", "0", "area", "offset", value="4096"), "outside the keyslots area"),
        (_set("keyslots", "0", "area", "offset", value="1081344"), "outside the keyslots area"),
        (_set("keyslots", "0", "area", "size", value="0"), "empty or outside"),
        (_set("keyslots", "0", "area", "size", value="99999999999999999999"), "64 bits"),
        (_set("keyslots", "0", "area", "size", value="٤٠٩٦"), "not a decimal number"),
        (_set("keyslots", "0", "area", "size", value="1_000"), "not a decimal number"),
        (_set("keyslots", "0", "area", "type", value="cooked"), "unknown area type"),
        (_set("keyslots", "0", "af", "type", value="none"), "anti-forensic"),
        (_drop("keyslots", "0", "kdf", "salt"), "no str 'salt'"),
        (_set("keyslots", "0", "kdf", "type", value="argon2id"), "no int 'time'"),
        (_set("tokens", "0", value={"type": "t", "keyslots": ["9"]}), "refers to '9'"),
        (_set("tokens", "0", value={"keyslots": []}), "no str 'type'"),
        (_set("digests", "0", "keyslots", value=["1"]), "refers to '1'"),
        (_set("digests", "0", "segments", value=[]), "belongs to no digest"),
        (_set("digests", "0", "segments", value=[0]), "other than strings"),
        (_drop("segments", "0"), "refers to '0'"),
        (_set("segments", "0", "offset", value="1000"), "aligned to 512"),
        (_set("segments", "0", "size", value="0"), "size 0"),
        (_set("segments", "0", "sector_size", value=0), "sector size 0"),
        (_set("segments", "0", "sector_size", value=513), "sector size 513"),
        (_set("segments", "0", "iv_tweak", value="x"), "not a decimal number"),
        (_set("segments", "0", "integrity", value={"type": "hmac"}), "integrity has no"),
        (_set("segments", "0", "flags", value=["backup-x"]), "numbered from 0"),
        (_set("segments", "1", value=SEGMENT), "dynamic size"),
        (_set("segments", "2", value=SEGMENT), "numbered from 0"),
        (_set("config", "json_size", value="28672"), "binary header says"),
        (_set("config", "json_size", value="12289"), "not one that LUKS2 knows"),
        (_set("config", "keyslots_size", value="4095"), "aligned to 4096"),
        (_set("config", "keyslots_size", value="4194304"), "begins inside"),
        (_set("config", "flags", value=[1]), "other than strings"),
        (_set("config", "requirements", value=[]), "no dict 'requirements'"),
        (_set("config", "requirements", value={"mandatory": "x"}), "no list 'mandatory'"),
        (
            _set("config", "requirements", value={"mandatory": ["online-reencrypt", "online-reencrypt-v9"]}),
            "more than one online",
        ),
        (_set("config", "requirements", value={"mandatory": ["online-reencrypt-v2"]}), "backup segment"),
        (_set("keyslots", "1", value=REENCRYPT_SLOT), "without the re-encryption requirement"),
        (_set("keyslots", "1", value={**REENCRYPT_SLOT, "key_size": 2}), "key size other than 1"),
        (_set("keyslots", "1", value={**REENCRYPT_SLOT, "mode": "x"}), "unknown re-encryption mode"),
    ],
)
def test_malformed_metadata_is_refused_though_the_checksum_is_good(edit: Edit, reason: str) -> None:
    with pytest.raises(HeaderError, match=reason):
        parse_copy(forged.forge(forged.build_area(), edit), 0)


def test_overlapping_areas_and_segments_are_refused() -> None:
    document = forged.metadata(2)
    document["keyslots"]["1"]["area"]["offset"] = str(32768 + 258047)
    with pytest.raises(HeaderError, match="areas overlap"):
        parse_copy(forged.build_area(document), 0)
    document = forged.metadata()
    document["segments"]["0"]["size"] = "8192"
    document["segments"]["1"] = {**SEGMENT, "offset": str(4194304 + 4096)}
    with pytest.raises(HeaderError, match="segments overlap"):
        parse_copy(forged.build_area(document), 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "does not start"),
        (b" {}", "does not start"),
        (b"{", "does not parse"),
        (b"{} {}", "does not parse"),
        (b"{}\0x", "other than NUL"),
        (b'{"a":NaN}', "does not parse"),
        (b'{"a":"\xff"}', "does not parse"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"a":"x\\u0000y"}', "NUL character"),
        (b'{"a\\u0000":1}', "NUL character"),
        (b'{"a":99999999999999999999}', "64 bits"),
        (b'{"a":' + b"9" * 5000 + b"}", "does not parse"),
        (b"{" + b'"a":{' * 1500 + b"}" * 1501, "nested|does not parse"),
        (b'{"a":' + b"[" * 12000, "does not parse"),
        (b'{"a":' + b"[" * 40 + b"]" * 40 + b"}", "nested more than 32"),
        (b" " * 12288, "does not start"),
        (b"{" + b" " * 12287, "not terminated"),
    ],
)
def test_text_that_is_not_plain_json_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(HeaderError, match=reason):
        parse_copy(forged.build_area(text), 0)


def test_four_mebibytes_of_hostile_json_cost_little() -> None:
    """Field case I4: 4 MiB JSON."""
    size = 4 * 1024 * 1024
    room = size - 4096 - 64
    for text in (
        b'{"a":[' + b"[]," * (room // 3) + b"[]]}",
        b'{"a":' + b"[" * room,
        b'{"a":"' + b"\\u0041" * (room // 6) + b'"}',
        b'{"a":' + b"1" * room + b"}",
        b"{" + b'"a":1,' * (room // 6) + b'"a":1}',
    ):
        copy = forged.build_copy(text, size=size)
        start = time.process_time()
        with pytest.raises(HeaderError):
            parse_copy(copy, 0)
        assert time.process_time() - start < 2


def test_repeated_members_are_reported_and_the_last_one_counts() -> None:
    text = forged.json_text(forged.metadata()).replace(b'"tokens":{}', b'"tokens":{"x":1},"tokens":{}')
    header = parse_copy(forged.build_area(text), 0)
    assert header.duplicate_members == ("tokens",)
    assert header.metadata == forged.metadata()


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=40_000))
def test_any_bytes_give_two_errors_or_headers(data: bytes) -> None:
    pair = parse_pair(data)
    assert isinstance(pair.primary, HeaderError)
    assert isinstance(pair.secondary, HeaderError)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(
                ["0", "1", "type", "keyslots", "segments", "area", "kdf", "af", "offset", "size", "json_size"]
            )
            | st.text(max_size=8),
            inner,
            max_size=8,
        )
    ),
    max_leaves=40,
)


@settings(max_examples=300, deadline=None)
@given(
    replaced=st.dictionaries(
        st.sampled_from(["keyslots", "tokens", "segments", "digests", "config"]), JSON, min_size=1
    )
)
def test_any_json_gives_a_header_or_an_error(replaced: dict[str, Any]) -> None:
    text = forged.json_text({**forged.metadata(), **replaced})
    if len(text) < 12288:
        pair = parse_pair(forged.build_area(text))
        assert isinstance(pair.primary, HeaderError) == isinstance(pair.secondary, HeaderError)
