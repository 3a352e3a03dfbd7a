"""Doing it again: second containers, restarted and concurrent agents, growth, teardown."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.guest.pod import (
    MIB,
    OTHER_KEY_ID,
    PLAINTEXT,
    SOURCE,
    MakeDisk,
    Pod,
    volume,
)


def opens(pod: Pod) -> int:
    """How often the data hub was asked to open something."""
    return len(pod.cdh.calls("SecureMount"))


def test_a_second_container_finds_the_volume_mounted(pod: Pod, ready_copy: Path) -> None:
    """Field case I10: no second open, no second key. With the installed command and an annotation file."""
    pod.attach(ready_copy, "disk")
    annotation = json.dumps({"vol-0": volume("disk")})
    pod.vm.check(["sh", "-c", "cat >/run/annotation.json"], stdin=annotation.encode())
    first = json.loads(
        pod.vm.check(["confidential-csi-agent", "mount", "--annotation", "/run/annotation.json"])
    )
    before = len(pod.cdh.calls("SecureMount")), len(pod.cdh.calls("GetResource"))
    assert pod.mount_one("disk", fs_group="42").result() == first
    assert pod.sh(f"stat -c '%a %g' {SOURCE}") == b"2775 42\n"
    assert before == (len(pod.cdh.calls("SecureMount")), len(pod.cdh.calls("GetResource")))
    assert pod.read_file() == PLAINTEXT * 1000
    assert pod.agent("status").stdout == "vol-0: mounted, open, shielded\n"
    unmount = ("unmount", "--annotation", "/run/annotation.json")
    assert pod.agent(*unmount).result() == {"unmounted": ["vol-0"]}
    assert pod.agent(*unmount).result() == {"unmounted": ["vol-0"]}, "unmounting again is fine"
    assert pod.leftovers() == ""


def test_two_agents_at_once_open_a_volume_once(pod: Pod, ready_copy: Path) -> None:
    pod.attach(ready_copy, "disk")
    before = opens(pod)
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(pod.mount_one, "disk") for _ in range(3)]
    assert [run.result().code for run in runs] == [0, 0, 0]
    assert opens(pod) == before + 1


def test_a_disk_that_comes_late_is_waited_for_and_a_missing_one_is_an_error(
    pod: Pod, ready_copy: Path
) -> None:
    late = threading.Timer(1.0, pod.attach, (ready_copy, "late"))
    late.start()
    assert pod.mount_one("late").code == 0
    late.join()
    missing = pod.mount({"vol-1": volume("missing")}, "--device-timeout", "0.3")
    missing.refused("device-missing", code=4)


def test_a_volume_copied_to_a_larger_disk_grows_once_and_may_not_shrink(pod: Pod, ready_copy: Path) -> None:
    """Field case E5: the clone opens with its source's key under another disk id."""
    with ready_copy.open("r+b") as file:
        file.truncate(128 * MIB)
    pod.attach(ready_copy, "clone")
    shims = "/run/shims"
    pod.sh(f"mkdir -p {shims}; printf '#!/bin/sh\\nexit 1\\n' >{shims}/resize2fs; chmod +x {shims}/resize2fs")
    path = pod.sh("printf %s $PATH").decode()
    failed = pod.vm.run(
        ["confidential-csi-agent", "mount", "--annotation", "-"],
        stdin=json.dumps({"vol-0": volume("clone")}).encode(),
        environment={"PATH": f"{shims}:{path}"},
    )
    assert failed.returncode == 4
    assert b"[tool-failed] resize2fs" in failed.stderr
    assert pod.leftovers() == "", "a volume that did not grow must not be handed over"

    pod.mount_one("clone").result()
    assert pod.read_file() == PLAINTEXT * 1000
    size = int(pod.sh(f"stat -f -c '%b %S' {SOURCE} | (read a b; echo $((a * b)))"))
    assert 110 * MIB < size < 124 * MIB
    pod.unmount_all().result()
    # Nothing left to do: resize2fs is not even called.
    again = pod.vm.run(
        ["confidential-csi-agent", "mount", "--annotation", "-"],
        stdin=json.dumps({"vol-0": volume("clone")}).encode(),
        environment={"PATH": f"{shims}:{path}"},
    )
    assert again.returncode == 0, again.stderr
    pod.unmount_all().result()
    pod.detach("clone")

    with ready_copy.open("r+b") as file:
        file.truncate(96 * MIB)
    before = ready_copy.read_bytes()
    pod.attach(ready_copy, "cut")
    pod.mount_one("cut").refused("device-too-small")
    assert ready_copy.read_bytes() == before


def test_a_busy_volume_stays_mounted_and_open(pod: Pod, ready_copy: Path) -> None:
    """Field case I10: EBUSY is an error, and nothing is half torn down."""
    pod.attach(ready_copy, "disk")
    pod.mount_one("disk").result()
    pod.sh(f"cd {SOURCE}; sleep 600 >/dev/null 2>&1 & echo $! >/run/busy")
    busy = pod.unmount_all()
    busy.refused("mount-busy", code=4)
    assert pod.status() == [{"name": "vol-0", "mounted": True, "open": True, "shielded": True}]
    assert pod.read_file() == PLAINTEXT * 1000
    pod.sh("kill $(cat /run/busy); while kill -0 $(cat /run/busy) 2>/dev/null; do sleep 0.05; done")


