"""Options whose value is one of many names; another one is answered with those that may be meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Given = str | tuple[str, ...] | None


def known_name_option(
    *declarations: str, names: Collection[str], what: str, page: str, **settings: Any
) -> Callable[[_Command], _Command]:
    """As :func:`click.option`, with ``names`` for values; each is a ``what``, and ``page`` lists them."""

    def check(_context: click.Context, _parameter: click.Parameter, value: _Given) -> _Given:
        given = (value,) if isinstance(value, str) else value or ()
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            raise click.BadParameter(f"there is no {what} {unknown[:60]!r}; {_hint(unknown, names, page)}")
        return value

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        return sorted(name for name in names if name.startswith(incomplete))

    return click.option(*declarations, callback=check, shell_complete=complete, **settings)


def _hint(name: str, names: Collection[str], page: str) -> str:
    alike = [one for one in sorted(names) if name and name in one]
    alike = alike or difflib.get_close_matches(name[:60], sorted(names))
    return f"did you mean {' or '.join(alike[:3])}?" if alike else f"{page} lists them"
