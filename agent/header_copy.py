"""A LUKS2 header in guest memory, for cryptsetup to work on.

cryptsetup repairs, that is rewrites, what it is given, and reads more than once what the host could change in
between. So it never gets the disk itself. Keys reach it on its standard input, or in a memory file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from agent.commands import Result, Runner
from agent.disk_format import (
    ENCRYPTION_SECTOR_BYTES,
    HEADER_AREA_BYTES,
    IMAGE_BYTES,
    KEYSLOTS_BYTES,
    METADATA_BYTES,
    VOLUME_KEY_BYTES,
)
from agent.luks2_profile import CIPHER

_SECTOR_BYTES: Final = 512
_PBKDF2_ITERATIONS: Final = 1000
#: Unlocking a keyslot that others made may take long; see the profile for foreign volumes.
_UNLOCK_SECONDS: Final = 120.0
_WRONG_KEY: Final = 2
#: Released keys are random, so a keyslot needs no slow key derivation.
_KEYSLOT: Final = (
    *("--hash", "sha256"),
    *("--pbkdf", "pbkdf2"),
    *("--pbkdf-force-iterations", str(_PBKDF2_ITERATIONS)),
)


class HeaderCopy:
    """One header in a memory file; made by ``header_copy``, gone with it.

    Each method raises Unavailable where cryptsetup fails in another way than the method says.
    """

    def __init__(self, runner: Runner, descriptor: int) -> None:
        self._runner = runner
        self._descriptor = descriptor

    def format(self, key: bytes) -> None:
        """Make a new header, with a new volume key and one keyslot, as on-disk format 1 has it."""
        self._cryptsetup(
            [
                "luksFormat",
                *("--type", "luks2"),
                *("--cipher", CIPHER),
                *("--key-size", str(VOLUME_KEY_BYTES * 8)),
                *("--sector-size", str(ENCRYPTION_SECTOR_BYTES)),
                *("--luks2-metadata-size", str(METADATA_BYTES)),
                *("--luks2-keyslots-size", str(KEYSLOTS_BYTES)),
                *("--offset", str(HEADER_AREA_BYTES // _SECTOR_BYTES)),
                *_KEYSLOT,
            ],
            key,
        )

    def opens(self, key: bytes) -> bool:
        """Whether ``key`` opens a keyslot, and that keyslot holds the volume key."""
        result = self._cryptsetup(["open", "--test-passphrase", "--type", "luks2"], key, (0, _WRONG_KEY))
        return result.code == 0

    def add_key(self, known: bytes, new: bytes) -> None:
        """Add a keyslot for ``new``; ``known`` opens the header already."""
        with _memory_file("luks-key", new) as file:
            self._cryptsetup(
                [
                    "luksAddKey",
                    *("--keyslot-cipher", CIPHER),
                    *("--keyslot-key-size", str(VOLUME_KEY_BYTES * 8)),
                    *_KEYSLOT,
                ],
                known,
                new_key=file,
            )

    def remove_key(self, key: bytes) -> None:
        """Remove one keyslot that ``key`` opens, and wipe its area."""
        self._cryptsetup(["luksRemoveKey"], key)

    def image(self) -> bytes:
        """The first ``IMAGE_BYTES``: what a record authenticates."""
        return os.pread(self._descriptor, IMAGE_BYTES, 0)

    def _cryptsetup(
        self, action: list[str], key: bytes, expected: Collection[int] = (0,), new_key: int | None = None
    ) -> Result:
        files = [self._descriptor] if new_key is None else [self._descriptor, new_key]
        return self._runner.run(
            [
                *("cryptsetup", *action, "--batch-mode", "--key-file", "-"),
                *(f"/proc/self/fd/{file}" for file in files),
            ],
            stdin=key,
            expected=expected,
            timeout=_UNLOCK_SECONDS,
            pass_fds=files,
        )


@contextmanager
def header_copy(
    runner: Runner, image: bytes = b"", *, data_offset: int = HEADER_AREA_BYTES
) -> Iterator[HeaderCopy]:
    """A copy of ``image`` in memory (none: to be formatted), of a volume with its data at ``data_offset``."""
    with _memory_file("luks-header", image) as file:
        # cryptsetup wants room for data behind the header; the file stays sparse.
        os.ftruncate(file, data_offset + HEADER_AREA_BYTES)
        yield HeaderCopy(runner, file)


@contextmanager
def _memory_file(name: str, content: bytes) -> Iterator[int]:
    file = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.pwrite(file, content, 0)
        yield file
    finally:
        os.close(file)
