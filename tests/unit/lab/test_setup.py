"""The set-up of a machine that has nothing yet, with stand-ins for Debian's tools."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_SETUP = Path(__file__).parents[2] / "lab" / "setup.sh"

#: What each tool does, in shell; all packages count as installed, and a download is an empty file.
_TOOLS = {
    "dpkg-query": 'shift 3; for name; do echo "$name installed"; done',
    "apt-cache": 'case $1 in policy) echo " Candidate: 1";; depends) echo " Depends: linux-image-9.8";; esac',
    "apt-get": '[ "$1" = download ] && : >"${!#}.deb"',
    "dpkg": 'mkdir -p "$3/boot" "$3/lib/modules/9.8" "$3/usr/bin" && : >"$3/usr/bin/prometheus"',
    "depmod": "exit 0",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, script in _TOOLS.items():
        (tools / name).write_text(f"#!/bin/bash\n{script}\n")
        (tools / name).chmod(0o755)
    return {"PATH": f"{tools}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_a_machine_without_a_cache_is_set_up_in_one_run(tmp_path: Path, environment: dict[str, str]) -> None:
    """The kernel and Prometheus share a lock: taking it twice in one process would wait for ever."""
    done = subprocess.run(
        [_SETUP], env=environment, timeout=240, check=True, stdout=subprocess.PIPE, text=True
    )
    cache = tmp_path / "cache" / "confidential-csi"
    assert (cache / "kernel" / "version").read_text() == "9.8\n"
    assert (cache / "prometheus" / "prometheus").exists()
    assert sorted(path.name for path in cache.iterdir()) == ["kernel", "lock", "prometheus"]
    assert done.stdout.count("downloading") == 2

    again = subprocess.run(
        [_SETUP], env=environment, timeout=240, check=True, stdout=subprocess.PIPE, text=True
    )
    assert again.stdout == ""


def test_a_failed_download_leaves_nothing_half_done(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "tools" / "dpkg").write_text('#!/bin/bash\nmkdir -p "$3/boot"\nexit 1\n')
    done = subprocess.run([_SETUP], env=environment, timeout=240, check=False, capture_output=True)
    assert done.returncode != 0
    assert [path.name for path in (tmp_path / "cache" / "confidential-csi").iterdir()] == ["lock"]


def test_what_a_killed_run_left_goes_and_a_download_that_fails_once_is_made_again(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    cache = tmp_path / "cache" / "confidential-csi"
    for name in ("kernel.aBc123", "prometheus.aBc123"):
        (cache / name / "tree").mkdir(parents=True)
    once = (
        '[ "$1" = download ] || exit 0; [ -e "$0.failed" ] || { touch "$0.failed"; exit 1; }; : >"${!#}.deb"'
    )
    (tmp_path / "tools" / "apt-get").write_text(f"#!/bin/bash\n{once}\n")
    subprocess.run([_SETUP], env=environment, timeout=240, check=True, capture_output=True)
    assert sorted(path.name for path in cache.iterdir()) == ["kernel", "lock", "prometheus"]
