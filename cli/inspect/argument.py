"""What the argument of ``inspect`` means, by its form alone; what could mean two things is refused."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import click

from driver.mountinfo import FILE_NAME

#: ``namespace/name``, as Kubernetes allows them.
_CLAIM: Final = re.compile(
    r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?", re.ASCII
)
_PATH_PREFIXES: Final = ("/", "./", "../")


class Kind(StrEnum):
    """The values of ``--as``."""

    CLAIM = "claim"
    VOLUME = "volume"
    RECORD = "record"
    IMAGE = "image"


@dataclass(frozen=True)
class Subject:
    """What is to be inspected."""

    kind: Kind
    text: str

    @property
    def path(self) -> Path:
        """Of a record or an image."""
        return Path(self.text)


def understand(text: str, wanted: Kind | None = None) -> Subject:
    """The subject that ``text`` names.

    A path that is absolute, or begins with ``./`` or ``../``, is a record if it is a directory (it must hold
    ``mountInfo.json``), else an image. Anything else is a claim if it has the form ``namespace/name``, which
    has no colon, else a volume id. If a file of that name exists here, it is refused: it could be both.

    Raises:
        click.UsageError: it could mean two things, or nothing.
    """
    if wanted is not None:
        return Subject(wanted, text)
    if text.startswith(_PATH_PREFIXES):
        return _place(text)
    if not text or not text.isprintable():
        raise click.UsageError("the argument is empty, or no text: give a claim, a volume id, or a path")
    kind = Kind.CLAIM if _CLAIM.fullmatch(text) else Kind.VOLUME
    if Path(text).exists():
        raise click.UsageError(
            f"{text} can be a {kind.value} and a file here: write ./{text} for the file, or --as {kind.value}"
        )
    return Subject(kind, text)


def _place(text: str) -> Subject:
    path = Path(text)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise click.UsageError(f"{text}: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        if not (path / FILE_NAME).exists():
            raise click.UsageError(f"{text} is a directory without {FILE_NAME}: no record of a volume")
        return Subject(Kind.RECORD, text)
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        raise click.UsageError(f"{text} is neither a file, a block device nor a directory")
    return Subject(Kind.IMAGE, text)
