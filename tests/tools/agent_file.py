"""The agent as one file, built once in a run of the tests."""

from __future__ import annotations

import atexit
import functools
import tempfile
from pathlib import Path

from deploy.podvm.build_agent import build

#: The machine's own Python, with nothing of the project in its reach.
STOCK_PYTHON = Path("/usr/bin/python3")


@functools.cache
def agent_file() -> Path:
    """The built file."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    file = Path(folder.name) / "confidential-csi-agent"
    build(file, str(STOCK_PYTHON))
    return file
