"""The guard in a real guest: what unmodified cloud-api-adaptor sends, with persistence and header checks."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from proto import cdh_pb2
from tests.guest.pod import KEY_ID, PLAINTEXT, SOURCE, MakeDisk, Pod
from tests.guest.sandbox import CDH, call, guard, secure_mount


@pytest.fixture
def guarded(pod: Pod) -> Iterator[Pod]:
    with guard(pod):
        yield pod


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
    deadline = time.monotonic() + 100
    while guarded.leftovers():
        assert time.monotonic() < deadline, guarded.leftovers()
        time.sleep(0.5)
    assert secure_mount(guarded, "new", source_type="encrypted").code == 0
    assert guarded.read_file() == PLAINTEXT * 1000
    assert PLAINTEXT not in image.read_bytes()
    assert {call["options"]["sourceType"] for call in guarded.cdh.calls("SecureMount")} == {"encrypted"}


def test_other_calls_reach_the_real_hub(guarded: Pod) -> None:
    request = cdh_pb2.GetResourceRequest(ResourcePath=f"kbs:///{KEY_ID}").SerializeToString()
    answer = call(guarded, CDH, "api.GetResourceService", "GetResource", request)
    assert len(cdh_pb2.GetResourceResponse.FromString(answer.payload).Resource) == 64
