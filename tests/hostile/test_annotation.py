"""What a host can write into the annotation, or leave out of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.annotation import MAX_ANNOTATION
from tests.guest.pod import KEY_ID, OTHER_KEY, OTHER_KEY_ID, PLAINTEXT, MakeDisk, volume
from tests.guest.policy import LUKS, Guest, uuid_of
from tests.guest.sandbox import BUNDLES
from tests.hostile.host import CLAIM, DATA, OTHER, Host, made_on_the_host
from tests.peers.kata import OciMount

Fields = dict[str, str | None]

STRIPPED: Fields = {"encrypt_type": None, "key_id": None}
SUBPATH = "/var/lib/kubelet/pods/8c1f/volume-subpaths/pvc-a/c/0"


# --- encryption stripped ------------------------------------------------------------------------------------


def test_encrypt_type_stripped(host_of_either_mode: Host, make_disk: MakeDisk) -> None:
    """Default policy, modes A and B. Field case L3: no mkfs, no mount in the clear."""
    host_of_either_mode.bring(make_disk("blank", mib=32))
    for fields in (STRIPPED, {"encrypt_type": ""}, {"key_id": None}):
        host_of_either_mode.refused("encryption-required", {"vol-0": volume("disk", **fields)})


def test_encrypt_type_stripped_under_a_policy(
    guest: Guest, host_of_either_mode: Host, ready_copy: Path
) -> None:
    """Policy: encrypted, this key. Modes A and B."""
    guest.rules(LUKS)
    host_of_either_mode.bring(ready_copy)
    host_of_either_mode.refused("encryption-required", {"vol-0": volume("disk", **STRIPPED)})


def test_encrypt_type_changed(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B."""
    host.bring(ready_copy)
    host.refused("encryption-type", {"vol-0": volume("disk", encrypt_type="none")})


def test_whole_annotation_stripped_where_a_policy_names_the_place(
    guest: Guest, host_of_either_mode: Host, ready_copy: Path
) -> None:
    """Policy: encrypted, this key. Modes A and B. The data would end in the guest's memory."""
    guest.rules(LUKS)
    host_of_either_mode.bring(ready_copy)
    host_of_either_mode.refused(
        "volume-not-covered", annotated=False, mounts=[OciMount("/data", "/run/elsewhere")]
    )


def test_whole_annotation_stripped_without_a_policy(host_of_either_mode: Host, ready_copy: Path) -> None:
    """Default policy, modes A and B: known by kubelet's folders for CSI volumes and subpaths."""
    host_of_either_mode.bring(ready_copy)
    for source in (CLAIM, SUBPATH):
        host_of_either_mode.refused("volume-not-covered", annotated=False, mounts=[OciMount("/data", source)])


# --- another key, another place -----------------------------------------------------------------------------


def test_key_id_changed_under_a_policy(guest: Guest, host: Host, make_disk: MakeDisk) -> None:
    """Policy: encrypted, this key. Mode B. A blank disk, on which any key of the broker would do."""
    guest.rules(LUKS)
    host.bring(make_disk("blank", mib=32))
    host.refused("policy-key", {"vol-0": volume("disk", key_id=OTHER_KEY_ID)})


