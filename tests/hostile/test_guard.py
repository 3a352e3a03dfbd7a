"""Attacks on a PodVM in mode C, where unmodified cloud-api-adaptor asks the guard for the data hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.disk_format import IMAGE_BYTES, REDO_OFFSET
from tests.fakes.luks_headers import forge, null_segment
from tests.guest.pod import KEY_ID, OTHER_KEY_ID, MakeDisk, Pod
from tests.guest.policy import LUKS, Guest, uuid_of
from tests.guest.sandbox import guard, secure_mount
from tests.hostile.host import digest, header_area, made_on_the_host, overwrite


@pytest.fixture(scope="module")
def running_guard(shared_pod: Pod) -> Iterator[Pod]:
    """One guard for the tests of this file."""
    with guard(shared_pod):
        yield shared_pod


@pytest.fixture
def guarded(pod: Pod, running_guard: Pod) -> Pod:
    """The guest with the guard in it."""
    assert pod is running_guard
    return pod


def refused(pod: Pod, image: Path, rule: str, **changes: str) -> None:
    """SecureMount of a disk must fail by this rule, and leave disk and guest as they are."""
    before = digest(image)
    opened = len(pod.cdh.calls("SecureMount"))
    pod.attach(image, "disk")
    arguments = {"source_type": "encrypted", **changes}
    secure_mount(pod, "disk", **arguments).refused(rule)
    assert len(pod.cdh.calls("SecureMount")) == opened
    assert pod.leftovers() == ""
    assert digest(image) == before


def test_key_changed(guarded: Pod, ready_copy: Path) -> None:
    """Default policy, mode C."""
    refused(guarded, ready_copy, "header-not-authenticated", key_id=OTHER_KEY_ID)


def test_key_changed_under_a_policy(guest: Guest, guarded: Pod, make_disk: MakeDisk) -> None:
    """Policy: this key. Mode C."""
    guest.rules(LUKS)
    refused(guarded, make_disk("blank", mib=32), "policy-key", key_id=OTHER_KEY_ID)


def test_segment_cipher_null(guarded: Pod, ready_copy: Path) -> None:
    """Default policy, mode C."""
    forged = forge(header_area(ready_copy)[:IMAGE_BYTES], null_segment)
    for start in (0, REDO_OFFSET):
        overwrite(ready_copy, start, forged)
    refused(guarded, ready_copy, "header-not-authenticated")


@pytest.mark.parametrize("source_type", ["empty", "encrypted"])
def test_blank_disk_for_a_volume_that_exists(
    guest: Guest, guarded: Pod, make_disk: MakeDisk, source_type: str
) -> None:
    """Policy: format never. Mode C, whatever the forwarder calls the disk."""
    guest.rules(f'{LUKS}\nformat = "never"')
    refused(guarded, make_disk("blank", mib=32), "format-forbidden", source_type=source_type)


def test_disk_of_another_volume_under_the_same_key(
    guest: Guest, guarded: Pod, ready_copy: Path, make_disk: MakeDisk
) -> None:
    """Policy: the UUID pinned. Mode C."""
    guest.rules(f'{LUKS}\nuuid = "{uuid_of(ready_copy)}"')
    refused(guarded, made_on_the_host(make_disk("other", mib=32)), "policy-uuid")


@pytest.mark.parametrize(
    "changes",
    [
        {"target_type": "device"},
        {"mount_point": "/run/elsewhere"},
        {"mapper_name": "caa-vol-1"},
        {"key_uri": f"file:///{KEY_ID}"},
        {"key_uri": ""},
    ],
)
def test_call_that_would_get_past_the_guard(guarded: Pod, ready_copy: Path, changes: dict[str, str]) -> None:
    """Default policy, mode C: without a key the hub would make up one; elsewhere nobody would look."""
    refused(guarded, ready_copy, "guard-request", **changes)
