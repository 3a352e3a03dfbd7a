"""The guard in a real guest: what unmodified cloud-api-adaptor sends, with persistence and header checks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proto import cdh_pb2
from tests.guest.pod import KEY_ID, OTHER_KEY_ID, PLAINTEXT, SOURCE, MakeDisk, Pod
from tests.guest.sandbox import Answer, background, call

CDH = "/run/confidential-containers/cdh.sock"
MOVED = "/run/confidential-containers/moved.sock"


@pytest.fixture
def guarded(pod: Pod) -> Iterator[Pod]:
    """The data hub's socket is moved, as by its configuration, and the guard stands in its place."""
    pod.sh(f"mv {CDH} {MOVED}")
    try:
        with background(pod, f"confidential-csi-agent guard --listen {CDH} --upstream {MOVED}", CDH):
            yield pod
    finally:
        pod.sh(f"mv {MOVED} {CDH}")


def secure_mount(pod: Pod, disk_id: str, *, source_type: str, key_id: str = KEY_ID) -> Answer:
    """As cloud-api-adaptor's forwarder calls the hub."""
    device = pod.vm.call("tests.guest.inside.agent:disk_path", disk_id=disk_id)
    request = cdh_pb2.SecureMountRequest(
        volume_type="block-device",
        options={
            "devicePath": device,
            "sourceType": source_type,
            "targetType": "fileSystem",
            "encryptionType": "luks2",
            "filesystemType": "ext4",
            "key": f"kbs:///{key_id}",
            "mapperName": "caa-vol-0",
        },
        mount_point=SOURCE,
    )
    return call(pod, CDH, "api.SecureMountService", "SecureMount", request.SerializeToString())


def close_as_the_forwarder_does(pod: Pod) -> None:
    pod.sh(f"umount {SOURCE}; cryptsetup close caa-vol-0")


def test_a_new_disk_keeps_its_data_although_the_forwarder_says_empty(
    guarded: Pod, make_disk: MakeDisk
) -> None:
    """Field case I1: the hub itself would have made a header in memory, and the data would be lost."""
    image = make_disk("new", mib=32)
    guarded.attach(image, "new")
    assert secure_mount(guarded, "new", source_type="empty").code == 0
    guarded.write_file()
    assert secure_mount(guarded, "new", source_type="empty").code == 0, "a second container asks again"
    assert guarded.read_file() == PLAINTEXT * 1000
    close_as_the_forwarder_does(guarded)
    deadline = time.monotonic() + 30
    while guarded.leftovers():
        assert time.monotonic() < deadline, guarded.leftovers()
        time.sleep(0.5)
    assert secure_mount(guarded, "new", source_type="encrypted").code == 0
    assert guarded.read_file() == PLAINTEXT * 1000
    assert PLAINTEXT not in image.read_bytes()
    assert {call["options"]["sourceType"] for call in guarded.cdh.calls("SecureMount")} == {"encrypted"}


def test_a_header_that_does_not_authenticate_is_refused(guarded: Pod, ready_copy: Path) -> None:
    before = ready_copy.read_bytes()
    guarded.attach(ready_copy, "disk")
    answer = secure_mount(guarded, "disk", source_type="encrypted", key_id=OTHER_KEY_ID)
    answer.refused("header-not-authenticated")
    assert guarded.leftovers() == ""
    assert ready_copy.read_bytes() == before


def test_other_calls_reach_the_real_hub(guarded: Pod) -> None:
    request = cdh_pb2.GetResourceRequest(ResourcePath=f"kbs:///{KEY_ID}").SerializeToString()
    answer = call(guarded, CDH, "api.GetResourceService", "GetResource", request)
    assert len(cdh_pb2.GetResourceResponse.FromString(answer.payload).Resource) == 64
