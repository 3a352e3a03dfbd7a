"""The cloud_volumes annotation: one meaning, or refused by the right rule."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.annotation import MAX_ANNOTATION, parse_annotation
from agent.errors import Refused

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "annotations.json").read_text())


def named(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def annotation(**changes: str) -> str:
    volume = {
        "mount_point": "/data",
        "fs_type": "ext4",
        "lun": "0",
        "disk_id": "d",
        "encrypt_type": "luks2",
        "key_id": "a/b/c",
    }
    return json.dumps({"vol-0": volume | changes})


@pytest.mark.parametrize("vector", VECTORS["accepted"], ids=named)
def test_volumes_are_read_as_they_are_written(vector: dict[str, Any]) -> None:
    for text in (vector["annotation"], vector["annotation"].encode()):
        volumes = parse_annotation(text)
        assert [asdict(one) | {"serial": one.serial} for one in volumes] == vector["volumes"]


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=named)
def test_what_breaks_a_rule_is_refused_by_that_rule(vector: dict[str, Any]) -> None:
    """Field case L3 (the guest's side): nothing is mounted in the clear because a field is absent."""
    with pytest.raises(Refused) as raised:
        parse_annotation(vector["annotation"])
    assert raised.value.rule == vector["rule"]
    assert len(str(raised.value).encode()) < 990


def test_names_in_the_guest_follow_the_index() -> None:
    (volume,) = parse_annotation(annotation().replace("vol-0", "vol-7"))
    assert volume.name == "vol-7"
    assert volume.mount_directory == "/run/cloud-volumes/vol-7"
    assert volume.mapper_name == "caa-vol-7"


def test_the_serial_is_the_beginning_of_the_disk_ids_hash() -> None:
    """printf d | sha256sum"""
    (volume,) = parse_annotation(annotation())
    assert volume.serial == "18ac3e7343f016890c51"


@pytest.mark.parametrize("depth", [200, 10_000, MAX_ANNOTATION // 2])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_refused_not_a_crash(depth: int, opening: str) -> None:
    text = (opening * depth)[: MAX_ANNOTATION - 10]
    for candidate in (text, '{"vol-0":' + text):
        with pytest.raises(Refused) as raised:
            parse_annotation(candidate)
        assert raised.value.rule == "annotation-malformed"


def test_valid_json_of_absurd_depth_is_refused_too() -> None:
    with pytest.raises(Refused) as raised:
        parse_annotation('{"vol-0":' + "[" * 30_000 + "]" * 30_000 + "}")
    assert raised.value.rule in {"annotation-malformed", "annotation-volume"}


def test_a_number_of_absurd_length_is_refused() -> None:
    with pytest.raises(Refused) as raised:
        parse_annotation('{"vol-0":' + "9" * 60_000 + "}")
    assert raised.value.rule == "annotation-malformed"


def test_the_size_is_bounded_exactly() -> None:
    text = annotation()
    padded = text + " " * (MAX_ANNOTATION - len(text))
    assert len(parse_annotation(padded)) == 1
    with pytest.raises(Refused, match="65537"):
        parse_annotation(padded + " ")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_only_utf_8_is_read(encoding: str) -> None:
    with pytest.raises(Refused) as raised:
        parse_annotation(annotation(disk_id="é").replace("\\u00e9", "é").encode(encoding))
    assert raised.value.rule == "annotation-malformed"


def test_lone_surrogates_in_the_text_are_refused() -> None:
    with pytest.raises(Refused):
        parse_annotation(annotation().replace("/data", "/\udcff"))


def test_messages_show_little_of_the_hosts_text_and_no_control_characters() -> None:
    with pytest.raises(Refused) as raised:
        parse_annotation(annotation(fs_type="\x1b[31m\n" + "A" * 5000))
    assert "\x1b" not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
near_volumes = st.dictionaries(
    st.sampled_from(
        ["mount_point", "fs_type", "lun", "disk_id", "fs_group", "encrypt_type", "key_id", "other"]
    ),
    st.sampled_from(["/data", "/etc", "ext4", "0", "d", "luks2", "a/b/c", ""]) | json_values,
)


@given(
    st.binary(max_size=200)
    | st.text(max_size=200)
    | st.dictionaries(st.sampled_from(["vol-0", "vol-1", "vol-01", "x"]), near_volumes | json_values).map(
        json.dumps
    )
)
@example(b"\xff")
@example("\ud800")
@example(json.dumps({"\U0001f512" * 300: {}}))
@example(json.dumps({"vol-0": {"mount_point": "\U0001f512" * 300, "fs_type": "ext4", "disk_id": "d"}}))
def test_anything_is_parsed_or_refused(text: str | bytes) -> None:
    try:
        volumes = parse_annotation(text)
    except Refused as refusal:
        assert len(str(refusal).encode()) < 990
    else:
        assert all(one.encrypt_type in {"luks", "luks2"} and one.key_id for one in volumes)


@given(st.text(max_size=60).map(lambda tail: "/" + tail) | st.text(max_size=60))
@example("/data/")
def test_an_accepted_mount_point_is_its_own_normal_form(path: str) -> None:
    try:
        (volume,) = parse_annotation(annotation(mount_point=path))
    except Refused:
        return
    assert volume.mount_point == path.removesuffix("/"), "a slash at the end is left out"
    parts = volume.mount_point.split("/")
    assert parts[0] == ""
    assert all(part not in {"", ".", ".."} for part in parts[1:])
    assert parts[1] not in {"proc", "sys", "dev", "run", "bin", "sbin", "lib", "lib64", "boot"}