def test_key_id_changed_without_a_policy(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B: the volume does not authenticate with another key."""
    host.bring(ready_copy)
    host.refused("header-not-authenticated", {"vol-0": volume("disk", key_id=OTHER_KEY_ID)})


def test_mount_point_that_covers_the_system(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B."""
    host.bring(ready_copy)
    for place in ("/", "/run/x", "/etc", "/usr/bin", "/data/../etc", "data"):
        volumes = {"vol-0": volume("disk", mount_point=place)}
        host.refused("mount-point", volumes, mounts=[OciMount(place, CLAIM)])


def test_mount_point_that_the_policy_does_not_name(guest: Guest, host: Host, ready_copy: Path) -> None:
    """Policy: encrypted, this key, at /data. Mode B."""
    guest.rules(LUKS)
    host.bring(ready_copy)
    host.refused("policy-destination", {"vol-0": volume("disk", mount_point="/other")}, mounts=[OTHER])


def test_mount_point_twice(host: Host, ready_copy: Path, make_disk: MakeDisk) -> None:
    """Default policy, mode B."""
    host.bring(ready_copy)
    host.bring(make_disk("blank", mib=32), "other")
    host.refused("annotation-duplicate", {"vol-0": volume("disk"), "vol-1": volume("other", lun="1")})


# --- malformed ----------------------------------------------------------------------------------------------


def test_name_that_is_no_volume(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B: names become paths and mapper names."""
    host.bring(ready_copy)
    for name in ("../x", "vol-0/../1", "vol-00", "vol-256", "VOL-0", ""):
        host.refused("annotation-volume", {name: volume("disk")})


def test_huge_annotation(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B."""
    host.bring(ready_copy)
    host.refused("annotation-malformed", json.dumps({"vol-0": volume("disk")}) + " " * MAX_ANNOTATION)


def test_deeply_nested_annotation(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B."""
    host.bring(ready_copy)
    host.refused("annotation-malformed", '{"vol-0":' + "[" * 60_000)


def test_filesystem_overlay(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B."""
    host.bring(ready_copy)
    host.refused("filesystem", {"vol-0": volume("disk", fs_type="overlay")})


# --- indexes, disks and LUNs --------------------------------------------------------------------------------


def test_one_index_with_two_disks(host: Host, ready_copy: Path, make_disk: MakeDisk) -> None:
    """Default policy, mode B: readers of JSON differ in which of two members they take."""
    host.bring(ready_copy)
    host.bring(make_disk("blank", mib=32), "other")
    first, second = (json.dumps(volume(disk)) for disk in ("disk", "other"))
    host.refused("annotation-malformed", f'{{"vol-0": {first}, "vol-0": {second}}}')


def test_one_index_with_two_disks_in_two_containers(
    host: Host, ready_copy: Path, make_disk: MakeDisk
) -> None:
    """Default policy, mode B. The container that runs keeps its volume."""
    host.bring(ready_copy)
    host.pod.attach(make_disk("blank", mib=32), "other")
    host.starts("first")
    answer = host.box.create("second", [DATA], {"vol-0": volume("other")})
    answer.refused("disk-differs")
    assert [one.container_id for one in host.box.seen()][-1] == "first"
    assert host.pod.read_file(f"{BUNDLES}/first/data") == PLAINTEXT * 1000


def test_one_disk_under_two_indexes(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B."""
    host.bring(ready_copy)
    volumes = {"vol-0": volume("disk"), "vol-1": volume("disk", mount_point="/other", lun="1")}
    host.refused("annotation-duplicate", volumes, mounts=[DATA, OTHER])


def azure(lun: int) -> str:
    """A disk that the guest knows by its LUN alone."""
    return f"/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/{lun}"


def show_luns(host: Host, *disk_ids: str) -> None:
    """What udev makes in an Azure VM of the LUNs that the host shows."""
    for lun, disk_id in enumerate(disk_ids):
        device = host.pod.vm.call("tests.guest.inside.agent:disk_path", disk_id=disk_id)
        folder = "/dev/disk/azure/data/by-lun"
        host.pod.sh(f"mkdir -p {folder}; ln -sfn {device} {folder}/{lun}")


@pytest.mark.parametrize("keys", ["one key", "two keys"])
def test_luns_reordered(guest: Guest, host: Host, ready_copy: Path, make_disk: MakeDisk, keys: str) -> None:
    """Policy: each place's UUID pinned (one key for both), or each its own key. Mode B."""
    other_key_id, other_key = (KEY_ID, None) if keys == "one key" else (OTHER_KEY_ID, OTHER_KEY)
    other = make_disk("other", mib=32)
    made_on_the_host(other, other_key) if other_key else made_on_the_host(other)
    pins = (uuid_of(ready_copy), uuid_of(other)) if keys == "one key" else ()
    fields = [f'key = "{key_id}"' for key_id in (KEY_ID, other_key_id)]
    for index, pin in enumerate(pins):
        fields[index] += f'\nuuid = "{pin}"'
    guest.measure(
        f'version = 1\n[volumes."/data"]\n{fields[0]}\n[volumes."/other"]\n{fields[1]}\n',
    )
    host.bring(ready_copy)
    host.bring(other, "other")
    show_luns(host, "other", "disk")
    volumes = {
        "vol-0": volume(azure(0)),
        "vol-1": volume(azure(1), mount_point="/other", lun="1", key_id=other_key_id),
    }
    host.refused("policy-uuid" if pins else "header-not-authenticated", volumes, mounts=[DATA, OTHER])
    host.pod.sh("rm -r /dev/disk/azure")
