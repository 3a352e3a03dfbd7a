"""The agent as one file, built once in a run of the tests."""

from __future__ import annotations

import atexit
import functools
import tempfile
from pathlib import Path

from deploy.podvm.build_agent import CHECKOUT, build

#: The machine's own Python, with nothing of the project in its reach.
STOCK_PYTHON = Path("/usr/bin/python3")


@functools.cache
def agent_file() -> Path:
    """The built file, where a guest sees it too: in the checkout, until the end of the run."""
    scratch = CHECKOUT / "build"
    scratch.mkdir(exist_ok=True)
    folder = tempfile.TemporaryDirectory(dir=scratch)
    atexit.register(folder.cleanup)
    file = Path(folder.name) / "confidential-csi-agent"
    build(file, str(STOCK_PYTHON))
    return file
