"""The ext4 filesystem on an open volume: making, checking, growing, mounting it.

The superblock is read as the kernel's documentation has it ("ext4 super block").
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from agent import mount_calls
from agent.commands import Runner
from agent.errors import Refused, Unavailable

_MOUNT_FLAGS = mount_calls.NO_DEVICES | mount_calls.NO_SET_USER_ID | mount_calls.NO_ACCESS_TIME
_CHECK_SECONDS = 600.0
_RESIZE_SECONDS = 600.0
_MKFS_SECONDS = 600.0
_GROUP_MODE = 0o2775
_CLEAN_OR_FIXED = (0, 1)
_ERRORS_LEFT = 4

_SUPERBLOCK_OFFSET = 1024
_SUPERBLOCK_BYTES = 1024
#: Bitmaps, superblock, descriptors, and the blocks below which resize2fs finds a group not worth making.
_GROUP_OVERHEAD_BLOCKS = 128
_EXT4_MAGIC = 0xEF53
#: s_state: no errors, no orphans. s_feature_incompat: the journal is to be replayed.
_VALID = 1
_NEEDS_RECOVERY = 4
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A line of the mount table; ``number`` is the ``major:minor`` of what is mounted."""

    number: str
    directory: Path
    read_only: bool


@dataclass(frozen=True)
class MountOptions:
    """How a volume is mounted, besides without device nodes, set-user-id programs and access times."""

    read_only: bool
    discard: bool

    @property
    def flags(self) -> int:
        """For the kernel: what holds for every filesystem."""
        return _MOUNT_FLAGS | (mount_calls.READ_ONLY if self.read_only else 0)

    def __str__(self) -> str:
        """For ext4."""
        # A journal that was not finished is left as it is: replaying it would be writing.
        chosen = {"noload": self.read_only, "discard": self.discard}
        return ",".join(option for option, wanted in chosen.items() if wanted)


class Filesystems:
    """Works on filesystems by way of e2fsprogs and the kernel's mount calls."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def make(self, device: Path) -> None:
        """Make an empty ext4 on ``device``, and wait until it is on the disk.

        A volume is mounted only after its record says ``ready``, so an ext4 that was ever mounted means that
        the host brought back an older record.

        Raises:
            Refused: there is such an ext4 (``filesystem-in-use``); nothing was written.

        Discard stays off: it would tell the host which blocks are in use. Inode tables are zeroed lazily by
        the kernel, so that a large disk does not keep its first container waiting.
        """
        if was_mounted(device):
            raise Refused(
                "filesystem-in-use",
                f"{device} holds an ext4 that was mounted before, but the record on the disk says that it is "
                "still to be made: an older record was brought back; restore a snapshot",
            )
        self._runner.run(
            ["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard,lazy_journal_init=0", str(device)],
            timeout=_MKFS_SECONDS,
        )
        descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def check(self, device: Path) -> None:
        """Repair what is safe to repair without asking.

        A filesystem that was unmounted in order is left alone, as ``e2fsck -p`` would leave it.

        Raises:
            Refused: there is no ext4 (``filesystem-missing``), or errors are left (``filesystem-damaged``).
            Unavailable: e2fsck could not do its work.
        """
        if is_clean(device):
            return
        result = self._runner.run(
            ["e2fsck", "-p", str(device)],
            expected=(*_CLEAN_OR_FIXED, _ERRORS_LEFT),
            timeout=_CHECK_SECONDS,
        )
        if result.code == _ERRORS_LEFT:
            raise Refused(
                "filesystem-damaged",
                f"e2fsck found errors on {device} that need a decision; restore a snapshot, or repair it: "
                f"{result.output.strip()[-200:]}",
            )

    def mount(self, device: Path, directory: Path, options: MountOptions) -> None:
        """Mount ``device`` at ``directory``, which is made if missing.

        Raises:
            Unavailable: the kernel refused (``mount-failed``).
        """
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            mount_calls.mount(device, directory, "ext4", options.flags, str(options))
        except OSError as error:
            raise Unavailable(
                "mount-failed", f"{device} can't be mounted at {directory}: {error.strerror}"
            ) from None

    def unmount(self, directory: Path) -> None:
        """Unmount ``directory``.

        Raises:
            Unavailable: it is in use (``mount-busy``), and stays mounted.
        """
        try:
            mount_calls.unmount(directory)
        except OSError as error:
            raise Unavailable(
                "mount-busy", f"{directory} stays mounted: {error.strerror}; stop what uses it and try again"
            ) from None

    def grow(self, device: Path, device_size: int) -> None:
        """Let the mounted filesystem fill ``device`` of ``device_size`` bytes; nothing if it does already.

        Raises:
            Unavailable: resize2fs failed, or the filesystem is still far smaller than the device.
        """
        if ext4_size(device) >= device_size:
            return
        self._runner.run(["resize2fs", str(device)], timeout=_RESIZE_SECONDS)
        size = ext4_size(device)
        if size < device_size - _largest_tail(device):
            raise Unavailable(
                "filesystem-not-grown",
                f"resize2fs left the filesystem on {device} at {size} bytes; the volume has {device_size}",
            )


def mounted_at(directory: Path, table: Path = Path("/proc/self/mountinfo")) -> Mount | None:
    """What is mounted at ``directory`` and visible there; None when nothing is.

    ``table`` is the mount table (proc(5)), in the order of mounting: the last one there is on top.
    """
    for line in reversed(table.read_text().splitlines()):
        fields = line.split(" ")
        if _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]) == str(directory):
            return Mount(fields[2], directory, "ro" in fields[5].split(","))
    return None


def apply_fs_group(directory: Path, gid: int) -> None:
    """Give the root of the volume to the pod's fsGroup, set-group-id, as kubelet does."""
    os.chown(directory, -1, gid)
    directory.chmod(_GROUP_MODE)


