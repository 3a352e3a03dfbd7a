"""Opening a disk by the name it had when it was found."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.block_device import BLOCK_BYTES, DirectDevice
from agent.errors import Refused

_CONTENT = b"x" * BLOCK_BYTES


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Path]:
    backing = tmp_path / "disk.raw"
    backing.write_bytes(_CONTENT)
    shown = subprocess.run(
        ["losetup", "--find", "--show", backing], check=True, capture_output=True, text=True
    ).stdout.strip()
    yield Path(shown)
    subprocess.run(["losetup", "--detach", shown], check=True)


def number_of(path: Path) -> str:
    device = path.stat().st_rdev
    return f"{os.major(device)}:{os.minor(device)}"


def test_the_disk_that_was_found_is_opened(loop: Path) -> None:
    with DirectDevice(loop, writable=True, exclusive=True, number=number_of(loop)) as device:
        assert device.read(0, BLOCK_BYTES) == _CONTENT


@pytest.mark.parametrize("writable", [False, True])
def test_a_disk_that_took_the_name_of_the_one_that_was_found_is_refused(
    loop: Path, tmp_path: Path, writable: bool
) -> None:
    """The host detached one and attached another between finding and opening."""
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    for exchanged in (loop, tmp_path / "disk.raw"):
        with pytest.raises(Refused, match=rf"\[device-exchanged\] {exchanged} was the device 253:77"):
            DirectDevice(exchanged, writable=writable, exclusive=False, number="253:77")
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    assert (tmp_path / "disk.raw").read_bytes() == _CONTENT
