"""What a host can do all the same: what happens then, today. See docs/threat-model.md, *Not defended*."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.guest.pod import KEY_ID, MIB, OTHER_KEY_ID, PLAINTEXT, SOURCE, MakeDisk, Pod, volume
from tests.guest.policy import Guest, uuid_of
from tests.hostile.host import DATA, OTHER, Host, copied, overwrite
from tests.hostile.nbd import LyingDisk


def test_rollback_of_the_whole_disk(guest: Guest, ready_copy: Path) -> None:
    """Policy: the UUID pinned. Plain ``mount``. The volume is as it was, and nothing tells."""
    guest.rules(f'key = "{KEY_ID}"\nuuid = "{uuid_of(ready_copy)}"\nformat = "never"')
    older = copied(ready_copy, "older")
    pod = guest.pod
    pod.attach(ready_copy, "disk")
    pod.mount_one("disk").result()
    pod.sh(f"echo newer >{SOURCE}/file")
    pod.unmount_all().result()
    pod.detach("disk")
    pod.attach(older, "disk")
    pod.mount_one("disk").result()
    assert pod.read_file() == PLAINTEXT * 1000


@pytest.mark.usefixtures("hasty")
def test_blank_disk_in_place_of_a_volume_and_another_key_without_a_policy(
    pod: Pod, make_disk: MakeDisk
) -> None:
    """Default policy, plain ``mount``: new volumes, under any key that the broker releases."""
    pod.attach(make_disk("blank", mib=32), "disk")
    pod.attach(make_disk("other", mib=32), "other")
    pod.mount(
        {
            "vol-0": volume("disk"),
            "vol-1": volume("other", mount_point="/other", lun="1", key_id=OTHER_KEY_ID),
        }
    ).result()
    assert pod.sh(f"ls {SOURCE}") == b"lost+found\n"


def test_denial_of_service_by_withholding_the_disk(host: Host) -> None:
    """Default policy, mode B: an error after a while, never an empty directory."""
    error = host.refused("device-missing", code=14)
    assert "check that it is attached" in error


def test_denial_of_service_by_a_disk_that_does_not_answer(
    host: Host, ready_copy: Path, tmp_path: Path
) -> None:
    """Default policy, mode B: it holds up its own container for as long as it likes, and no other."""
    answers = threading.Event()

    def on_read(_offset: int, _length: int, data: bytes) -> bytes:
        answers.wait(400)
        return data

    with LyingDisk(copied(ready_copy, "stalled"), tmp_path / "nbd") as disk, ThreadPoolExecutor() as pool:
        host.pod.attach(disk.path, "stalled")
        disk.on_read = on_read
        volumes = {"vol-1": volume("stalled", mount_point="/other", lun="1")}
        stalled = pool.submit(host.box.create, "stalled", [OTHER], volumes)
        host.pod.attach(ready_copy, "disk")
        host.starts("container")
        assert not stalled.done()
        answers.set()
        assert stalled.result().code == 0
        assert host.box.remove("stalled").code == 0
        host.removes_all()
        host.pod.clean_up()


def test_a_container_without_the_mount_starts_without_the_volume(host: Host) -> None:
    """Default policy, mode B: only an agent policy (policy.rego) can demand the mount itself."""
    answer = host.box.create("without", [], None)
    assert answer.code == 0
    assert host.box.seen()[-1].container_id == "without"
    assert DATA.destination not in {mount.destination for mount in host.box.seen()[-1].OCI.Mounts}
    assert host.box.remove("without").code == 0


def test_noise_in_place_of_a_block(pod: Pod, ready_copy: Path) -> None:
    """Default policy, plain ``mount``: AES-XTS turns a changed block into noise, not into an error."""
    pod.attach(ready_copy, "disk")
    pod.mount_one("disk").result()
    extents = pod.sh(f"filefrag -v -b1 {SOURCE}/file").decode()
    found = re.search(r"^ *0: +0\.\. +\d+: +(\d+)\.\.", extents, re.MULTILINE)
    assert found, extents
    pod.unmount_all().result()
    overwrite(ready_copy, 4 * MIB + int(found[1]), b"changed by the host")
    pod.mount_one("disk").result()
    content = pod.read_file()
    assert content[4096:] == (PLAINTEXT * 1000)[4096:]
    assert content[:4096] != (PLAINTEXT * 1000)[:4096]
    assert b"changed by the host" not in content
