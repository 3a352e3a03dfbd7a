"""``--output``: what people and programs get."""

from __future__ import annotations

import json

import click
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cli.output import OutputFormat, echo_json, echo_table, output_option, printable, table


@click.command()
@output_option
def command(output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        echo_json([{"name": "a", "text": "ü"}])
    else:
        echo_table(("name", "text"), [("a", "first"), ("longer", "second")])


def test_a_table_is_the_default_and_piped_rows_are_one_line_each() -> None:
    result = CliRunner().invoke(command)
    assert result.output == "NAME    TEXT\na       first\nlonger  second\n"


def test_json_is_one_document() -> None:
    result = CliRunner().invoke(command, ["--output", "json"])
    assert json.loads(result.output) == [{"name": "a", "text": "ü"}]
    assert "ü" in result.output


def test_another_format_is_a_usage_error_that_names_both() -> None:
    result = CliRunner().invoke(command, ["-o", "yaml"])
    assert result.exit_code == 2
    assert "'table', 'json'" in result.output


def test_no_rows_are_no_table() -> None:
    assert table(("name", "text"), []) == []


def test_the_last_column_is_wrapped_below_itself() -> None:
    assert table(("a", "b"), [("x", "one two three four five six seven")], width=27) == [
        "A  B",
        "x  one two three four five",
        "   six seven",
    ]


def test_a_long_word_stays_whole() -> None:
    path = "/subscriptions/0a1b2c3d/resourceGroups/" + "x" * 60
    assert table(("a", "b"), [("x", f"see {path}")], width=40)[-1].strip() == path


def test_names_from_files_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc"
    assert table(("a", "b"), [("x\x07", "y\x1b]0;z\n\x9bq")]) == [
        "A      B",
        "x\\x07  y\\x1b]0;z",
        "       \\x9bq",
    ]


@given(st.lists(st.tuples(st.text(max_size=9), st.text(max_size=30)), min_size=1), st.integers(0, 60))
def test_every_line_is_printable_and_columns_are_aligned(rows: list[tuple[str, str]], width: int) -> None:
    lines = table(("first", "second"), rows, width=width)
    assert all(line.isprintable() for line in lines)
    column = lines[0].index("SECOND")
    assert all(line[column - 2 : column].strip() == "" for line in lines)
