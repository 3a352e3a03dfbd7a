"""Volumes in the runtime measurement, in a real guest: opened and closed, killed in between, refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.luks2 import newest_valid
from tests.guest.pod import KEY_ID, MIB, PLAINTEXT, SOURCE, Pod
from tests.lab.aa_control import Aa
from tests.unit.agent.policy_support import initdata

REQUIRED = f'version = 1\n[volumes."/data"]\nkey = "{KEY_ID}"\n[agent]\nmeasurement = "required"\n'


@pytest.fixture
def aa(pod: Pod) -> Iterator[Aa]:
    """Runs, with an empty log; the guest has no policy until the test measures one."""
    running = Aa(pod.vm)
    running.start()
    yield running
    running.stop()
    pod.sh("rm -rf /run/peerpod")


def demand_measurement(pod: Pod) -> None:
    blob, digest = initdata({"volumes.toml": REQUIRED})
    for path, content in (("initdata", blob), ("initdata.digest", digest)):
        pod.vm.check(["sh", "-ec", f"mkdir -p /run/peerpod; cat >/run/peerpod/{path}"], stdin=content)


def test_a_volume_is_measured_once_for_each_opening(aa: Aa, pod: Pod, ready_copy: Path) -> None:
    with ready_copy.open("rb") as file:
        uuid = newest_valid(file.read(4 * MIB)).binary.uuid
    pod.attach(ready_copy, "ready")
    content = {
        "encryption": "luks2",
        "key": KEY_ID,
        "luks-uuid": uuid,
        "mount-point": "/data",
        "read-only": False,
        "version": 1,
        "volume": "vol-0",
    }
    for _ in range(2):
        pod.mount_one("ready").result()
        assert aa.events() == [("volume-open", content)], "not again for a container that shares it"
    pod.unmount_all().result()
    assert aa.events() == [("volume-open", content), ("volume-close", content)]
    assert pod.leftovers() == ""


def test_what_can_not_be_measured_is_closed_again_where_the_policy_demands_it(
    aa: Aa, pod: Pod, ready_copy: Path
) -> None:
    pod.attach(ready_copy, "ready")
    aa.set_fault("die-before")
    pod.mount_one("ready").refused("measurement-failed", code=4)
    assert pod.leftovers() == ""
    aa.stop()
    demand_measurement(pod)
    pod.mount_one("ready").refused("measurement-required")
    assert pod.leftovers() == ""
    aa.start()
    pod.mount_one("ready").result()
    assert [operation for operation, _ in aa.events()] == ["volume-open"]
    assert pod.read_file() == PLAINTEXT * 1000


def test_an_agent_killed_before_the_measurement_leaves_it_to_the_next_one(
    aa: Aa, pod: Pod, ready_copy: Path
) -> None:
    """It was mounted already: the next agent would otherwise have nothing left to do."""
    pod.attach(ready_copy, "ready")
    aa.set_fault("hang")
    pod.vm.call(
        "tests.guest.inside.measurement:mount_killed_when_mounted",
        annotation=pod.annotation("ready"),
        directory=SOURCE,
    )
    assert aa.events() == []
    aa.set_fault("none")
    pod.mount_one("ready").result()
    assert [operation for operation, _ in aa.events()] == ["volume-open"]
