"""Locks that agree with those of the real QEMU. Field case A9."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from providers.errors import InUseError
from providers.local.image_locks import hold_for_copy, hold_for_removal

Hold = Callable[[int], None]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "disk.raw"
    with path.open("wb") as file:
        file.truncate(1024**2)
    return path


@contextmanager
def holding(hold: Hold, image: Path) -> Iterator[None]:
    disk = os.open(image, os.O_RDWR)
    try:
        hold(disk)
        yield
    finally:
        os.close(disk)


@contextmanager
def qemu(image: Path, *options: str) -> Iterator[None]:
    """QEMU's block layer has the image open, as ``qemu-io`` lets one do without a machine."""
    command = ["qemu-io", "-f", "raw", *options, str(image)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"length\n")
        process.stdin.flush()
        assert b"1 MiB" in process.stdout.readline()
        try:
            yield
        finally:
            process.stdin.close()
            process.wait(timeout=30)


def qemu_can_open(image: Path, *options: str) -> bool:
    command = ["qemu-io", "-f", "raw", *options, "-c", "length", str(image)]
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


@pytest.mark.parametrize("hold", [hold_for_copy, hold_for_removal])
def test_a_writing_qemu_is_seen(hold: Hold, image: Path) -> None:
    with qemu(image), pytest.raises(InUseError), holding(hold, image):
        pass
    with holding(hold, image):
        pass


def test_a_reading_qemu_hinders_the_removal_only(image: Path) -> None:
    with qemu(image, "-r"):
        with pytest.raises(InUseError), holding(hold_for_removal, image):
            pass
        with holding(hold_for_copy, image):
            pass


@pytest.mark.parametrize("hold", [hold_for_copy, hold_for_removal])
def test_qemu_can_not_start_to_write_meanwhile(hold: Hold, image: Path) -> None:
    assert qemu_can_open(image)
    with holding(hold, image):
        assert not qemu_can_open(image)
    assert qemu_can_open(image)


def test_qemu_can_read_what_is_being_copied(image: Path) -> None:
    with holding(hold_for_copy, image):
        assert qemu_can_open(image, "-r")


def test_copies_do_not_hinder_each_other_but_the_removal(image: Path) -> None:
    with holding(hold_for_copy, image), holding(hold_for_copy, image):
        with pytest.raises(InUseError), holding(hold_for_removal, image):
            pass
        with holding(hold_for_copy, image):
            pass
    with (
        holding(hold_for_removal, image),
        pytest.raises(InUseError),
        holding(hold_for_copy, image),
    ):
        pass


def test_a_failed_attempt_leaves_no_lock(image: Path) -> None:
    with holding(hold_for_copy, image), pytest.raises(InUseError), holding(hold_for_removal, image):
        pass
    with holding(hold_for_removal, image):
        pass
