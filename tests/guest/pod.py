"""A PodVM with a data hub and the agent, as the guest tests use it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.caa import serial_of
from tests.lab.cdh_control import Cdh
from tests.lab.cdh_storage import Dialect
from tests.lab.kbs import Kbs
from tests.lab.podvm import Completed, PodVm

KEY_ID = "default/key/vol1"
KEY = bytes(range(64))
OTHER_KEY_ID = "default/key/other"
OTHER_KEY = bytes(range(64, 128))
MIB = 2**20
PLAINTEXT = b"a secret of the workload, in the clear "
SOURCE = "/run/cloud-volumes/vol-0"

Annotation = dict[str, dict[str, str]]


def volume(disk_id: str, **changes: str | None) -> dict[str, str]:
    """One entry of the annotation; a change to None leaves the field out."""
    fields: Mapping[str, str | None] = {
        "mount_point": "/data",
        "fs_type": "ext4",
        "lun": "0",
        "disk_id": disk_id,
        "encrypt_type": "luks2",
        "key_id": KEY_ID,
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class Outcome:
    """How a run of the agent ended."""

    code: int
    stdout: str
    stderr: str

    def result(self) -> dict[str, Any]:
        """The printed JSON of a run that succeeded."""
        assert self.code == 0, self.stderr
        found: dict[str, Any] = json.loads(self.stdout)
        return found

    def refused(self, rule: str, code: int = 3) -> None:
        """Assert that it failed by this rule, and printed no result."""
        assert (self.code, self.stdout) == (code, ""), self
        assert f"[{rule}]" in self.stderr, self.stderr
        assert len(self.stderr.encode()) < 990 * (1 + self.stderr.count("\n"))


class Pod:
    """One guest with the stand-in for the data hub."""

    def __init__(self, vm: PodVm, kbs: Kbs, dialect: Dialect = "detached-header") -> None:
        self.vm = vm
        self.kbs = kbs
        self.cdh = Cdh(vm, kbs, dialect=dialect)
        #: How long a new disk is watched; None: as long as always.
        self.blank_check_seconds: float | None = None
        self._attached: set[str] = set()

    def attach(self, source: Path, disk_id: str) -> str:
        """Attach an image, or a server's socket, under the serial that belongs to the disk id.

        Returns its device in the guest, which has seen it.
        """
        self.vm.attach(source, serial_of(disk_id))
        self._attached.add(disk_id)
        device: str = self.vm.call("tests.guest.inside.agent:disk_path", disk_id=disk_id)
        return device

    def resize(self, disk_id: str, size: int) -> None:
        """Grow a disk to ``size`` bytes, and wait until the guest has seen it."""
        device = self.vm.call("tests.guest.inside.agent:disk_path", disk_id=disk_id)
        self.vm.resize_disk(serial_of(disk_id), size)
        assert self.vm.call("tests.lab.guest_tools:wait_for_size", device=device, size=size)

    def detach(self, disk_id: str) -> None:
        """Detach it again."""
        self.vm.detach(serial_of(disk_id))
        self._attached.remove(disk_id)

    def agent(self, *argv: str, stdin: str = "", timeout: float = 240.0) -> Outcome:
        """Run the agent's command line."""
        hasty = {} if self.blank_check_seconds is None else {"blank_check_seconds": self.blank_check_seconds}
        return Outcome(
            **self.vm.call(
                "tests.guest.inside.agent:run", argv=list(argv), stdin=stdin, timeout=timeout, **hasty
            )
        )

    def mount(self, annotation: Annotation, *options: str, timeout: float = 240.0) -> Outcome:
        """``confidential-csi-agent mount`` with the annotation on standard input."""
        return self.agent(
            *options, "mount", "--annotation", "-", stdin=json.dumps(annotation), timeout=timeout
        )

    def mount_one(self, disk_id: str, **changes: str | None) -> Outcome:
        """Mount one volume as ``vol-0``."""
        return self.agent("mount", "--annotation", "-", stdin=self.annotation(disk_id, **changes))

    @staticmethod
    def annotation(disk_id: str, **changes: str | None) -> str:
        """An annotation with one volume, ``vol-0``."""
        return json.dumps({"vol-0": volume(disk_id, **changes)})

    def unmount_all(self) -> Outcome:
        """``confidential-csi-agent unmount --all``."""
        return self.agent("unmount", "--all")

    def status(self) -> list[dict[str, Any]]:
        """``confidential-csi-agent status --json``, without the figures."""
        return [
            {name: value for name, value in volume.items() if name != "mount_seconds"}
            for volume in self._status()
        ]

    def mount_seconds(self) -> dict[str, dict[str, float]]:
        """How long the phases of each volume's mount took, by the volume's name."""
        return {volume["name"]: volume["mount_seconds"] for volume in self._status()}

    def _status(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.agent("status", "--json").result()["volumes"]
        return found

    def write_file(self, directory: str = SOURCE) -> None:
        """Write ``PLAINTEXT``, many times over, to ``file`` on the volume, and on to the disk."""
        self.vm.check(["sh", "-ec", f"cat >{directory}/file; sync"], stdin=PLAINTEXT * 1000)

    def read_file(self, directory: str = SOURCE) -> bytes:
        """What is in ``file``."""
        return self.vm.check(["cat", f"{directory}/file"])

    def clean_up(self) -> None:
        """Unmount everything, detach all disks, mend the peers; nothing may be left."""
        self.kbs.denied.clear()
        done = self.vm.call("tests.guest.inside.agent:clean_up")
        assert (done["code"], done["leftovers"]) == (0, ""), done
        for disk_id in sorted(self._attached):
            self.detach(disk_id)

    def sh(self, script: str) -> bytes:
        """Run a shell script that must succeed; its output."""
        return self.vm.check(["sh", "-ec", script])

    def run(self, script: str) -> Completed:
        """Run a shell script; how it ended."""
        return self.vm.run(["sh", "-ec", script])

    def leftovers(self) -> str:
        """Everything of a volume that exists in the guest: mappings, loop devices, mounts, links."""
        found: str = self.vm.call("tests.guest.inside.agent:leftovers")
        return found


MakeDisk = Callable[..., Path]
