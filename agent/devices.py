"""Finding the disk of a volume, by what identifies it and never by its letter.

The kernel names disks in the order in which it sees them, so ``/dev/vdb`` says nothing. What the host says
of the identity is not trusted either: a wrong disk does not authenticate (``agent.header_guard``).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.annotation import CloudVolume
from agent.block_device import BLOCK_BYTES
from agent.clock import Clock
from agent.errors import Refused, Unavailable

DEFAULT_TIMEOUT = 120.0
_POLL_SECONDS = 0.02
_SECTOR_BYTES = 512

_AWS_ID = re.compile(r"vol-([0-9a-f]{8,})", re.ASCII)
_AZURE_ID = re.compile(r"/subscriptions/.+", re.ASCII | re.IGNORECASE)
#: The controller of an Azure VM's own disks.
_AZURE_SYSTEM_HOST = "0"


@dataclass(frozen=True)
class Disk:
    """A whole disk. ``number`` is its ``major:minor``, ``size`` its bytes rounded down to 4,096."""

    path: Path
    number: str
    size: int


class DeviceFinder:
    """Waits for disks. ``timeout`` bounds the wait for one of them, in seconds."""

    def __init__(
        self,
        clock: Clock,
        timeout: float = DEFAULT_TIMEOUT,
        sysfs: Path = Path("/sys"),
        dev: Path = Path("/dev"),
    ) -> None:
        self._clock = clock
        self._timeout = timeout
        self._blocks = sysfs / "block"
        self._dev = dev

    def find(self, volume: CloudVolume) -> Disk:
        """The disk of ``volume``, as soon as it is there.

        Raises:
            Refused: several disks claim to be it (``device-ambiguous``), what claims it is no whole disk
                (``device-not-whole``), or an Azure volume comes without LUN (``annotation-volume``).
            Unavailable: it did not appear in time (``device-missing``).
        """
        deadline = self._clock.monotonic() + self._timeout
        while True:
            disk = self._look(volume)
            if disk is not None:
                return disk
            if self._clock.monotonic() >= deadline:
                raise Unavailable(
                    "device-missing",
                    f"the disk of {volume.name} ({_wanted(volume)}) did not appear within "
                    f"{self._timeout:g} s; check that it is attached to this VM",
                )
            self._clock.sleep(_POLL_SECONDS)

    def _look(self, volume: CloudVolume) -> Disk | None:
        names = self._candidates(volume)
        if len(names) > 1:
            raise Refused(
                "device-ambiguous",
                f"{' and '.join(sorted(names))} both claim to be the disk of {volume.name} "
                f"({_wanted(volume)}); detach one of them",
            )
        return self._disk(names.pop()) if names else None

    def _candidates(self, volume: CloudVolume) -> set[str]:
        """Kernel names of the disks that carry the volume's mark."""
        aws = _AWS_ID.fullmatch(volume.disk_id)
        if aws:
            serial = f"vol{aws[1]}"
            link = self._dev / f"disk/by-id/nvme-Amazon_Elastic_Block_Store_{serial}"
            return self._targets([link]) | self._with_serial("device/serial", serial, kind="nvme")
        if _AZURE_ID.fullmatch(volume.disk_id):
            if volume.lun is None:
                raise Refused("annotation-volume", f"{volume.name} is an Azure disk, but has no lun")
            return self._at_azure_lun(volume.lun)
        return self._with_serial("serial", volume.serial)

    def _with_serial(self, file: str, serial: str, *, kind: str = "") -> set[str]:
        """The disks, of names that begin with ``kind``, in whose folder this file holds the serial."""
        return {
            folder.name
            for folder in self._blocks.iterdir()
            if folder.name.startswith(kind) and _read(folder / file) == serial
        }

    def _at_azure_lun(self, lun: int) -> set[str]:
        """The first of the ways to know a LUN that knows this one."""
        disks = self._dev / "disk"
        ways = (
            self._targets([disks / f"azure/data/by-lun/{lun}"]),
            self._targets([disks / f"azure/scsi1/lun{lun}"]),
            self._data_disks(self._targets((disks / "by-path").glob(f"*vmbus*-lun-{lun}"))),
            self._data_disks({folder.name for folder in self._blocks.glob("sd*")}, lun),
        )
        return next((names for names in ways if names), set())

    def _data_disks(self, names: Iterable[str], lun: int | None = None) -> set[str]:
        """Those of the SCSI disks that are not the VM's own, and have this LUN."""
        found = set()
        for name in names:
            address = (self._blocks / name / "device").resolve().name.split(":")
            if len(address) == 4 and address[0] != _AZURE_SYSTEM_HOST and lun in (None, int(address[3])):
                found.add(name)
        return found

    def _targets(self, links: Iterable[Path]) -> set[str]:
        return {link.resolve().name for link in links if link.exists()}

    def _disk(self, name: str) -> Disk | None:
        """The disk, once the kernel has finished with it: its node is there, its size is known."""
        folder = self._blocks / name
        path = self._dev / name
        if not folder.is_dir():
            raise Refused("device-not-whole", f"{path} is not a whole disk; expected one without partitions")
        number = _read(folder / "dev")
        sectors = _read(folder / "size")
        size = int(sectors or 0) * _SECTOR_BYTES // BLOCK_BYTES * BLOCK_BYTES
        return Disk(path, number, size) if size and number and _is_node(path, number) else None


def _wanted(volume: CloudVolume) -> str:
    """What to look for in a listing of disks."""
    if _AWS_ID.fullmatch(volume.disk_id):
        return volume.disk_id
    if _AZURE_ID.fullmatch(volume.disk_id):
        return f"lun {volume.lun}"
    return f"serial {volume.serial}"


def _read(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        # The disk came or went at this moment.
        return None


def _is_node(path: Path, number: str) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISBLK(status.st_mode) and number == f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
