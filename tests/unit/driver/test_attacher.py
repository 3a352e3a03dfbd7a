"""From the records and the PodVMs to what is attached, with a hypervisor in memory."""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from driver import attacher
from driver.attacher import Attacher
from driver.direct_volumes import DirectVolumes, directory_name
from driver.mountinfo import MountInfo
from providers.deadline import Deadline
from providers.errors import DeadlineError, UnavailableError
from providers.interface import VolumeAttacher
from providers.serial import disk_serial
from tests.lab.caa import Caa

SANDBOX = "5A11f00d" + "0" * 56
POD = "/var/lib/kubelet/pods/2c8b/volumes/kubernetes.io~csi"
PODVM = Caa.podvm_name("Ledger.0", SANDBOX)


class Hypervisor(VolumeAttacher):
    """Machines with disks, and calls that fail on demand."""

    def __init__(self) -> None:
        self.attached: dict[str, set[str]] = {}
        self.failing: dict[str, Exception] = {}
        self.calls: dict[str, int] = defaultdict(int)

    def attached_serials(self, owner: str, deadline: Deadline) -> Mapping[str, frozenset[str]]:
        assert owner == "node-1"
        deadline.check()
        self._fail("list")
        return {machine: frozenset(serials) for machine, serials in self.attached.items()}

    def attach_disk(self, disk_id: str, machine: str, owner: str, deadline: Deadline) -> None:
        assert owner == "node-1"
        deadline.check()
        self._fail(disk_id)
        self.attached[machine].add(disk_serial(disk_id))

    def detach_disk(self, serial: str, machine: str, owner: str, deadline: Deadline) -> None:
        assert owner == "node-1"
        assert deadline.remaining() < 5
        self._fail(serial)
        self.attached[machine].remove(serial)

    def _fail(self, what: str) -> None:
        self.calls[what] += 1
        if what in self.failing:
            raise self.failing[what]


@pytest.fixture
def records(tmp_path: Path) -> DirectVolumes:
    return DirectVolumes(tmp_path)


@pytest.fixture
def hypervisor() -> Hypervisor:
    one = Hypervisor()
    one.attached = {PODVM: set(), "podvm-other-12345678": set(), "web-5a11f00d": set()}
    return one


def publish(
    records: DirectVolumes, name: str, *sandboxes: str, provider: str | None = "libvirt", pod: str = POD
) -> str:
    target = f"{pod}/{name}/mount"
    metadata = {"cloud-volume-path": f"disk-{name}"}
    if provider is not None:
        metadata["cloud-provider"] = provider
    records.write(target, MountInfo(f"disk-{name}", "ext4", metadata))
    for sandbox in sandboxes:
        (records.root / _directory(records, target) / sandbox).touch()
    return target


def _directory(records: DirectVolumes, target: str) -> str:
    assert (records.root / directory_name(target)).is_dir()
    return directory_name(target)


def new(records: DirectVolumes, hypervisor: Hypervisor) -> Attacher:
    return Attacher(hypervisor, "libvirt", records, "node-1")


def serials(*names: str) -> set[str]:
    return {disk_serial(f"disk-{name}") for name in names}


def test_a_volume_waits_until_kata_notes_the_sandbox(records: DirectVolumes, hypervisor: Hypervisor) -> None:
    target = publish(records, "a")
    new(records, hypervisor).round()
    assert hypervisor.attached[PODVM] == set()
    (records.root / _directory(records, target) / SANDBOX).touch()
    new(records, hypervisor).round()
    assert hypervisor.attached == {PODVM: serials("a"), "podvm-other-12345678": set(), "web-5a11f00d": set()}


def test_what_is_attached_is_left_alone(records: DirectVolumes, hypervisor: Hypervisor) -> None:
    publish(records, "a", SANDBOX)
    publish(records, "b", SANDBOX, provider=None)
    for _ in range(3):
        new(records, hypervisor).round()
    assert hypervisor.attached[PODVM] == serials("a", "b")
    assert hypervisor.calls["disk-a"] == hypervisor.calls["disk-b"] == 1


