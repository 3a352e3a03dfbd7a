"""The hostile host: what it brings to a pod, and that it gets nowhere with it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.commands import SystemRunner
from agent.disk_format import HEADER_AREA_BYTES, RecordKey, State
from agent.header_guard import update_record
from agent.initialization import initialize
from tests.guest.pod import KEY, Pod, volume
from tests.guest.sandbox import Sandbox, creation
from tests.peers.kata import OciMount
from tests.unit.agent.power_cut import PowerCutDisk

CLAIM = "/var/lib/kubelet/pods/8c1f/volumes/kubernetes.io~csi/pvc-a/mount"
DATA = OciMount("/data", CLAIM)
OTHER = OciMount("/other", CLAIM.replace("pvc-a", "pvc-b"))

Volumes = Mapping[str, Mapping[str, str]]


class Host:
    """Asks one proxy for containers, with disks that it chose."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self._disks: dict[str, Path] = {}
        self._running: list[str] = []

    @property
    def pod(self) -> Pod:
        """The guest."""
        return self.box.pod

    def bring(self, image: Path, disk_id: str = "disk") -> None:
        """Attach a disk, which is not to change."""
        self.pod.attach(image, disk_id)
        self._disks[disk_id] = image

    def take_away(self, disk_id: str = "disk") -> None:
        """Detach it."""
        del self._disks[disk_id]
        self.pod.detach(disk_id)

    def refused(
        self,
        rule: str,
        volumes: Volumes | str | None = None,
        *,
        annotated: bool = True,
        mounts: Sequence[OciMount] = (DATA,),
        code: int = 9,
        opened: int = 0,
    ) -> str:
        """Ask for a container and require all of a refusal; its words.

        It names the rule, kata-agent never saw the container, no disk changed, nothing is left in the guest.

        Args:
            volumes: as :func:`volume` makes them, or the annotation's text; one on ``disk``, if not given.
            annotated: False for a container without annotation.
            code: of the answer: 9 for a refusal, 14 where something was unavailable.
            opened: how often the data hub may have been asked to open something.
        """
        if volumes is None and annotated:
            volumes = {"vol-0": volume("disk")}
        digests = [digest(image) for image in self._disks.values()]
        answer, before, after = self.box.traced_create(creation("attacked", mounts, volumes))
        if answer.code == 0:
            # The attack got through: leave the guest to the other tests as it was.
            self.box.remove("attacked")
        answer.refused(rule, code)
        assert len(answer.message.encode()) < 990
        assert before["leftovers"] == ""
        assert after == {**before, "opened": before["opened"] + opened}
        assert [digest(image) for image in self._disks.values()] == digests
        return answer.message

    def starts(
        self, container_id: str, volumes: Volumes | None = None, *, mounts: Sequence[OciMount] = (DATA,)
    ) -> None:
        """Ask for a container that there is nothing to say against."""
        answer = self.box.create(container_id, mounts, volumes or {"vol-0": volume("disk")})
        assert answer.code == 0, answer
        self._running.append(container_id)

    def removes_all(self) -> None:
        """Remove the containers that started."""
        while self._running:
            assert self.box.remove(self._running.pop()).code == 0


def digest(image: Path) -> str:
    """A hash of all bytes of a disk."""
    with image.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def overwrite(image: Path, offset: int, data: bytes) -> None:
    """Change a disk behind the guest's back."""
    with image.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def header_area(image: Path) -> bytes:
    """The header area of a disk."""
    with image.open("rb") as file:
        return file.read(HEADER_AREA_BYTES)


def made_on_the_host(image: Path, key: bytes = KEY) -> Path:
    """Make a blank image a volume in state ``ready`` under ``key``, with nothing in it. A UUID of its own."""
    disk = PowerCutDisk(image.stat().st_size)
    header = initialize(disk, key, SystemRunner())
    update_record(disk, RecordKey(key), header, state=State.READY)
    overwrite(image, 0, bytes(disk.medium))
    return image


def luks_format(image: Path, *extra: str, kind: str = "luks2") -> None:
    """What somebody else's cryptsetup does, on the host."""
    luks2 = ("--luks2-metadata-size", "16k", "--luks2-keyslots-size", "1m", "--sector-size", "4096")
    subprocess.run(
        [
            *("cryptsetup", "luksFormat", "--batch-mode", "--type", kind, "--key-file", "-"),
            *("--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--hash", "sha256"),
            *("--offset", "8192", "--key-size", "512"),
            *(luks2 if kind == "luks2" else ()),
            *extra,
            str(image),
        ],
        input=KEY,
        check=True,
        capture_output=True,
    )


def copied(image: Path, name: str) -> Path:
    """A copy of a disk beside it."""
    return Path(shutil.copyfile(image, image.with_name(f"{name}.raw")))
