"""Other people's implementations of what we speak, as programs for tests, built from source."""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

from tests.tools.go_programs import run_go

_HERE = Path(__file__).parent


@cache
def peer_program(name: str) -> Path:
    """The program of the Go module ``tests/peers/<name>``, built into the user's cache when its files change.

    A machine where it can't be built fails the test: a peer is never skipped.
    """
    module = _HERE / name
    digest = hashlib.sha256()
    for source in sorted(module.glob("*")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = root / "confidential-csi" / "peers" / f"{name}-{digest.hexdigest()[:16]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
            built = Path(scratch, name)
            run_go("build", "-mod=readonly", "-buildvcs=false", "-o", built, ".", folder=module)
            built.replace(program)
    return program
