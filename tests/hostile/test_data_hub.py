"""Keys that do not come, come late, or are not the key; a data hub that fails to open the volume.

The host sits between the guest and its key broker, and can also starve the data hub.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guest.pod import KEY, KEY_ID, PLAINTEXT, MakeDisk, Pod, volume
from tests.guest.sandbox import BUNDLES
from tests.hostile.host import Host, digest
from tests.lab.cdh import Fault
from tests.tools.waiting import eventually

FAILURE = "Secure Mount failed"


@pytest.fixture(params=["blank", "ready"])
def brought(host: Host, ready_copy: Path, make_disk: MakeDisk, request: pytest.FixtureRequest) -> Host:
    """The host with a disk of the first boot, and with one of a later boot."""
    host.bring(make_disk("blank", mib=32) if request.param == "blank" else ready_copy)
    return host


def test_key_refused(brought: Host) -> None:
    """Default policy, mode B. Field case J3: no random key, no retry storm; the error names the key id."""
    requests = len(brought.pod.kbs.requests)
    brought.pod.kbs.denied.add(KEY_ID)
    error = brought.refused("data-hub-failed", code=14)
    assert KEY_ID in error
    assert KEY.hex() not in error
    assert len(brought.pod.kbs.requests) == requests + 1


def test_key_that_does_not_exist(brought: Host) -> None:
    """Default policy, mode B. Field case J3."""
    volumes = {"vol-0": volume("disk", key_id="default/key/none")}
    assert "default/key/none" in brought.refused("data-hub-failed", volumes, code=14)


@pytest.mark.parametrize("key", [b"", KEY[:31]])
def test_key_empty_or_short(brought: Host, key: bytes) -> None:
    """Default policy, mode B: a short one could be guessed from the record on the disk."""
    brought.pod.kbs.put(KEY_ID, key)
    try:
        assert KEY_ID in brought.refused("key-too-short")
    finally:
        brought.pod.kbs.put(KEY_ID, KEY)


@pytest.mark.parametrize("key", [KEY[::-1], KEY + b"\n", KEY[:-1]])
def test_key_changed(host: Host, ready_copy: Path, key: bytes) -> None:
    """Default policy, mode B: byte for byte, or not at all."""
    host.bring(ready_copy)
    host.pod.kbs.put(KEY_ID, key)
    try:
        host.refused("header-not-authenticated")
    finally:
        host.pod.kbs.put(KEY_ID, KEY)


def test_hub_refuses_to_open(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B."""
    host.bring(ready_copy)
    host.pod.cdh.set_fault("SecureMount", "refuse")
    host.refused("data-hub-failed", code=14, opened=1)


@pytest.mark.parametrize("method", ["GetResource", "SecureMount"])
def test_hub_late_but_within_the_limit(host: Host, ready_copy: Path, method: str) -> None:
    """Default policy, mode B: succeeds."""
    host.pod.attach(ready_copy, "disk")
    host.pod.cdh.set_fault(method, "late", seconds=1.0)
    host.starts("container")
    assert host.pod.read_file(f"{BUNDLES}/container/data") == PLAINTEXT * 1000


@pytest.mark.parametrize("fault", ["absent", "hang"])
def test_hub_absent_or_hanging(pod: Pod, ready_copy: Path, make_disk: MakeDisk, fault: str) -> None:
    """Default policy, plain ``mount``, with one second of patience. Both disks at once. Field case J3."""
    images = [ready_copy, make_disk("blank", mib=32)]
    before = [digest(image) for image in images]
    for image, disk_id in zip(images, ("ready", "blank"), strict=True):
        pod.attach(image, disk_id)
    both = {"vol-0": volume("ready"), "vol-1": volume("blank", mount_point="/other", lun="1")}
    if fault == "absent":
        pod.cdh.stop()
    else:
        pod.cdh.set_fault("GetResource", "hang")
    try:
        outcome = pod.mount(both, "--cdh-timeout", "1")
    finally:
        if fault == "absent":
            pod.cdh.start()
    outcome.refused("data-hub-unavailable" if fault == "absent" else "data-hub-timeout", code=4)
    assert outcome.stderr.count(KEY_ID) == 2
    assert pod.leftovers() == ""
    assert [digest(image) for image in images] == before


@pytest.mark.parametrize("fault", ["hang", "die-after", "held"])
def test_hub_that_opens_and_does_not_say_so(pod: Pod, ready_copy: Path, fault: Fault) -> None:
    """Default policy, plain ``mount``, with a few seconds of patience. Field case J3.

    ``die-after``: the mapping came up, but no answer did. ``held``: the hub goes on after the agent gave up.
    """
    pod.attach(ready_copy, "disk")
    before = digest(ready_copy)
    pod.cdh.set_fault("SecureMount", fault)
    opened = len(pod.cdh.calls("SecureMount"))
    # Each of three attempts to get the key may take a third of it.
    patience = ("--cdh-timeout", "60" if fault == "die-after" else "3")
    outcome = pod.agent(*patience, "mount", "--annotation", "-", stdin=pod.annotation("disk"))
    outcome.refused("data-hub-unavailable" if fault == "die-after" else "data-hub-timeout", code=4)
    assert len(pod.cdh.calls("SecureMount")) == opened + 1
    assert pod.leftovers() == ""
    assert digest(ready_copy) == before
    if fault == "die-after":
        pod.cdh.start()
    failures = pod.cdh.log().count(FAILURE)
    pod.cdh.set_fault("SecureMount", "none")
    if fault == "held":
        eventually(lambda: pod.cdh.log().count(FAILURE) > failures)
        assert pod.leftovers() == "", "what it was to open is gone"
    pod.mount_one("disk").result()
    assert pod.read_file() == PLAINTEXT * 1000
