"""What the demo prints: each step with its time as it goes, and the verdict table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verdict:
    """One line of the table: a claim, whether it held, and what was seen."""

    claim: str
    holds: bool
    evidence: str


@dataclass
class Report:
    """Prints to standard output; times in seconds since it was made."""

    started: float = field(default_factory=time.monotonic)
    verdicts: list[Verdict] = field(default_factory=list)

    def title(self, text: str) -> None:
        """Start a chapter."""
        print(f"\n== {text}", flush=True)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show ``text`` while the block runs, then how long it took."""
        began = time.monotonic()
        print(f"[{began - self.started:6.1f} s] {text} … ", end="", flush=True)
        try:
            yield
        except BaseException:
            print("FAILED", flush=True)
            raise
        print(f"{time.monotonic() - began:.1f} s", flush=True)

    def show(self, text: str) -> None:
        """Print ``text`` indented below the current step."""
        for line in text.splitlines():
            print(f"             {line}", flush=True)

    def verdict(self, claim: str, holds: bool, evidence: str) -> None:
        """Record one line of the table."""
        self.verdicts.append(Verdict(claim, holds, evidence))

    def finish(self) -> int:
        """Print the table; 0 when every line holds, else 1."""
        self.title("Verdict")
        width = max(len(verdict.claim) for verdict in self.verdicts)
        for verdict in self.verdicts:
            print(f"  {'holds ' if verdict.holds else 'FAILS '} {verdict.claim:<{width}}  {verdict.evidence}")
        failed = sum(not verdict.holds for verdict in self.verdicts)
        print(
            f"\n{len(self.verdicts) - failed} of {len(self.verdicts)} hold, "
            f"{time.monotonic() - self.started:.0f} s in all."
        )
        sys.stdout.flush()
        return 1 if failed else 0
