"""What a check is, and what it can say."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from cli.scene import Scene, Skipped


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    """It looked, and found nothing."""
    WARN = "warn"
    """Something that works now, and will hurt or should be known."""
    FAIL = "fail"
    """Something that does not work, or loses or exposes data."""
    SKIPPED = "skipped"
    """It did not look, and says why: nothing follows from it."""


@dataclass(frozen=True)
class Finding:
    """One thing that a check saw. ``fix`` is what to do; empty for what needs nothing."""

    verdict: Verdict
    saw: str
    fix: str = ""

    @classmethod
    def skipped(cls, why: str) -> Self:
        """Of a check that looked at some things, but not at this one."""
        return cls(Verdict.SKIPPED, why)


@dataclass(frozen=True)
class Result:
    """A finding, with the check it comes from."""

    check: str
    verdict: Verdict
    saw: str
    fix: str


@dataclass(frozen=True)
class Check:
    """One row of the table. ``run`` returns at least one finding, or raises :class:`Skipped`."""

    id: str
    meaning: str
    run: Callable[[Scene], Iterable[Finding]]


def ok(saw: str) -> Finding:
    """It is as it should be; ``saw`` says what was looked at."""
    return Finding(Verdict.OK, saw)


def warn(saw: str, fix: str) -> Finding:
    """See :attr:`Verdict.WARN`."""
    return Finding(Verdict.WARN, saw, fix)


def fail(saw: str, fix: str) -> Finding:
    """See :attr:`Verdict.FAIL`."""
    return Finding(Verdict.FAIL, saw, fix)


def run(check: Check, scene: Scene) -> list[Result]:
    """What ``check`` finds; a failure of its own is told as one, and never as "ok"."""
    try:
        found = list(check.run(scene))
    except Skipped as skipped:
        found = [Finding.skipped(str(skipped))]
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        found = [Finding.skipped(f"the system does not let it look: {where}{error.strerror}")]
    except Exception as error:  # an object that nobody foresaw must not hide what the other checks see
        *_, last = traceback.extract_tb(error.__traceback__)
        where = f"{Path(last.filename).name}:{last.lineno}"
        found = [
            fail(
                f"the check itself failed, and saw nothing: {type(error).__name__} at {where}",
                "please report it, with the object that it was about",
            )
        ]
    if not found:
        raise AssertionError(f"the check {check.id} says nothing")
    return [Result(check.id, one.verdict, one.saw, one.fix) for one in found]
