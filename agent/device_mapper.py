"""Device-mapper: what mappings there are, what their tables say, making and removing them.

Spoken directly to the kernel (``linux/dm-ioctl.h``): a ``dmsetup`` process per question costs more than all
the rest of a mount, and a PodVM image need not have it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.commands import Runner
from agent.errors import Unavailable

#: The unit of device-mapper tables, whatever the disk's own sector size.
SECTOR_BYTES = 512

_CONTROL: Final = Path("/dev/mapper/control")
#: version (major, minor, patch), data size, data start, targets, open count, flags, event, padding, device,
#: name, UUID; the struct ends with 7 bytes that belong to no field.
_HEADER: Final = struct.Struct("=3I I I I i I I I Q 128s 129s 7x")
_VERSION: Final = (4, 0, 0)
#: start, length, status, offset of the next target, kind; then the arguments as text.
_TARGET: Final = struct.Struct("=Q Q i I 16s")
_READ_WRITE: Final = 3
_TYPE: Final = 0xFD
_CREATE: Final = 3
_REMOVE: Final = 4
_SUSPEND_OR_RESUME: Final = 6
_LOOK: Final = 7
_LOAD: Final = 9
_STATUS: Final = 12
_STATUS_OF_TABLE: Final = 1 << 4
_HAS_TABLE: Final = 1 << 5
_BUFFER_FULL: Final = 1 << 8
_WIPE_BUFFERS: Final = 1 << 15
_VERBS: Final = {
    _CREATE: "create",
    _REMOVE: "remove",
    _SUSPEND_OR_RESUME: "activate",
    _LOOK: "look for",
    _LOAD: "load a table for",
    _STATUS: "show the table of",
}
_TABLE_BYTES: Final = 64 * 1024
#: What the tables of volumes need at most; the kernel copies all the room there is, both ways.
_USUAL_TABLE_BYTES: Final = 2 * 1024
#: Hexadecimal digits of a volume key of 16 bytes.
_SHORTEST_KEY: Final = 32

_BUSY_SECONDS: Final = 5.0
_BUSY_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True)
class Target:
    """One line of a table. ``start`` and ``length`` count 512-byte sectors."""

    start: int
    length: int
    kind: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Mapping:
    """An existing mapping; ``number`` is its ``major:minor``, ``path`` its device node."""

    name: str
    uuid: str
    number: str
    path: Path


class DeviceMapper:
    """Device-mapper by way of sysfs and its control device."""

    def __init__(self, runner: Runner, sysfs: Path = Path("/sys")) -> None:
        self._runner = runner
        self._blocks = sysfs / "block"

    def mappings(self) -> list[Mapping]:
        """All mappings of this machine that have a table (without one the size is 0)."""
        found = []
        for folder in sorted(self._blocks.glob("dm-*")):
            try:
                name, uuid = ((folder / "dm" / field).read_text().strip() for field in ("name", "uuid"))
                number, sectors = ((folder / field).read_text().strip() for field in ("dev", "size"))
            except OSError:
                # It was removed meanwhile.
                continue
            if sectors != "0":
                found.append(Mapping(name, uuid, number, _node(name, number, folder.name)))
        return found

    def find(self, name: str) -> Mapping | None:
        """The mapping of that name, if there is one that has a table.

        Raises:
            Unavailable: the kernel refused (``device-mapper``).
        """
        try:
            answer = _ask(_LOOK, name)
        except NoSuchMapping:
            return None
        if not _flags(answer) & _HAS_TABLE:
            return None
        *_, device, _, uuid = _HEADER.unpack_from(answer)
        number = f"{os.major(device)}:{os.minor(device)}"
        # The kernel names the disk of a mapping by its minor number.
        path = _node(name, number, f"dm-{os.minor(device)}")
        return Mapping(name, uuid.partition(b"\0")[0].decode("utf-8", "replace"), number, path)

    def table(self, name: str) -> tuple[Target, ...]:
        """The active table. A key in it is shown as zeros or as the name of a kernel keyring entry.

        Raises:
            Unavailable: there is no such mapping, or the kernel refused (``device-mapper``).
        """
        for room in (_USUAL_TABLE_BYTES, _TABLE_BYTES):
            answer = _ask(_STATUS, name, flags=_STATUS_OF_TABLE | _WIPE_BUFFERS, room=room)
            if not _flags(answer) & _BUFFER_FULL:
                return tuple(_parse_targets(answer))
        raise Unavailable("device-mapper", f"the table is larger than {_TABLE_BYTES} bytes")

    def create(self, name: str, uuid: str, targets: Sequence[Target]) -> Mapping:
        """Make a mapping.

        Raises:
            Unavailable: the kernel refused (``device-mapper``), or no mapping appeared (``mapping-missing``).
        """
        _ask(_CREATE, name, uuid=uuid)
        try:
            _ask(_LOAD, name, targets=targets)
            _ask(_SUSPEND_OR_RESUME, name)
        except BaseException:
            _ask(_REMOVE, name)
            raise
        mapping = self.find(name)
        if mapping is None:
            raise Unavailable("mapping-missing", f"{name} was made, but the kernel does not show it")
        _make_node(mapping)
        return mapping

    def replace_table(self, name: str, targets: Sequence[Target]) -> None:
        """Give a mapping that is in use another table; its I/O is held up meanwhile.

        Raises:
            Unavailable: the kernel refused; the old table stays in force.
        """
        _ask(_LOAD, name, targets=targets)
        _ask(_SUSPEND_OR_RESUME, name)

    def allow_discards(self, name: str, released_key: bytes) -> None:
        """Let an open LUKS2 mapping pass discards on to the disk.

        Raises:
            Unavailable: cryptsetup refused.
        """
        self._runner.run(
            ["cryptsetup", "refresh", "--allow-discards", "--key-file", "-", name], stdin=released_key
        )

    def remove(self, name: str) -> None:
        """Remove a mapping. Nothing of it is taken apart while it is in use.

        Raises:
            Unavailable: it is in use, for longer than udev's rules look at a device.
        """
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                _ask(_REMOVE, name)
                break
            except DeviceBusy:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_BUSY_POLL_SECONDS)
        _remove_node(name)

    def remove_unfinished(self, name: str) -> None:
        """Remove a mapping that its maker, killed half-way, left without a table."""
        # Depending on the kernel's version it shows in sysfs or not.
        try:
            answer = _ask(_LOOK, name)
        except NoSuchMapping:
            return
        if not _flags(answer) & _HAS_TABLE:
            self.remove(name)


class DeviceBusy(Unavailable):
    """The mapping is in use."""


class NoSuchMapping(Unavailable):
    """There is no mapping of that name."""


def _ask(
    command: int, name: str, *, uuid: str = "", flags: int = 0, targets: Sequence[Target] = (), room: int = 0
) -> bytearray:
    """One call of the control device; what it left in the buffer, ``room`` bytes besides the header.

    Raises:
        DeviceBusy, NoSuchMapping, Unavailable: the kernel refused (``device-mapper``).
    """
    data = b"".join(map(_pack, targets))
    buffer = bytearray(_HEADER.size + max(room, len(data)))
    buffer[_HEADER.size : _HEADER.size + len(data)] = data
    sizes = len(buffer), _HEADER.size, len(targets)
    _HEADER.pack_into(buffer, 0, *_VERSION, *sizes, 0, flags, 0, 0, 0, name.encode(), uuid.encode())
    request = _READ_WRITE << 30 | _HEADER.size << 16 | _TYPE << 8 | command
    try:
        control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(control, request, buffer)
        finally:
            os.close(control)
    except OSError as error:
        kind = _REFUSALS.get(error.errno or 0, Unavailable)
        raise kind(
            "device-mapper",
            f"the kernel's device-mapper refused to {_VERBS[command]} {name}: {error.strerror}",
        ) from None
    return buffer


_REFUSALS: Final[dict[int, type[Unavailable]]] = {
    errno.EBUSY: DeviceBusy,
    errno.ENXIO: NoSuchMapping,
    # A kernel without device-mapper: there is no control device, or nothing behind it.
    errno.ENOENT: NoSuchMapping,
    errno.ENODEV: NoSuchMapping,
}


def _flags(answer: bytearray) -> int:
    flags: int = _HEADER.unpack_from(answer)[7]
    return flags


def _pack(target: Target) -> bytes:
    """A target as the kernel takes it; the next one begins where this one ends, at a multiple of 8."""
    text = " ".join(target.arguments).encode() + b"\0"
    size = (_TARGET.size + len(text) + 7) // 8 * 8
    packed = _TARGET.pack(target.start, target.length, 0, size, target.kind.encode()) + text
    return packed.ljust(size, b"\0")


def _parse_targets(answer: bytearray) -> list[Target]:
    """The targets in the answer to a question for a table; offsets count from the start of the data."""
    _, _, _, _, data_start, count, *_ = _HEADER.unpack_from(answer)
    targets = []
    offset = 0
    for _ in range(count):
        start, length, _, following, kind = _TARGET.unpack_from(answer, data_start + offset)
        text = data_start + offset + _TARGET.size
        arguments = answer[text : answer.index(0, text)].decode("utf-8", "replace").split()
        targets.append(Target(start, length, kind.rstrip(b"\0").decode(), _without_key(arguments)))
        offset = following
    return targets


def _without_key(arguments: list[str]) -> tuple[str, ...]:
    """The arguments; a key in them, which a kernel without keyring shows, replaced by zeros.

    In a crypt target it is the second one; in those of other kinds that is never as long as a key.
    """
    if len(arguments) > 1 and len(arguments[1]) >= _SHORTEST_KEY and not arguments[1].startswith(":"):
        arguments[1] = "0" * len(arguments[1])
    return tuple(arguments)


def _node(name: str, number: str, kernel_name: str) -> Path:
    """The node that people know, if udev or libdevmapper made one for this very mapping."""
    node = _CONTROL.parent / name
    with suppress(OSError):
        device = node.stat().st_rdev
        if number == f"{os.major(device)}:{os.minor(device)}":
            return node
    return Path("/dev") / kernel_name


def _make_node(mapping: Mapping) -> None:
    """Make the node in which cryptsetup looks for the device under an open volume; udev may come later."""
    if mapping.path.parent == _CONTROL.parent:
        return
    _remove_node(mapping.name)
    major, minor = map(int, mapping.number.split(":"))
    with suppress(FileExistsError):
        os.mknod(_CONTROL.parent / mapping.name, stat.S_IFBLK | 0o600, os.makedev(major, minor))


def _remove_node(name: str) -> None:
    """Remove the node of a mapping where it is one, and not a link of udev's, which removes it itself."""
    node = _CONTROL.parent / name
    with suppress(FileNotFoundError):
        if stat.S_ISBLK(node.lstat().st_mode):
            node.unlink()
