"""Device-mapper: what mappings there are, what their tables say, making and removing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.commands import Runner
from agent.errors import Unavailable

#: The unit of device-mapper tables, whatever the disk's own sector size.
SECTOR_BYTES = 512


@dataclass(frozen=True)
class Target:
    """One line of a table. ``start`` and ``length`` count 512-byte sectors."""

    start: int
    length: int
    kind: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([str(self.start), str(self.length), self.kind, *self.arguments])


@dataclass(frozen=True)
class Mapping:
    """An existing mapping; ``number`` is its ``major:minor``."""

    name: str
    uuid: str
    number: str

    @property
    def path(self) -> Path:
        """Its device node."""
        return Path("/dev/mapper") / self.name


class DeviceMapper:
    """Device-mapper by way of sysfs and ``dmsetup``."""

    def __init__(self, runner: Runner, sysfs: Path = Path("/sys")) -> None:
        self._runner = runner
        self._blocks = sysfs / "block"

    def mappings(self) -> list[Mapping]:
        """All mappings of this machine."""
        found = []
        for folder in sorted(self._blocks.glob("dm-*")):
            try:
                name, uuid = ((folder / "dm" / field).read_text().strip() for field in ("name", "uuid"))
                found.append(Mapping(name, uuid, (folder / "dev").read_text().strip()))
            except OSError:
                # It was removed meanwhile.
                continue
        return found

    def find(self, name: str) -> Mapping | None:
        """The mapping of that name, if there is one."""
        return next((mapping for mapping in self.mappings() if mapping.name == name), None)

    def table(self, name: str) -> tuple[Target, ...]:
        """The active table. Keys in it are shown as zeros or as the name of a kernel keyring entry."""
        lines = self._runner.run(["dmsetup", "table", name]).output.splitlines()
        targets = []
        for line in lines:
            start, length, kind, *arguments = line.split()
            targets.append(Target(int(start), int(length), kind, tuple(arguments)))
        return tuple(targets)

    def create(self, name: str, uuid: str, targets: Sequence[Target]) -> Mapping:
        """Make a mapping.

        Raises:
            Unavailable: device-mapper refused, or no mapping appeared.
        """
        table = "".join(f"{target}\n" for target in targets)
        self._runner.run(["dmsetup", "create", name, "--uuid", uuid], stdin=table.encode())
        mapping = self.find(name)
        if mapping is None:
            raise Unavailable("mapping-missing", f"dmsetup created {name}, but it does not show in sysfs")
        return mapping

    def replace_table(self, name: str, targets: Sequence[Target]) -> None:
        """Give a mapping that is in use another table; its I/O is held up meanwhile.

        Raises:
            Unavailable: device-mapper refused; the old table stays in force.
        """
        table = "".join(f"{target}\n" for target in targets)
        self._runner.run(["dmsetup", "load", name], stdin=table.encode())
        self._runner.run(["dmsetup", "resume", name])

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
            Unavailable: it is in use.
        """
        self._runner.run(["dmsetup", "remove", "--retry", name])
