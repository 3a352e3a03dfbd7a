"""What the command exits with (``docs/exit-codes.md``)."""

from __future__ import annotations

from typing import Final

import click

CLEAN: Final = 0
FOUND: Final = 1
UNREADABLE: Final = 2


class CannotWork(click.ClickException):
    """Nothing could be checked: not to be taken for an error in a manifest."""

    exit_code = UNREADABLE
