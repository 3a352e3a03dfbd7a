"""YAML with lines: what PyYAML reads, and nothing that a file could do to the reader."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cli.lint import yaml_reader
from cli.lint.located import Block, Items
from cli.lint.yaml_reader import MAXIMUM_BYTES, MAXIMUM_DEPTH, read_documents

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)


def _values(keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=20,
    )


def read(text: str | bytes) -> tuple[list[Any], list[tuple[str, int]]]:
    notes: list[tuple[str, int]] = []
    encoded = text.encode() if isinstance(text, str) else text
    documents = list(read_documents(encoded, "file", lambda rule, line, _message: notes.append((rule, line))))
    return documents, notes


@given(st.lists(_values(st.text(max_size=6)), min_size=1, max_size=3))
def test_documents_are_what_the_library_reads(values: list[Any]) -> None:
    text = yaml.safe_dump_all(values, allow_unicode=True)
    documents, notes = read(text)
    assert notes == []
    assert documents == list(yaml.safe_load_all(text))


# Of a key on several lines, the first would be told.
@given(_values(st.from_regex("[a-z]{1,8}", fullmatch=True)))
def test_every_key_is_on_the_line_that_is_told(value: Any) -> None:
    text = yaml.safe_dump(value, default_flow_style=False, allow_unicode=False, width=10**6)
    lines = text.split("\n")
    ((document,), _) = read(text)

    def look(one: Any) -> None:
        if isinstance(one, Block):
            for key, inner in one.items():
                shown = yaml.safe_dump(key, allow_unicode=False, width=10**6).removesuffix("\n...\n").strip()
                assert shown in lines[one.key_lines[key] - 1]
                look(inner)
        if isinstance(one, Items):
            assert len(one.lines) == len(one)
            for inner in one:
                look(inner)

    look(document)


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_any_bytes_are_read_or_noted(text: bytes) -> None:
    documents, notes = read(text)
    assert isinstance(documents, list)
    lines = len(text.splitlines()) + 1
    assert all(1 <= line <= lines for _, line in notes)


@given(st.lists(st.sampled_from(list("{}[]:-,&*a!|>?#\"' \n\t%<")), max_size=40).map("".join))
def test_any_syntax_is_read_or_noted(text: str) -> None:
    read(text)


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "\n".join(" " * n + "a:" for n in range(999))]
)
def test_deep_nesting_ends_at_a_limit(text: str, loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_reader, "_LOADER", getattr(yaml, loader))
    _, notes = read(text)
    assert notes
    assert notes[0][0] in ("yaml-limit", "yaml-syntax")


def test_nesting_as_deep_as_the_limit_is_read() -> None:
    documents, notes = read("[" * MAXIMUM_DEPTH + "]" * MAXIMUM_DEPTH)
    assert notes == []
    assert documents


def test_a_large_file_is_not_read() -> None:
    assert read(b"a: b\n" * (MAXIMUM_BYTES // 5 + 1)) == ([], [("yaml-limit", 1)])


def test_aliases_share_one_object_and_cost_what_they_stand_for() -> None:
    documents, notes = read("a: &a {x: [1, 2]}\nb: *a\nc: [*a, *a]\n")
    assert notes == []
    (document,) = documents
    assert document["b"] is document["a"]
    assert document["c"] == [{"x": [1, 2]}, {"x": [1, 2]}]


def test_merged_keys_keep_their_lines_and_lose_to_the_mapping_s_own() -> None:
    (document,), notes = read("a: &a {x: 1, y: 2}\nb: &b\n  z: 3\nc:\n  <<: [*a, *b]\n  y: 4\n")
    assert notes == []
    assert document["c"] == {"x": 1, "y": 4, "z": 3}
    assert document["c"].key_lines == {"y": 6, "x": 1, "z": 3}


def test_the_documents_before_a_mistake_are_read() -> None:
    documents, notes = read("a: 1\n---\nb: [\n---\nc: 3\n")
    assert documents == [{"a": 1}]
    assert [rule for rule, _ in notes] == ["yaml-syntax"]


def test_a_message_never_quotes_the_file() -> None:
    messages: list[str] = []
    for text in ("password: hunter2\n\tx: y\n", "password: 'hunter2\n", "password: hunter2: b\n", "*hunter2"):
        list(read_documents(text.encode(), "file", lambda _rule, _line, message: messages.append(message)))
    assert len(messages) == 4
    assert not [message for message in messages[:3] if "hunter2" in message]


@pytest.mark.parametrize(
    "number", ["9" * 5000, f"0x{'f' * 5000}", f"1{':1' * 100_000}", f"1{':1' * 300}.5", f"-0b{'1' * 20_000}"]
)
def test_a_number_that_nothing_could_print_is_a_number_still(number: str) -> None:
    """Python refuses to print, and takes minutes to compute, what no field of Kubernetes takes."""
    assert read(f"a: {number}") == ([{"a": math.inf}], [])


def test_each_document_may_begin_with_a_byte_order_mark_and_lines_may_end_as_on_windows() -> None:
    text = "\ufeffa: 1\r\n---\r\n\ufeffb: 2\r\n--- # c\r\n- \ufeff"
    documents, notes = read(text)
    assert documents == [{"a": 1}, {"b": 2}, ["\ufeff"]]
    assert notes == []
    assert documents[1].key_lines == {"b": 3}


@pytest.mark.parametrize(
    ("text", "rule", "line"),
    [
        ("{{- if .Values.x }}\na: 1\n", "yaml-template", 1),
        ("a: 1\nb:\n  {{- toYaml .x | nindent 2 }}\nc: 2\n", "yaml-template", 3),
        ("# {{ x }}\na: [\n", "yaml-syntax", 2),
        ('summary: "{{ $labels.instance }}"\nb: 1\nc: 2\nd: [\n', "yaml-syntax", 4),
    ],
)
def test_braces_in_a_text_further_up_are_no_excuse(text: str, rule: str, line: int) -> None:
    """A template is a warning, a file that can't be read an error."""
    assert read(text)[1] == [(rule, line)]
