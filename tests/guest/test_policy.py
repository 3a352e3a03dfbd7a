"""The volume policy in a real guest: what the mount enforces, whatever the host's annotation says.

All tests run the agent's command line; the policy is measured initdata unless a test says otherwise.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guest.pod import KEY, MIB, PLAINTEXT, SOURCE, MakeDisk
from tests.guest.policy import LUKS, OTHER_UUID, Guest, uuid_of
from tests.lab.kbs import Kbs
from tests.unit.agent.policy_support import initdata

POLICY_RESOURCE = "default/policy/volumes"


@pytest.mark.usefixtures("hasty")
def test_a_volume_as_the_policy_says_is_made_and_mounted(guest: Guest, make_disk: MakeDisk) -> None:
    guest.rules(f'{LUKS}\nminimum-size = "32Mi"\nfs-group = 4321')
    image = make_disk("new", mib=32)
    guest.pod.attach(image, "new")
    guest.pod.mount_one("new", fs_group="1234").result()
    assert guest.pod.sh(f"stat -c '%a %g' {SOURCE}") == b"2775 4321\n", "the policy's group, not the host's"
    guest.pod.write_file()
    guest.pod.unmount_all().result()
    assert PLAINTEXT not in image.read_bytes()


@pytest.mark.parametrize(
    ("fields", "changes", "rule"),
    [
        (f'{LUKS}\nminimum-size = "33Mi"', {}, "policy-size"),
        (f"{LUKS}\nread-only = true", {}, "format-forbidden"),
        ('encryption = "none"', {}, "encryption-unexpected"),
        ('encryption = "none"\nformat = "never"', {"encrypt_type": None, "key_id": None}, "format-forbidden"),
        (f"{LUKS}\nencrypt = true", {}, "policy-invalid"),
    ],
)
def test_a_blank_disk_that_breaks_a_rule_stays_blank(
    guest: Guest, make_disk: MakeDisk, fields: str, changes: dict[str, str | None], rule: str
) -> None:
    """Field cases I3 and L3."""
    guest.rules(fields)
    image = make_disk("blank", mib=32)
    guest.pod.attach(image, "blank")
    outcome = guest.pod.mount_one("blank", **changes)
    outcome.refused(rule)
    assert "vol-0" in outcome.stderr or rule == "policy-invalid", "Kubernetes shows nothing but this"
    assert guest.pod.leftovers() == ""
    assert image.read_bytes() == bytes(32 * MIB)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        (f'{LUKS}\nminimum-size = "65Mi"', "policy-size"),
        ('encryption = "none"', "not-plain-ext4"),
    ],
)
def test_a_volume_that_breaks_a_rule_is_not_touched(
    guest: Guest, ready_copy: Path, fields: str, rule: str
) -> None:
    guest.rules(fields)
    before = ready_copy.read_bytes()
    guest.pod.attach(ready_copy, "ready")
    plain = {"encrypt_type": None, "key_id": None} if "none" in fields else {}
    guest.pod.mount_one("ready", **plain).refused(rule)
    assert guest.pod.leftovers() == ""
    assert ready_copy.read_bytes() == before


def test_the_pinned_volume_is_mounted_and_another_one_not_even_when_open(
    guest: Guest, ready_copy: Path
) -> None:
    guest.rules(f'{LUKS}\nuuid = "{uuid_of(ready_copy)}"')
    guest.pod.attach(ready_copy, "ready")
    guest.pod.mount_one("ready").result()
    assert guest.pod.read_file() == PLAINTEXT * 1000
    guest.rules(f'{LUKS}\nuuid = "{OTHER_UUID}"')
    guest.pod.mount_one("ready").refused("policy-uuid")


def test_a_read_only_volume_is_read_and_not_a_byte_of_it_changes(guest: Guest, ready_copy: Path) -> None:
    guest.rules(f"{LUKS}\nread-only = true\nfs-group = 4321")
    # The disk has grown meanwhile, which a volume that is written to would take notice of.
    with ready_copy.open("r+b") as file:
        file.truncate(68 * MIB)
    before = ready_copy.read_bytes()
    guest.pod.attach(ready_copy, "ready")
    guest.pod.mount_one("ready").result()
    guest.pod.mount_one("ready").result()
    assert guest.pod.read_file() == PLAINTEXT * 1000
    assert {"ro", "noload", "nodev", "nosuid"} <= {
        "noload" if option == "norecovery" else option for option in guest.mount_options()
    }
    assert guest.pod.run(f"touch {SOURCE}/new").returncode != 0
    guest.rules(LUKS)
    guest.pod.mount_one("ready").refused("mount-differs")
    guest.pod.unmount_all().result()
    assert ready_copy.read_bytes() == before


@pytest.mark.usefixtures("hasty")
def test_a_plain_volume_is_made_mounted_and_found_again(guest: Guest, make_disk: MakeDisk) -> None:
    guest.rules('encryption = "none"')
    image = make_disk("plain", mib=32)
    guest.pod.attach(image, "plain")
    plain = {"encrypt_type": None, "key_id": None}
    for _ in range(2):
        guest.pod.mount_one("plain", **plain, fs_group="1234").result()
    assert guest.pod.status() == [{"name": "vol-0", "mounted": True, "open": True, "shielded": False}]
    assert guest.pod.sh(f"stat -c '%a %g' {SOURCE}") == b"2775 1234\n"
    guest.pod.write_file()
    guest.pod.unmount_all().result()
    assert guest.pod.leftovers() == ""
    assert PLAINTEXT in image.read_bytes(), "it is what it says"
    guest.rules('encryption = "none"\nread-only = true')
    guest.pod.mount_one("plain", **plain).result()
    assert guest.pod.read_file() == PLAINTEXT * 1000
    assert "ro" in guest.mount_options()
    # What is open in the clear does not pass for the encrypted volume of another container.
    guest.rules(LUKS)
    assert guest.pod.mount_one("plain").code == 3
    guest.pod.unmount_all().result()
    guest.pod.mount_one("plain").refused("header-not-authenticated")


@pytest.mark.parametrize("content", ["xfs", "partitions", "a byte in the middle"])
def test_a_plain_disk_with_other_data_is_not_formatted(
    guest: Guest, make_disk: MakeDisk, content: str
) -> None:
    guest.rules('encryption = "none"')
    image = make_disk("other", mib=32)
    marks = {"xfs": (0, b"XFSB"), "partitions": (510, b"\x55\xaa"), "a byte in the middle": (2 * MIB, b"x")}
    offset, mark = marks[content]
    with image.open("r+b") as file:
        file.seek(offset)
        file.write(mark)
    before = image.read_bytes()
    guest.pod.attach(image, "other")
    guest.pod.mount_one("other", encrypt_type=None, key_id=None).refused("not-plain-ext4")
    assert image.read_bytes() == before


def test_a_policy_may_be_baked_into_the_image(guest: Guest, ready_copy: Path) -> None:
    guest.write("/etc/confidential-csi/volumes.toml", b"version = 1\n[volumes]\n")
    guest.pod.attach(ready_copy, "ready")
    guest.pod.mount_one("ready").refused("policy-destination")
    guest.rules(LUKS)
    guest.pod.mount_one("ready").result()


def test_a_policy_may_come_from_the_key_broker(guest: Guest, ready_copy: Path) -> None:
    """It changes without the measurement; not to have it is no reason to do without."""
    kbs: Kbs = guest.pod.kbs
    guest.measure(f'version = 1\npolicy-resource = "{POLICY_RESOURCE}"\n')
    guest.pod.attach(ready_copy, "ready")
    guest.pod.mount_one("ready").refused("data-hub-failed", code=4)
    kbs.put(POLICY_RESOURCE, b"version = 1\n[volumes]\n")
    guest.pod.mount_one("ready").refused("policy-destination")
    kbs.put(POLICY_RESOURCE, f'version = 1\n[volumes."/data"]\n{LUKS}\n'.encode())
    guest.pod.mount_one("ready").result()


def test_initdata_that_was_not_measured_stops_every_mount_but_no_unmount(
    guest: Guest, ready_copy: Path
) -> None:
    guest.rules(LUKS)
    guest.pod.attach(ready_copy, "ready")
    guest.pod.mount_one("ready").result()
    blob, _ = initdata({"volumes.toml": 'version = 1\n[volumes."/data"]\nencryption = "none"\n'})
    guest.write("/run/peerpod/initdata", blob)
    guest.pod.mount_one("ready").refused("initdata-digest")
    guest.pod.sh("rm /run/peerpod/initdata.digest")
    guest.pod.mount_one("ready").refused("policy-unreadable")
    guest.pod.unmount_all().result()


@pytest.mark.usefixtures("hasty")
def test_freed_blocks_are_told_to_the_host_only_on_the_policys_word(
    guest: Guest, make_disk: MakeDisk
) -> None:
    image = make_disk("discard", mib=64)
    guest.rules(LUKS)
    guest.pod.attach(image, "discard")
    freed = []
    for fields in (LUKS, f"{LUKS}\ndiscard = true"):
        guest.rules(fields)
        for _ in range(2):
            guest.pod.mount_one("discard").result()
        guest.pod.sh(f"head -c 16777216 /dev/urandom >{SOURCE}/big; sync")
        before = image.stat().st_blocks
        guest.pod.sh(f"rm {SOURCE}/big; sync; touch {SOURCE}/x; sync")
        assert ("discard" in guest.mount_options()) is ("discard" in fields)
        # The kernel discards in the background, and has done so when nothing is mounted any more.
        guest.pod.unmount_all().result()
        freed.append((before - image.stat().st_blocks) * 512)
    assert freed[0] < MIB
    assert freed[1] > 8 * MIB


def test_a_volume_of_another_tool_is_adopted_where_the_policy_says_so(
    guest: Guest, make_disk: MakeDisk
) -> None:
    """As the data hub before its release 0.18 formats them: header of 16 MiB, slow key derivation."""
    image = make_disk("foreign", mib=64)
    device = guest.pod.attach(image, "foreign")
    format_options = (
        "--batch-mode --type luks2 --cipher aes-xts-plain64 --sector-size 4096 "
        "--pbkdf argon2id --pbkdf-force-iterations 4 --pbkdf-memory 1024 --pbkdf-parallel 1"
    )
    guest.pod.vm.check(["sh", "-ec", "cat >/run/foreign.key"], stdin=KEY)
    guest.pod.sh(
        f"cryptsetup luksFormat {format_options} --key-file /run/foreign.key {device}\n"
        f"cryptsetup open --key-file /run/foreign.key {device} foreign\n"
        "mkfs.ext4 -q /dev/mapper/foreign; mkdir -p /run/foreign; mount /dev/mapper/foreign /run/foreign\n"
        "echo kept >/run/foreign/file; umount /run/foreign; cryptsetup close foreign; rm /run/foreign.key"
    )
    before = image.read_bytes()
    guest.rules(LUKS)
    guest.pod.mount_one("foreign").refused("header-not-authenticated")
    guest.rules(f'{LUKS}\nadopt = true\nuuid = "{OTHER_UUID}"')
    guest.pod.mount_one("foreign").refused("policy-uuid")
    assert image.read_bytes() == before
    guest.rules(f'{LUKS}\nadopt = true\nuuid = "{uuid_of(image)}"')
    guest.pod.mount_one("foreign").result()
    assert guest.pod.read_file() == b"kept\n"
    guest.pod.unmount_all().result()
    guest.rules(LUKS)
    guest.pod.mount_one("foreign").result()
    assert guest.pod.read_file() == b"kept\n"
    guest.pod.unmount_all().result()
    guest.rules(f"{LUKS}\nread-only = true")
    guest.pod.mount_one("foreign").result()
    assert guest.pod.read_file() == b"kept\n"
