"""``confidential-csi lint`` over 1,000 files of its corpus: ``python -m tests.bench.lint``.

The baseline is what PyYAML alone, with libyaml, takes to load the same files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import yaml

import tests
from tests.bench.table import Row, machine, print_table

FILES = 1000
BUDGET_SECONDS = 5.0

_CORPUS = Path(tests.__file__).parent / "lint" / "corpus"


def many_files(folder: Path) -> list[Path]:
    """:data:`FILES` copies of the corpus' YAML files in ``folder``."""
    sources = sorted(_CORPUS.rglob("*.yaml"))
    copies = [folder / f"{number:04}.yaml" for number in range(FILES)]
    for number, copy in enumerate(copies):
        shutil.copy(sources[number % len(sources)], copy)
    return copies


def main() -> int:
    """Print the table; 1 if the budget is exceeded."""
    with tempfile.TemporaryDirectory() as folder:
        files = many_files(Path(folder))
        start = time.perf_counter()
        for file in files:
            _load(file)
        baseline = time.perf_counter() - start
        command = Path(sys.executable).parent / "confidential-csi"
        start = time.perf_counter()
        finished = subprocess.run([command, "lint", folder], capture_output=True, check=False)
        measured = time.perf_counter() - start
        if finished.returncode != 1:
            raise RuntimeError(f"lint ended with {finished.returncode}: {finished.stderr.decode()[-500:]}")
    print(machine())
    row = Row(f"lint of {FILES} files", measured, "s", BUDGET_SECONDS, baseline)
    print_table([row])
    return 0 if row.holds() else 1


def _load(file: Path) -> None:
    with suppress(yaml.YAMLError):  # some have mistakes
        list(yaml.load_all(file.read_bytes(), Loader=yaml.CSafeLoader))


if __name__ == "__main__":
    sys.exit(main())