def test_when_the_second_volume_fails_the_first_is_closed_again(
    pod: Pod, ready_copy: Path, make_disk: MakeDisk
) -> None:
    """Field case I10. A volume that was mounted before this call stays."""
    blank = make_disk("blank", mib=32)
    pod.attach(ready_copy, "good")
    pod.attach(blank, "bad")
    pod.kbs.denied.add(OTHER_KEY_ID)
    both = {
        "vol-0": volume("good"),
        "vol-1": volume("bad", mount_point="/other", lun="1", key_id=OTHER_KEY_ID),
    }
    failed = pod.mount(both)
    failed.refused("data-hub-failed", code=4)
    assert OTHER_KEY_ID in failed.stderr
    assert pod.leftovers() == ""
    assert blank.read_bytes() == bytes(32 * MIB)

    pod.mount_one("good").result()
    again = pod.mount(both)
    again.refused("data-hub-failed", code=4)
    assert again.stderr.endswith("(vol-1)\n")
    assert pod.read_file() == PLAINTEXT * 1000
    assert [status["name"] for status in pod.status()] == ["vol-0"]


def test_two_new_volumes_are_initialized_side_by_side(pod: Pod, make_disk: MakeDisk) -> None:
    """The blank check takes 6 s for both together; each gets its own key and its own filesystem."""
    pod.attach(make_disk("one", mib=32), "one")
    pod.attach(make_disk("two", mib=32), "two")
    start = time.monotonic()
    mounted = pod.mount(
        {
            "vol-3": volume("one", mount_point="/a"),
            "vol-12": volume("two", mount_point="/b", lun="1", key_id=OTHER_KEY_ID),
        }
    ).result()
    assert time.monotonic() - start > 6
    assert [one["source"] for one in mounted["volumes"]] == [
        "/run/cloud-volumes/vol-3",
        "/run/cloud-volumes/vol-12",
    ]
    pod.write_file("/run/cloud-volumes/vol-3")
    assert not pod.vm.call("os.path:exists", path="/run/cloud-volumes/vol-12/file")
    assert [status["name"] for status in pod.status()] == ["vol-3", "vol-12"]


def test_what_others_put_in_the_place_of_a_volume_is_refused_and_left_alone(
    pod: Pod, ready_copy: Path
) -> None:
    """Field case I10: a stale mapper is verified before anything else."""
    pod.attach(ready_copy, "disk")
    pod.sh(f"mkdir -p {SOURCE}; mount -t tmpfs none {SOURCE}")
    pod.mount_one("disk").refused("foreign-mount")
    pod.sh(f"umount {SOURCE}")
    pod.sh("truncate -s 1M /run/other; losetup /dev/loop7 /run/other")
    # Targets of 2048, or of 8 sectors: so many that the kernel's answer is larger than that of any volume.
    for name, sectors in (("caa-vol-0", 2048), ("caa-vol-0-shield", 2048), ("caa-vol-0-shield", 8)):
        table = f"seq 0 {sectors} 2047 | sed 's/.*/& {sectors} linear 7:7 &/'"
        pod.sh(f"{table} | dmsetup create {name}")
        pod.mount_one("disk").refused("foreign-mapping")
        pod.sh(f'test "$({table})" = "$(dmsetup table {name})"; dmsetup remove {name}')
    pod.sh("losetup -d /dev/loop7")
    pod.mount_one("disk").result()


def test_a_second_container_with_another_key_id_is_refused(pod: Pod, ready_copy: Path) -> None:
    """The host changed key_id: what is mounted was not opened with that key."""
    pod.attach(ready_copy, "disk")
    pod.mount_one("disk").result()
    pod.mount_one("disk", key_id=OTHER_KEY_ID).refused("key-differs")
    assert pod.read_file() == PLAINTEXT * 1000


def test_a_mapping_that_somebody_else_opened_is_not_closed(pod: Pod) -> None:
    pod.sh("truncate -s 1M /run/other; losetup /dev/loop7 /run/other")
    pod.sh("dmsetup create caa-vol-0 --table '0 2048 linear /dev/loop7 0'")
    pod.unmount_all().refused("foreign-mapping")
    assert pod.status() == [{"name": "vol-0", "mounted": False, "open": True, "shielded": False}]
    pod.sh("dmsetup remove caa-vol-0; losetup -d /dev/loop7")


@pytest.mark.parametrize("held_by", ["mount", "mapping"])
def test_a_disk_in_use_by_something_else_is_refused(pod: Pod, make_disk: MakeDisk, held_by: str) -> None:
    image = make_disk("used", mib=32)
    device = pod.attach(image, "used")
    if held_by == "mount":
        pod.sh(f"mkfs.ext4 -q {device}; mkdir -p /run/used; mount {device} /run/used")
    else:
        pod.sh(f"dmsetup create used --table '0 2048 linear {device} 0'")
    try:
        pod.mount_one("used").refused("device-in-use")
    finally:
        pod.sh("umount /run/used" if held_by == "mount" else "dmsetup remove used")
