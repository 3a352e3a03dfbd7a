"""The demo's searches find what they are meant to find, so that finding nothing means something."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.demo.scan import contains, files_changed_since, process_leaks, spellings

SECRET = bytes(range(7, 39))


@pytest.mark.parametrize("spelling", range(len(spellings(SECRET))))
def test_a_secret_is_found_in_every_spelling(tmp_path: Path, spelling: int) -> None:
    file = tmp_path / "leak"
    file.write_bytes(b"x" * 1000 + spellings(SECRET)[spelling] + b"y" * 10)
    assert contains(file, spellings(SECRET))


def test_a_file_without_the_secret_is_clean(tmp_path: Path) -> None:
    file = tmp_path / "clean"
    file.write_bytes(SECRET[:-1] * 1000)
    assert not contains(file, spellings(SECRET))


@pytest.mark.parametrize("offset", [0, 4 * 1024 * 1024 - 5, 60 * 1024 * 1024 + 17])
def test_plaintext_is_found_in_a_sparse_image_also_across_reads(tmp_path: Path, offset: int) -> None:
    image = tmp_path / "disk.raw"
    with image.open("wb") as file:
        os.truncate(file.fileno(), 64 * 1024 * 1024)
        os.pwrite(file.fileno(), b"z" * 100, max(0, offset - 100))
        os.pwrite(file.fileno(), SECRET, offset)
    assert contains(image, [SECRET])
    assert not contains(image, [SECRET[::-1]])


def test_changed_files_are_listed_except_below_excluded_folders(tmp_path: Path) -> None:
    moment = time.time() - 1
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "new").write_text("x")
    (tmp_path / "excluded").mkdir()
    (tmp_path / "excluded" / "new").write_text("x")
    found = set(files_changed_since(moment, [tmp_path / "excluded"]))
    assert tmp_path / "kept" / "new" in found
    assert tmp_path / "excluded" / "new" not in found


def _leaks_of(arguments: list[str], environment: dict[str, str]) -> list[str]:
    """What is found about a process that joins two arguments to bytes and then waits."""
    program = "import sys; kept = bytes.fromhex(sys.argv[1] + sys.argv[2]); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = process_leaks(spellings(SECRET), [process.pid])
        process.kill()
    return [leak.removesuffix(f" of process {process.pid}") for leak in found]


def test_a_secret_in_arguments_environment_or_memory_of_a_process_is_found() -> None:
    text = SECRET.hex()
    halves = [text[:32], text[32:]]
    assert "cmdline" in _leaks_of(["", "", text], {})
    assert "environ" in _leaks_of(["", ""], {"LEAK": text})
    assert _leaks_of(halves, {}) == ["memory"]
    assert _leaks_of(["", ""], {}) == []