def test_records_of_other_clouds_and_other_pods_are_not_for_us(
    records: DirectVolumes, hypervisor: Hypervisor
) -> None:
    publish(records, "a", SANDBOX, provider="aws")
    publish(records, "b", "f" * 64)
    new(records, hypervisor).round()
    assert not any(hypervisor.attached.values())


def test_an_unpublished_volume_is_detached_by_a_process_that_knows_nothing_of_it(
    records: DirectVolumes, hypervisor: Hypervisor
) -> None:
    target = publish(records, "a", SANDBOX)
    publish(records, "b", SANDBOX)
    new(records, hypervisor).round()
    records.remove(target)
    new(records, hypervisor).round()
    assert hypervisor.attached[PODVM] == serials("b")


def test_a_sandbox_made_anew_gets_the_disk(records: DirectVolumes, hypervisor: Hypervisor) -> None:
    """Two sandboxes are noted then; the old one's machine is gone."""
    publish(records, "a", "e" * 64, SANDBOX)
    new(records, hypervisor).round()
    assert hypervisor.attached[PODVM] == serials("a")


def test_a_damaged_record_detaches_nothing(records: DirectVolumes, hypervisor: Hypervisor) -> None:
    """Field case C5: it may be the record of what is attached."""
    target = publish(records, "a", SANDBOX)
    new(records, hypervisor).round()
    (records.root / _directory(records, target) / "mountInfo.json").write_bytes(b'{"volume-')
    publish(records, "b", SANDBOX)
    new(records, hypervisor).round()
    assert hypervisor.attached[PODVM] == serials("a", "b")


def test_a_missing_root_detaches_nothing(hypervisor: Hypervisor, tmp_path: Path) -> None:
    """Field case D2: it was unmounted, and the volumes in use were not unpublished."""
    records = DirectVolumes(tmp_path / "root")
    records.root.mkdir()
    publish(records, "a", SANDBOX)
    new(records, hypervisor).round()
    shutil.move(records.root, tmp_path / "away")
    new(records, hypervisor).round()
    assert hypervisor.attached[PODVM] == serials("a")


def test_what_fails_holds_up_nothing_else_and_is_logged_once(
    records: DirectVolumes, hypervisor: Hypervisor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger=attacher.__name__)
    publish(records, "a", SANDBOX)
    publish(records, "b", SANDBOX)
    hypervisor.attached[PODVM] = serials("old")
    (old,) = serials("old")
    hypervisor.failing = {"disk-a": UnavailableError("no room"), old: DeadlineError("held")}
    one = new(records, hypervisor)
    for _ in range(3):
        one.round()
    assert hypervisor.attached[PODVM] == serials("b", "old")
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"attaching disk-a to {PODVM}: no room",
        f"detaching {old} from {PODVM}: held",
    ]
    hypervisor.failing = {}
    one.round()
    assert hypervisor.attached[PODVM] == serials("a", "b")


def test_an_unreachable_hypervisor_is_asked_again(records: DirectVolumes, hypervisor: Hypervisor) -> None:
    publish(records, "a", SANDBOX)
    one = new(records, hypervisor)
    hypervisor.failing = {"list": UnavailableError("down")}
    one.round()
    hypervisor.failing = {}
    one.round()
    assert hypervisor.attached[PODVM] == serials("a")


@pytest.mark.parametrize(
    ("pod", "name"),
    [
        ("ledger", "podvm-ledger-5a11f00d"),
        ("Ledger.0", "podvm-ledger-0-5a11f00d"),
        ("p" * 100, f"podvm-{'p' * 48}-5a11f00d"),
    ],
)
def test_podvms_are_known_by_the_names_that_cloud_api_adaptor_gives(pod: str, name: str) -> None:
    assert Caa.podvm_name(pod, SANDBOX) == name
    assert attacher._is_podvm_of(name, SANDBOX)
    assert not attacher._is_podvm_of(name, "f" * 64)
