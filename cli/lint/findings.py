"""What lint has found, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath

from cli.lint.rules import RULES, Rule, Severity


@dataclass(frozen=True, order=True)
class Place:
    """A line of a file, counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{PurePath(self.file) if self.file != '-' else 'stdin'}:{self.line}"


@dataclass(frozen=True)
class Finding:
    """One mistake."""

    place: Place
    rule: Rule
    subject: str
    """The object, as ``StorageClass/fast``; empty for a file as a whole."""
    message: str

    @property
    def sort_key(self) -> tuple[Place, str, str]:
        """By place, then rule."""
        return self.place, self.rule.id, self.message


@dataclass(frozen=True)
class Verdict:
    """What the volumes of a StorageClass of ours will be."""

    place: Place
    name: str
    volumes: str


@dataclass
class Report:
    """Collects findings, each once."""

    findings: dict[Finding, None] = field(default_factory=dict)
    """In the order in which they were found."""
    verdicts: list[Verdict] = field(default_factory=list)
    unchecked: dict[str, None] = field(default_factory=dict)
    """What could not be judged because another object was not given."""
    _wrong: set[tuple[str, str]] = field(default_factory=set)

    def add(self, rule: str, place: Place, subject: str, message: str) -> None:
        """Note a finding of the rule with that id."""
        finding = Finding(place, RULES[rule], subject, message)
        self.findings[finding] = None
        if finding.rule.severity is Severity.ERROR:
            self._wrong.add((subject, place.file))

    def not_checked(self, what: str) -> None:
        """Note that something could not be judged."""
        self.unchecked[what] = None

    def has_error(self, subject: str, file: str) -> bool:
        """Whether an error was found in that object."""
        return (subject, file) in self._wrong

    def sorted(self) -> list[Finding]:
        """The findings by file and line; what one line does to two objects is one of them."""
        once: dict[tuple[Place, str, str], Finding] = {}
        for finding in self.findings:
            once.setdefault(finding.sort_key, finding)
        return [once[key] for key in sorted(once)]

    def count(self, severity: Severity) -> int:
        """How many findings there are of that severity."""
        return sum(finding.rule.severity is severity for finding in self.sorted())
