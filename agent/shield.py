"""The shield: a device that is the disk, but whose header is our checked copy in memory.

The host may answer a second read of the header differently from the first. So whoever opens the volume (the
data hub, by way of cryptsetup) is given a mapping whose first 4 MiB are a read-only loop device over a sealed
memory file that holds the checked image, and whose rest is the disk. The disk's own header is not read again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.device_mapper import SECTOR_BYTES, DeviceMapper, Mapping, Target
from agent.devices import Disk
from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES
from agent.errors import Refused
from agent.header_guard import GenuineHeader
from agent.loop_device import loop_over
from agent.luks2 import HeaderError, newest_valid
from agent.luks2_profile import AuditedHeader, audit_known

#: Device-mapper UUIDs of shields: the mark of the key id, then the volume's mapper name.
_UUID = re.compile(r"CONFIDENTIAL-CSI-SHIELD-(?P<mark>[0-9a-f]{32})-(?P<name>.+)")
_SUFFIX = "-shield"
_HEADER_SECTORS = HEADER_AREA_BYTES // SECTOR_BYTES
#: How the kernel shows a memory file as the backing file of a loop device.
_MEMORY_FILE = re.compile(r"/memfd:(?P<name>.+)-header \(deleted\)")
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True)
class Shield:
    """A shield that is up. ``size`` is in bytes, ``disk_number`` the ``major:minor`` of the disk below."""

    mapping: Mapping
    header: AuditedHeader
    size: int
    disk_number: str
    #: Of the key id that the header was authenticated with; see ``key_mark``.
    key_mark: str


class Shields:
    """Makes, finds and takes down the shields of volumes; ``name`` is the volume's mapper name."""

    def __init__(self, mapper: DeviceMapper, sysfs: Path = Path("/sys")) -> None:
        self._mapper = mapper
        self._blocks = sysfs / "block"

    def build(self, name: str, disk: Disk, header: GenuineHeader, key_id: str) -> Shield:
        """Put a shield with ``header`` over ``disk``, at its size of now.

        ``key_id`` names the key that authenticated it.

        Raises:
            Unavailable: the loop device or the mapping can't be made.
        """
        mark = key_mark(key_id)
        uuid = f"CONFIDENTIAL-CSI-SHIELD-{mark}-{name}"
        memory = _sealed_memory(name, header.image)
        try:
            with loop_over(memory) as loop:
                number = (self._blocks / loop / "dev").read_text().strip()
                table = _table(number, disk.number, disk.size)
                mapping = self._mapper.create(name + _SUFFIX, uuid, table)
        finally:
            os.close(memory)
        return Shield(mapping, header.audited, disk.size, disk.number, mark)

    def find(self, name: str) -> Shield | None:
        """The shield of a volume, after checking that it is one; None when there is none.

        Raises:
            Refused: a mapping of that name is something else (``foreign-mapping``).
        """
        mapping = self._mapper.find(name + _SUFFIX)
        if mapping is None:
            return None
        table = self._mapper.table(mapping.name)
        loops = self._loops(name)
        uuid = _UUID.fullmatch(mapping.uuid)
        if uuid and uuid["name"] == name and len(table) == 2 and all(one.arguments for one in table):
            loop, disk = (target.arguments[0] for target in table)
            size = (table[1].start + table[1].length) * SECTOR_BYTES
            if loop in loops and table == _table(loop, disk, size):
                with suppress(HeaderError):
                    header = _read_header(Path("/dev", loops[loop]))
                    return Shield(mapping, header, size, disk, uuid["mark"])
        raise Refused(
            "foreign-mapping",
            f"the mapping {mapping.name} was not made by this agent; remove it, or use a fresh VM",
        )

    def grow(self, name: str, disk: Disk) -> None:
        """Let a shield that is in use cover ``disk`` at its size of now, with the header it has.

        Raises:
            Refused: there is none over that disk.
            Unavailable: device-mapper refused; the shield is as it was.
        """
        shield = self.find(name)
        if shield is None or shield.disk_number != disk.number:
            raise Refused("foreign-mapping", f"{name} has no shield over {disk.path}")
        loop = self._mapper.table(shield.mapping.name)[0].arguments[0]
        self._mapper.replace_table(shield.mapping.name, _table(loop, disk.number, disk.size))

    def remove(self, name: str) -> None:
        """Take down the shield, if there is one; its loop device goes with it.

        Raises:
            Refused: a mapping of that name is something else.
            Unavailable: the shield is in use.
        """
        self._mapper.remove_unfinished(name + _SUFFIX)
        if self.find(name) is not None:
            self._mapper.remove(name + _SUFFIX)

    def names(self) -> set[str]:
        """The mapper names of all volumes of which a shield exists."""
        return {
            match["name"] for mapping in self._mapper.mappings() if (match := _UUID.fullmatch(mapping.uuid))
        }

    def _loops(self, name: str) -> dict[str, str]:
        """Loop devices over the memory file of a volume's header: ``major:minor`` to name."""
        return {
            (self._blocks / loop / "dev").read_text().strip(): loop
            for loop, file in self._backing_files().items()
            if (match := _MEMORY_FILE.fullmatch(file)) and match["name"] == name
        }

    def _backing_files(self) -> dict[str, str]:
        found = {}
        for file in self._blocks.glob("loop*/loop/backing_file"):
            try:
                found[file.parent.parent.name] = file.read_text().rstrip("\n")
            except OSError:
                # Detached meanwhile.
                continue
        return found


def _sealed_memory(name: str, image: bytes) -> int:
    """A memory file, of the size of a header area, that nobody can write any more."""
    memory = os.memfd_create(f"{name}-header", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # What surrounds the image in the header area is authenticated by nobody: zeros instead.
    os.truncate(memory, HEADER_AREA_BYTES)
    os.pwrite(memory, image, 0)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    return memory


def key_mark(key_id: str) -> str:
    """What stands for a key id in the UUID of a shield, which is too short for the id itself."""
    return hashlib.sha256(key_id.encode()).hexdigest()[:32]


def _read_header(loop: Path) -> AuditedHeader:
    with loop.open("rb") as file:
        return audit_known(newest_valid(file.read(IMAGE_BYTES)))


def _table(loop: str, disk: str, size: int) -> tuple[Target, Target]:
    """The table of a shield of ``size`` bytes over the devices of these numbers (``major:minor``)."""
    sectors = size // SECTOR_BYTES
    return (
        Target(0, _HEADER_SECTORS, "linear", (loop, "0")),
        Target(_HEADER_SECTORS, sectors - _HEADER_SECTORS, "linear", (disk, str(_HEADER_SECTORS))),
    )
