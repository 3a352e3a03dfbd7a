"""Searches for what must not be there: plaintext on a disk image, a key on the host."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_CHUNK = 4 * 1024 * 1024
#: Not files: kernel interfaces, and devices.
_NOT_FILES = {"/proc", "/sys", "/dev"}


def contains(path: Path, needles: Iterable[bytes]) -> bool:
    """Whether the file holds any of the byte strings; holes of sparse files are passed over."""
    pattern = re.compile(b"|".join(re.escape(needle) for needle in needles))
    overlap = max(len(needle) for needle in needles) - 1
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        position = 0
        while position < size:
            try:
                position = os.lseek(file.fileno(), position, os.SEEK_DATA)
                end = os.lseek(file.fileno(), position, os.SEEK_HOLE)
            except OSError:  # ENXIO: nothing but a hole up to the end
                return False
            tail = b""
            while position < end:
                chunk = os.pread(file.fileno(), min(_CHUNK, end - position), position)
                if not chunk:
                    return False
                if pattern.search(tail + chunk):
                    return True
                tail = chunk[-overlap:]
                position += len(chunk)
    return False


def spellings(secret: bytes) -> list[bytes]:
    """The secret as raw bytes, as hexadecimal, and as base64 in both alphabets."""
    return [
        secret,
        secret.hex().encode(),
        secret.hex().upper().encode(),
        base64.b64encode(secret).rstrip(b"="),
        base64.urlsafe_b64encode(secret).rstrip(b"="),
    ]


def files_changed_since(moment: float, excluded: Iterable[Path]) -> Iterator[Path]:
    """Every regular file of the whole host that was changed at or after ``moment`` (Unix time, seconds)."""
    skip = _NOT_FILES | {str(path) for path in excluded}
    pending = ["/"]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:  # gone, or a folder of another mount that can't be read
            continue
        for entry in entries:
            if entry.path in skip:
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    if max(status.st_mtime, status.st_ctime) >= moment:
                        yield Path(entry.path)
            except OSError:  # gone meanwhile
                continue


def process_leaks(needles: list[bytes], memory_of: Iterable[int]) -> list[str]:
    """Where a needle stands in any process's command line or environment, or in the memory of some."""
    pattern = re.compile(b"|".join(re.escape(needle) for needle in needles))
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        for name in ("cmdline", "environ"):
            try:
                text = (process / name).read_bytes()
            except OSError:  # ended meanwhile
                continue
            if pattern.search(text):
                found.append(f"{name} of process {process.name}")
    found += [f"memory of process {pid}" for pid in memory_of if _in_memory(pid, pattern)]
    return found


def _in_memory(pid: int, pattern: re.Pattern[bytes]) -> bool:
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            addresses, permissions = line.split()[:2]
            if not permissions.startswith("rw"):
                continue
            start, end = (int(address, 16) for address in addresses.split("-"))
            try:
                memory.seek(start)
                if pattern.search(memory.read(end - start)):
                    return True
            except OSError:  # a mapping that can't be read, such as a device's
                continue
    return False
