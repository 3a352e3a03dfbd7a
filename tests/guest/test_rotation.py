"""Key rotation, and recovery with cryptsetup alone, in a real guest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.disk_format import IMAGE_BYTES
from tests.guest.pod import KEY, MIB, PLAINTEXT, SOURCE, Pod
from tests.guest.policy import Guest
from tests.unit.agent.power_cut import key_opens

CURRENT = "default/volume-key/ledger"
PREVIOUS = "default/volume-key/ledger.previous"
NEW = bytes(range(200, 232))
RULES = f'key = "{CURRENT}"'
ROTATES = f'{RULES}\nprevious-key = "{PREVIOUS}"'
PAGE = Path(__file__).parents[2] / "docs" / "recovery.md"


@pytest.fixture
def keys(pod: Pod) -> Iterator[None]:
    """The volume's key lies at ``CURRENT``, and there is no previous one."""
    pod.kbs.put(CURRENT, KEY)
    yield
    for path in (CURRENT, PREVIOUS):
        # The test may have removed it.
        pod.kbs.put(path, b"")
        pod.kbs.remove(path)


def upload_new_key(pod: Pod) -> None:
    """What the owner of the volume does, in this order."""
    pod.kbs.put(PREVIOUS, KEY)
    pod.kbs.put(CURRENT, NEW)


def mount(pod: Pod) -> None:
    pod.mount_one("ready", key_id=CURRENT).result()


def opened_with(pod: Pod) -> str:
    """The key that the data hub was told to open the volume with, at last."""
    options: dict[str, str] = pod.cdh.calls("SecureMount")[-1]["options"]
    return options["key"].removeprefix("kbs:///")


@pytest.mark.usefixtures("keys")
def test_a_rotated_volume_keeps_its_data_and_opens_with_the_new_key_alone(
    guest: Guest, ready_copy: Path, tmp_path: Path
) -> None:
    pod = guest.pod
    guest.rules(ROTATES)
    pod.attach(ready_copy, "ready")
    mount(pod)
    pod.sh(f"echo before >{SOURCE}/more")
    upload_new_key(pod)
    mount(pod)  # A second container of a pod that runs: nothing to rotate yet.
    pod.unmount_all().result()

    before = ready_copy.read_bytes()
    guest.rules(f"{ROTATES}\nread-only = true")
    mount(pod)
    assert opened_with(pod) == PREVIOUS
    assert pod.sh(f"cat {SOURCE}/more") == b"before\n"
    pod.unmount_all().result()
    assert ready_copy.read_bytes() == before, "a read-only volume is not rotated"

    guest.rules(ROTATES)
    for _ in range(2):
        mount(pod)
    assert opened_with(pod) == CURRENT
    assert pod.read_file() == PLAINTEXT * 1000
    assert pod.sh(f"cat {SOURCE}/more") == b"before\n"
    pod.unmount_all().result()
    with ready_copy.open("rb") as file:
        area = file.read(4 * MIB)
    assert key_opens(area, NEW, tmp_path)
    assert not key_opens(area, KEY, tmp_path)

    pod.kbs.remove(PREVIOUS)
    guest.rules(RULES)
    mount(pod)
    assert pod.read_file() == PLAINTEXT * 1000
    export = ("header", "export", "--annotation", "-", "--volume", "vol-0", "--output")
    annotation = pod.annotation("ready", key_id=CURRENT)
    exported = pod.agent(*export, "/run/rotated.img", stdin=annotation).result()
    assert exported["key_id"] == CURRENT, "while it is mounted"
    pod.agent(*export, "/run/rotated.img", stdin=annotation).refused("output-exists")
    assert pod.sh("head -c 1081344 /run/rotated.img; rm /run/rotated.img") == area[:IMAGE_BYTES]
    pod.unmount_all().result()
    # The host brings back the header from before: the policy no longer trusts who knows the old key.
    with ready_copy.open("r+b") as file:
        file.write(before[: 4 * MIB])
    pod.mount_one("ready", key_id=CURRENT).refused("header-not-authenticated")
    guest.rules(ROTATES)
    pod.mount_one("ready", key_id=CURRENT).refused("data-hub-failed", code=4)
    assert ready_copy.read_bytes()[: 4 * MIB] == before[: 4 * MIB]


@pytest.mark.usefixtures("keys")
def test_an_agent_killed_in_the_middle_of_a_rotation_leaves_it_to_the_next_one(
    pod: Pod, ready_copy: Path, tmp_path: Path
) -> None:
    disk = pod.attach(ready_copy, "ready")
    upload_new_key(pod)
    pod.vm.call(
        "tests.guest.inside.kill:kill_rotations",
        device=disk,
        key_id=CURRENT,
        previous_key_id=PREVIOUS,
        content=PLAINTEXT.decode() * 1000,
        # The record in the first slot, which makes the new header the one in force; and that header in place.
        steps=[f"write at {4 * MIB - 8192}", "write at 0"],
        timeout=400,
    )
    with ready_copy.open("rb") as file:
        area = file.read(4 * MIB)
    assert key_opens(area, NEW, tmp_path)
    assert not key_opens(area, KEY, tmp_path)


def commands(heading: str) -> list[str]:
    """The command lines of one section of the page."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [line.removeprefix("$ ") for line in section.splitlines() if line.startswith("$ ")]


def test_a_volume_is_recovered_with_cryptsetup_alone_as_the_page_says(pod: Pod, ready_copy: Path) -> None:
    disk = pod.attach(ready_copy, "ready")
    pod.sh("mkdir -m 0700 /run/recovery")
    for name, content in (("volume.key", KEY), ("annotation.json", pod.annotation("ready").encode())):
        pod.vm.check(["sh", "-ec", f"cat >/run/recovery/{name}"], stdin=content)
    ran = []

    def follow(lines: list[str]) -> None:
        script = "\n".join(["cd /run/recovery", f"DISK={disk}", *lines])
        pod.sh(script)
        ran.extend(lines)

    def recover(lines: list[str]) -> None:
        follow(lines)
        assert pod.sh("cd /run/recovery; tar -xOf files.tar ./file; rm files.tar") == PLAINTEXT * 1000

    try:
        export, *from_export = commands("When the header is lost")
        follow([export])
        assert pod.sh("stat -c '%a %s' /run/recovery/header.img") == f"600 {4 * MIB}\n".encode()
        recover(commands("From the disk"))
        pod.sh(f"dd if=/dev/zero of={disk} bs=32K count=1 conv=fsync status=none")
        recover(commands("When a change of the header was cut short"))
        pod.sh(f"dd if=/dev/zero of={disk} bs=1M count=4 conv=fsync status=none")
        pod.mount_one("ready").refused("not-blank")
        recover(from_export)
        follow(commands("Putting the header back"))
        pod.mount_one("ready").result()
        assert pod.read_file() == PLAINTEXT * 1000
    finally:
        pod.sh("rm -r /run/recovery")
    every = [line for line in PAGE.read_text().splitlines() if line.startswith("$ ")]
    assert sorted(ran) == sorted(line.removeprefix("$ ") for line in every)
