"""The wrong disk: another volume's, nobody's, two at once, or not the whole of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agent.disk_format import HEADER_AREA_BYTES
from tests.guest.pod import MIB, OTHER_KEY, PLAINTEXT, MakeDisk, volume
from tests.guest.policy import LUKS, Guest, uuid_of
from tests.guest.sandbox import BUNDLES
from tests.hostile.host import DATA, OTHER, Host, copied, luks_format, made_on_the_host, overwrite
from tests.lab.caa import serial_of


def test_disk_of_another_volume_under_the_same_key(
    guest: Guest, host: Host, ready_copy: Path, make_disk: MakeDisk
) -> None:
    """Policy: the UUID pinned. Mode B."""
    guest.rules(f'{LUKS}\nuuid = "{uuid_of(ready_copy)}"')
    host.bring(made_on_the_host(make_disk("other", mib=32)))
    error = host.refused("policy-uuid")
    assert "vol-0" in error


@pytest.mark.parametrize("fields", ['format = "never"', "uuid"])
def test_blank_disk_for_a_volume_that_exists(
    guest: Guest, host: Host, ready_copy: Path, make_disk: MakeDisk, fields: str
) -> None:
    """Policy: format never, or the UUID pinned. Mode B. Field case I3."""
    guest.rules(f"{LUKS}\n" + (f'uuid = "{uuid_of(ready_copy)}"' if fields == "uuid" else fields))
    host.bring(make_disk("blank", mib=32))
    host.refused("format-forbidden")


def test_two_devices_with_one_serial(host: Host, ready_copy: Path, make_disk: MakeDisk) -> None:
    """Default policy, mode B. Taking the first that is found would be taking either."""
    host.bring(ready_copy)
    host.pod.vm.attach(make_disk("blank", mib=32), serial_of("disk"), handle="second")
    host.pod.vm.call("tests.guest.inside.agent:wait_for_disks", serial=serial_of("disk"), count=2)
    host.refused("device-ambiguous")
    host.pod.vm.detach("second")


def test_truncated_disk(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B: smaller than its record says."""
    with ready_copy.open("r+b") as file:
        file.truncate(48 * MIB)
    host.bring(ready_copy)
    host.refused("device-too-small")


def test_disk_cut_within_its_header(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B."""
    with ready_copy.open("r+b") as file:
        file.truncate(2 * MIB)
    host.bring(ready_copy)
    host.refused("header-not-authenticated")


def test_plaintext_ext4_under_an_encrypted_claim(host: Host, make_disk: MakeDisk) -> None:
    """Default policy, mode B. Field case L3."""
    image = make_disk("ext4", mib=32)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    host.bring(image)
    assert "ext4" in host.refused("header-not-authenticated")


def test_luks1(host: Host, make_disk: MakeDisk) -> None:
    """Default policy, mode B: the key opens it, and nothing in its header can be authenticated."""
    image = make_disk("luks1", mib=32)
    luks_format(image, kind="luks1")
    host.bring(image)
    assert "LUKS1" in host.refused("header-not-authenticated")


def test_luks2_disk_of_others(host: Host, make_disk: MakeDisk) -> None:
    """Default policy, mode B: the key opens it, and no record of ours vouches for it."""
    image = make_disk("foreign", mib=32)
    luks_format(image)
    host.bring(image)
    assert "made by someone else" in host.refused("header-not-authenticated")


@pytest.mark.parametrize(("zeroed", "reason"), [([0], "damaged LUKS"), ([0, 16384], "other data")])
def test_damaged_luks_disk_of_others_is_not_new(
    host: Host, make_disk: MakeDisk, zeroed: list[int], reason: str
) -> None:
    """Default policy, mode B. Field case I2."""
    image = make_disk("damaged", mib=32)
    luks_format(image)
    for offset in zeroed:
        overwrite(image, offset, bytes(4096))
    host.bring(image)
    assert reason in host.refused("header-not-authenticated")


@pytest.mark.parametrize("offset", [1 * MIB, 32 * MIB - 4096])
def test_a_single_stray_byte_is_not_blank(host: Host, make_disk: MakeDisk, offset: int) -> None:
    """Default policy, mode B."""
    image = make_disk("stray", mib=32)
    overwrite(image, offset, b"x")
    host.bring(image)
    host.refused("header-not-authenticated" if offset < HEADER_AREA_BYTES else "not-blank")


def test_a_good_volume_beside_a_bad_one_is_closed_again(
    host: Host, ready_copy: Path, make_disk: MakeDisk
) -> None:
    """Default policy, mode B. With the right disk both start: what refuses in these tests is the attack."""
    # It is mounted for a moment, which leaves a trace in its superblock.
    host.pod.attach(ready_copy, "disk")
    host.bring(made_on_the_host(make_disk("wrong", mib=32), OTHER_KEY), "other")
    volumes = {"vol-0": volume("disk"), "vol-1": volume("other", mount_point="/other", lun="1")}
    host.refused("header-not-authenticated", volumes, mounts=[DATA, OTHER], opened=1)
    host.take_away("other")
    host.bring(copied(ready_copy, "right"), "other")
    host.starts("good", volumes, mounts=[DATA, OTHER])
    assert host.pod.read_file(f"{BUNDLES}/good/other") == PLAINTEXT * 1000
