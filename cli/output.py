"""How commands print what they found: as a table for people, or as JSON for programs (``--output``)."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

#: A last column that is narrower than this is not worth wrapping.
_LEAST_WIDTH: Final = 24
_GAP: Final = "  "


class OutputFormat(StrEnum):
    """The values of ``--output``."""

    TABLE = "table"
    JSON = "json"


def output_option(command: Command) -> Command:
    """Gives a command the option ``--output``, whose :class:`OutputFormat` is its argument ``output``."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice([one.value for one in OutputFormat]),
        default=OutputFormat.TABLE.value,
        show_default=True,
        callback=lambda _context, _parameter, value: OutputFormat(value),
        help="A table for people, or JSON for programs.",
    )(command)


def echo_json(document: object) -> None:
    """Print what :mod:`json` can encode, with keys in the order given; what can't be shown is escaped."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    click.echo("".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text))


def echo_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> None:
    """Print :func:`table` if there are rows; else nothing."""
    for line in table(columns, rows, width=_terminal_width() if width is None else width):
        click.echo(line)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = 0) -> list[str]:
    """The lines of a table, columns aligned, without spaces at their ends.

    Args:
        columns: headings, shown in upper case.
        rows: cells; a line break in the last one goes on below it.
        width: characters of a line, to which the last column is wrapped; 0: it is not.
    """
    if not rows:
        return []
    cells = [
        [heading.upper() for heading in columns],
        *([*map(printable, row[:-1]), row[-1]] for row in rows),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(columns) - 1)]
    indent = sum(widths) + len(_GAP) * len(widths)
    lines = []
    for row in cells:
        start = _GAP.join([*(cell.ljust(size) for cell, size in zip(row[:-1], widths, strict=True)), ""])
        for part in _wrapped(row[-1], width - indent):
            lines.append((start + part).rstrip())
            start = " " * indent
    return lines


def printable(text: str) -> str:
    """``text`` on one line and with no control characters: a name from a file can't steer the terminal."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _wrapped(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for line in map(printable, text.split("\n")):
        if width < _LEAST_WIDTH:
            lines.append(line)
        else:
            # Names, paths and commands stay whole: they are copied from here.
            lines += textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
    return lines


def _terminal_width() -> int:
    """Of a terminal; 0 otherwise, so that each row of a piped table is one line."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return 0
    return shutil.get_terminal_size().columns
