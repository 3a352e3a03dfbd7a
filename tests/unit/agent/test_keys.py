"""How keys are named, and what is taken for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Refused
from agent.keys import fetch_key, key_uri

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "key_paths.json").read_text())
SEGMENT = st.from_regex(r"\A[A-Za-z0-9_-][A-Za-z0-9_.-]{0,20}\Z")


class Broker:
    """Holds one resource under every name, and remembers what was asked for."""

    def __init__(self, resource: bytes) -> None:
        self.resource = resource
        self.asked: list[str] = []

    def get_resource(self, uri: str) -> bytes:
        self.asked.append(uri)
        return self.resource


@pytest.mark.parametrize("key_id", VECTORS["accepted"])
def test_a_key_id_is_three_segments_behind_the_scheme(key_id: str) -> None:
    """Field case J1."""
    assert key_uri(key_id) == "kbs:///" + key_id


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["why"])
def test_any_other_form_is_refused(vector: dict[str, Any]) -> None:
    """Field case J1."""
    with pytest.raises(Refused) as raised:
        key_uri(vector["key_id"])
    assert raised.value.rule == "key-id"
    assert len(str(raised.value).encode()) < 990


def test_a_full_uri_is_refused_with_a_hint() -> None:
    """Field case J1: the scheme is put in front here."""
    with pytest.raises(Refused, match="write only repository/type/tag"):
        key_uri("kbs:///default/key/vol1")


@given(SEGMENT, SEGMENT, SEGMENT)
def test_every_path_of_three_good_segments_is_accepted(repository: str, kind: str, tag: str) -> None:
    assert key_uri(f"{repository}/{kind}/{tag}") == f"kbs:///{repository}/{kind}/{tag}"


@given(st.text(max_size=40))
def test_what_is_accepted_is_plain_ascii_in_three_segments(key_id: str) -> None:
    try:
        uri = key_uri(key_id)
    except Refused:
        return
    segments = uri.removeprefix("kbs:///").split("/")
    assert len(segments) == 3
    assert all(part and part.isascii() and part.isprintable() and part[0] != "." for part in segments)


@given(st.binary(min_size=32, max_size=100))
def test_a_key_stays_as_it_is_byte_for_byte(key: bytes) -> None:
    assert fetch_key(Broker(key), "a/b/c") == key


@pytest.mark.parametrize("key", [b"\n" * 32, b" " * 31 + b"\n", b"\0" * 32, b"\xff" * 32, b"x" * 31 + b"\n"])
def test_blanks_newlines_and_zero_bytes_are_part_of_a_key(key: bytes) -> None:
    broker = Broker(key)
    assert fetch_key(broker, "default/key/vol1") == key
    assert broker.asked == ["kbs:///default/key/vol1"]


@pytest.mark.parametrize("size", [0, 1, 31])
def test_a_key_of_less_than_32_bytes_is_refused_and_not_shown(size: int) -> None:
    with pytest.raises(Refused) as raised:
        fetch_key(Broker(b"S" * size), "default/key/vol1")
    assert raised.value.rule == "key-too-short"
    assert "default/key/vol1" in str(raised.value)
    assert f"{size} bytes" in str(raised.value)
    assert "SS" not in str(raised.value)


def test_a_malformed_id_is_not_even_asked_for() -> None:
    broker = Broker(b"x" * 32)
    with pytest.raises(Refused):
        fetch_key(broker, "default/key/../other")
    assert broker.asked == []
