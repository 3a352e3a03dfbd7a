"""What an inspection finds: facts in sections, statements with their verdict, and what was not looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Value = str | int | bool | None | Sequence[str]


class Verdict(StrEnum):
    """Whether a statement holds."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    """It could not be told, and ``found`` says why."""


@dataclass(frozen=True)
class Statement:
    """One thing that should be true, and what was found."""

    name: str
    demands: str
    verdict: Verdict
    found: str


@dataclass(frozen=True)
class Section:
    """Facts about one object. ``key`` is its name in JSON."""

    key: str
    title: str
    facts: Mapping[str, Value]


@dataclass
class Story:
    """Everything about one argument."""

    kind: str
    """``volume`` or ``image``."""
    subject: str
    sections: list[Section] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    """The rules of the header, for an image."""
    alarms: list[str] = field(default_factory=list)
    """What breaks the promise that the volume is encrypted, intact and where it should be."""
    remarks: list[str] = field(default_factory=list)
    """What a person should know."""
    unseen: list[str] = field(default_factory=list)
    """What could not be looked at from here, and why."""
    conclusion: str = ""
