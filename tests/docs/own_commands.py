"""Reads command lines of this project with the parsers of its own commands."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from agent.__main__ import command_line
from cli.main import main


class WrongCommand(Exception):
    """A command line of a page that can't be right."""


def check_driver(arguments: Sequence[str], _directory: Path | None) -> None:
    """``confidential-csi`` has the command, and it the options and arguments."""
    command, context, rest = driver_command(arguments)
    if "--help" in rest or "--version" in rest:
        return
    try:
        given, positional, _ = command.make_parser(context).parse_args(list(rest))
    except click.UsageError as error:
        raise WrongCommand(f"confidential-csi {' '.join(arguments)}: {error.format_message()}") from None
    missing = [p.name for p in command.params if p.required and given.get(str(p.name)) in (None, (), [])]
    if missing or positional:
        raise WrongCommand(f"confidential-csi {' '.join(arguments)}: misses {missing}, too much {positional}")


def driver_command(arguments: Sequence[str]) -> tuple[click.Command, click.Context, Sequence[str]]:
    """The command that ``arguments`` name, its context, and what of them follows its name.

    Raises:
        WrongCommand: there is no such command.
    """
    command: click.Command = main
    context = click.Context(main, info_name="confidential-csi")
    rest = list(arguments)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        below = command.get_command(context, name)
        if below is None:
            raise WrongCommand(f"{context.command_path} has no command {name}")
        context = click.Context(below, parent=context, info_name=name)
        command = below
    return command, context, rest


def check_agent(arguments: Sequence[str], _directory: Path | None) -> None:
    """``confidential-csi-agent`` takes the command line."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(sys.stdout):
        try:
            command_line().parse_args(arguments)
        except SystemExit as end:
            if end.code:
                raise WrongCommand(printed.getvalue()) from None