def ext4_size(device: Path) -> int:
    """The size in bytes that the superblock on ``device`` gives.

    Raises:
        Refused: there is no ext4 (``filesystem-missing``).
    """
    superblock = _superblock(device)
    low, high = struct.unpack_from("<I", superblock, 0x4)[0], struct.unpack_from("<I", superblock, 0x150)[0]
    blocks: int = low + (high << 32)
    return blocks * _block_bytes(superblock)


def was_mounted(device: Path) -> bool:
    """Whether there is an ext4 on ``device`` that was once mounted for writing."""
    try:
        superblock = _superblock(device)
    except Refused:
        return False
    # s_mtime and s_mnt_count: the kernel sets both at the first such mount.
    mount_time: int = struct.unpack_from("<I", superblock, 0x2C)[0]
    mount_count: int = struct.unpack_from("<H", superblock, 0x34)[0]
    return mount_time != 0 or mount_count != 0


def is_clean(device: Path) -> bool:
    """Whether the ext4 on ``device`` was unmounted in order and awaits no periodic check.

    Raises:
        Refused: there is no ext4 (``filesystem-missing``).
    """
    superblock = _superblock(device)
    state, incompatible = (
        struct.unpack_from("<H", superblock, 0x3A)[0],
        struct.unpack_from("<I", superblock, 0x60)[0],
    )
    mounts_allowed: int = struct.unpack_from("<h", superblock, 0x36)[0]
    check_interval: int = struct.unpack_from("<I", superblock, 0x48)[0]
    needs_recovery: int = incompatible & _NEEDS_RECOVERY
    return state == _VALID and not needs_recovery and mounts_allowed <= 0 and check_interval == 0


def _largest_tail(device: Path) -> int:
    """Bytes that may stay unused: resize2fs leaves out a last group with room for little but its tables."""
    superblock = _superblock(device)
    inodes: int = struct.unpack_from("<I", superblock, 0x28)[0]
    inode_bytes: int = struct.unpack_from("<H", superblock, 0x58)[0]
    reserved_blocks: int = struct.unpack_from("<H", superblock, 0xCE)[0]
    return inodes * inode_bytes + (reserved_blocks + _GROUP_OVERHEAD_BLOCKS) * _block_bytes(superblock)


def _superblock(device: Path) -> bytes:
    try:
        with device.open("rb") as file:
            file.seek(_SUPERBLOCK_OFFSET)
            superblock = file.read(_SUPERBLOCK_BYTES)
    except OSError as error:
        raise Unavailable(
            "device-io", f"the filesystem on {device} can't be read: {error.strerror}"
        ) from None
    if len(superblock) != _SUPERBLOCK_BYTES or struct.unpack_from("<H", superblock, 0x38)[0] != _EXT4_MAGIC:
        raise Refused("filesystem-missing", f"there is no ext4 filesystem on {device}")
    return superblock


def _block_bytes(superblock: bytes) -> int:
    exponent: int = struct.unpack_from("<I", superblock, 0x18)[0]
    return 1024 << exponent
