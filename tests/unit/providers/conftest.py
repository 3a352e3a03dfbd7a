"""File systems of chosen kinds, mounted for one test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def _mounted(directory: Path, *arguments: str) -> Iterator[Path]:
    directory.mkdir()
    subprocess.run(["mount", *arguments, str(directory)], check=True, timeout=120)
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True, timeout=120)


@pytest.fixture
def small_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system of 8 MiB."""
    with _mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=8M", "tmpfs") as directory:
        yield directory


@pytest.fixture
def reflink_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system that can share blocks between files."""
    image = tmp_path / "xfs.img"
    with image.open("wb") as file:
        file.truncate(512 * 1024**2)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True, timeout=240)
    with _mounted(tmp_path / "reflink", "-o", "loop", str(image)) as directory:
        yield directory
