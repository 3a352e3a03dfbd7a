"""A process of the driver leaves nothing in a core dump."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tools.driver_process import running


@pytest.mark.parametrize(
    ("role", "options"), [("controller", ("--provider=local",)), ("node", ("--node-id=n",))]
)
def test_core_dumps_are_off(role: str, options: tuple[str, ...], tmp_path: Path) -> None:
    settings = {"CONFIDENTIAL_CSI_LOCAL_DIRECTORY": str(tmp_path)}
    with running(role, tmp_path, *options, env=settings) as process:
        proc = Path(f"/proc/{process.process.pid}")
        limits = (proc / "limits").read_text()
        assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE)
        assert int((proc / "coredump_filter").read_text(), 16) == 0
