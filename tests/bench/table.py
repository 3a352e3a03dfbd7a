"""The table that every benchmark prints."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One figure, with its budget (an upper bound, or a lower one) and its baseline in the same unit."""

    name: str
    measured: float
    unit: str
    budget: float | None
    baseline: float | None = None
    at_least: bool = False

    def holds(self) -> bool:
        """Whether the budget is kept."""
        if self.budget is None:
            return True
        return self.measured >= self.budget if self.at_least else self.measured <= self.budget

    def cells(self) -> tuple[str, ...]:
        """The row as it is printed."""
        ratio = "" if self.baseline is None else f"{self.measured / self.baseline:.2f} x"
        bound = "at least " if self.at_least else ""
        budget = "" if self.budget is None else f"{bound}{self.budget:.4g} {self.unit}"
        verdict = "" if self.budget is None else ("holds" if self.holds() else "EXCEEDED")
        return self.name, f"{self.measured:.2f} {self.unit}", budget, ratio, verdict


def machine() -> str:
    """What it was measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {system}"


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows under their head, in columns."""
    cells = [("", "measured", "budget", "to baseline", ""), *(row.cells() for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
