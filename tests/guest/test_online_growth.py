"""A volume grows while a container uses it: success means that it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.pod import KEY_ID, MIB, PLAINTEXT, Pod, volume
from tests.guest.sandbox import BUNDLES, Sandbox, by_disk, sandbox
from tests.peers.kata import OciMount

DATA = f"{BUNDLES}/c1/data"


@pytest.fixture
def box(pod: Pod, ready_copy: Path) -> Iterator[Sandbox]:
    """A container with a volume of 64 MiB."""
    pod.attach(ready_copy, "disk")
    with sandbox(pod) as running:
        assert running.create("c1", [OciMount("/data", "/x")], {"vol-0": volume("disk")}).code == 0
        yield running
        assert running.remove("c1").code == 0


def size_of(box: Sandbox) -> int:
    return int(box.stats(by_disk("disk")).usage[0].total)


def state(pod: Pod) -> bytes:
    """Everything that growth changes in the guest."""
    return pod.sh(
        "dmsetup table; cat /proc/mounts; dumpe2fs -h /dev/mapper/caa-vol-0 2>/dev/null | grep count"
    )


def test_a_volume_in_use_grows_and_may_not_shrink_again(box: Sandbox, pod: Pod, ready_copy: Path) -> None:
    """Field case E3."""
    before = size_of(box)
    pod.sh(f"exec 3>>{DATA}/written; while sleep 0.02; do echo x >&3; done >/dev/null 2>&1 & echo $! >/run/w")
    pod.resize("disk", 160 * MIB)
    assert box.resize(by_disk("disk"), 160 * MIB).code == 0
    pod.sh("kill $(cat /run/w); while kill -0 $(cat /run/w) 2>/dev/null; do sleep 0.05; done")
    assert size_of(box) > before + 80 * MIB
    assert pod.read_file(DATA) == PLAINTEXT * 1000
    grown = state(pod)
    assert box.resize(by_disk("disk"), 160 * MIB).code == 0, "the same again changes nothing"
    assert state(pod) == grown
    pod.sh(f"dd if=/dev/zero of={DATA}/big bs=1M count=100 status=none; sync")
    assert box.remove("c1").code == 0
    assert box.create("c1", [OciMount("/data", "/x")], {"vol-0": volume("disk")}).code == 0
    assert pod.read_file(DATA) == PLAINTEXT * 1000
    assert box.remove("c1").code == 0
    pod.detach("disk")
    with ready_copy.open("r+b") as file:
        file.truncate(64 * MIB)
    pod.attach(ready_copy, "disk")
    box.create("c1", [OciMount("/data", "/x")], {"vol-0": volume("disk")}).refused("device-too-small")


def test_without_the_disk_or_the_key_nothing_changes_and_there_is_no_success(box: Sandbox, pod: Pod) -> None:
    before = state(pod)
    box.resize(by_disk("disk"), 160 * MIB).refused("disk-not-grown", code=14)
    assert state(pod) == before
    pod.resize("disk", 160 * MIB)
    pod.kbs.denied.add(KEY_ID)
    box.resize(by_disk("disk"), 160 * MIB).refused("data-hub-failed", code=14)
    assert state(pod) == before
    pod.kbs.denied.clear()
    pod.cdh.stop()
    box.resize(by_disk("disk"), 160 * MIB).refused("data-hub-unavailable", code=14)
    pod.cdh.start()
    assert state(pod) == before
    assert box.resize("/run/cloud-volumes/vol-0", 160 * MIB).code == 0


def test_growth_that_was_cut_short_is_finished_by_the_next_call(box: Sandbox, pod: Pod) -> None:
    """The proxy died after the shield had grown, or after the mapping had."""
    pod.resize("disk", 128 * MIB)
    pod.sh(
        "set -- $(dmsetup table caa-vol-0-shield | awk '{print $4, $5}' | tr '\\n' ' ');"
        'printf "0 8192 linear $1 0\\n8192 253952 linear $3 8192\\n" | dmsetup load caa-vol-0-shield;'
        "dmsetup resume caa-vol-0-shield"
    )
    before = size_of(box)
    # The volume is fine as it is: a second container may have it meanwhile.
    assert box.create("c2", [OciMount("/data", "/x")], {"vol-0": volume("disk")}).code == 0
    assert box.remove("c2").code == 0
    assert box.resize(by_disk("disk"), 128 * MIB).code == 0
    assert size_of(box) > before + 50 * MIB
    assert pod.read_file(DATA) == PLAINTEXT * 1000
