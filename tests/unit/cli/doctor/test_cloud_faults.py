"""What the doctor finds in a cloud: the strict EC2 of ``tests/fakes``, asked by the real provider."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.doctor.catalog import CHECKS
from cli.doctor.model import Check, Result, Verdict, run
from cli.scene import Cloud, Paths, Scene, cause
from deploy.messages import messages
from providers.deadline import Deadline
from providers.errors import UnavailableError
from providers.interface import VolumeRequest
from providers.registry import load_provider
from tests.contract.aws_backend import IAM_POLICY, REGION
from tests.fakes.ec2 import Cloud as Ec2Cloud
from tests.fakes.ec2 import Ec2Server
from tests.fakes.ec2.policy import CALLER, Policy
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider

KEY_ID = "AKIAPLANTEDKEYID"
PLANTED = "planted-secret-of-the-cloud"
GIB = 2**30
CLOUD_CHECKS = tuple(check for check in CHECKS if check.id.startswith("cloud-"))


@dataclass(frozen=True)
class Account:
    """An EC2 account, and the real provider that has it."""

    ec2: Ec2Cloud
    provider: Any

    def populate(self) -> None:
        """A volume and a snapshot, without which not every permission can be tried."""
        deadline = Deadline.after(30)
        volume = self.provider.create_volume(VolumeRequest("pvc-1", GIB, None, "ext4"), deadline)
        self.provider.create_snapshot("snap-1", volume.handle, deadline)
        self.ec2.settle()


@pytest.fixture(scope="module")
def server() -> Iterator[Ec2Server]:
    """The strict EC2, and the environment of a controller that uses it."""
    with Ec2Server() as running, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": PLANTED,
            "AWS_EC2_METADATA_DISABLED": "true",
            "CONFIDENTIAL_CSI_AWS_REGION": REGION,
            "CONFIDENTIAL_CSI_AWS_ZONE": f"{REGION}a",
        }.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture
def account(server: Ec2Server, monkeypatch: pytest.MonkeyPatch) -> Account:
    """A new account with the documented role."""
    cloud = Ec2Cloud()
    cloud.policy = Policy(json.loads(IAM_POLICY.read_text()))
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.add(cloud))
    return Account(cloud, load_provider("aws", os.environ))


def _examine(cloud: Cloud | str, *, now: Callable[[], float] = time.time) -> dict[str, list[Result]]:
    scene = _scene(cloud, now=now)
    return {check.id: run(check, scene) for check in CLOUD_CHECKS}


def _scene(cloud: Cloud | str, *, now: Callable[[], float] = time.time) -> Scene:
    nowhere = Path("/nonexistent")
    return Scene(
        Paths(None, nowhere, nowhere, nowhere),
        cluster="no cluster in this test",
        cloud=cloud,
        cloud_wanted=True,
        now=now,
    )


def _clock_that_is_off_by(seconds: float) -> Callable[[], float]:
    return lambda: time.time() + seconds


def _check(check_id: str) -> Check:
    return next(check for check in CHECKS if check.id == check_id)


def _problems(results: dict[str, list[Result]]) -> dict[str, list[Result]]:
    return {
        check: problems
        for check, found in results.items()
        if (problems := [one for one in found if one.verdict in (Verdict.WARN, Verdict.FAIL)])
    }


def test_an_account_with_the_documented_role_has_nothing_to_report(account: Account) -> None:
    account.populate()
    ec2 = account.ec2
    before = ec2.existing_volumes(), ec2.existing_snapshots(), [one.now for one in ec2.existing_volumes()]
    results = _examine(Cloud(account.provider))
    assert {one.verdict for found in results.values() for one in found} == {Verdict.OK}
    assert CALLER in results["cloud-identity"][0].saw
    allowed = {f"ec2:{action}" for _, action in Policy(json.loads(IAM_POLICY.read_text())).granted()}
    assert set(results["cloud-permissions"][0].saw.removeprefix("granted: ").split(", ")) == allowed
    assert before == (
        ec2.existing_volumes(),
        ec2.existing_snapshots(),
        [one.now for one in ec2.existing_volumes()],
    )


def test_each_missing_permission_is_named_exactly(account: Account) -> None:
    account.populate()
    cloud = Cloud(account.provider)
    actions = {action for _, action in Policy(json.loads(IAM_POLICY.read_text())).granted()}
    assert len(actions) >= 10
    for action in sorted(actions):
        document = json.loads(IAM_POLICY.read_text())
        for statement in document["Statement"]:
            several = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
            statement["Action"] = [one for one in several if one != f"ec2:{action}"]
        account.ec2.policy = Policy(document)
        results = run(_check("cloud-permissions"), _scene(cloud))
        missing = [one for one in results if one.verdict is Verdict.FAIL]
        assert missing, action
        assert all(f"ec2:{action}" in one.saw and f"ec2:{action}" in one.fix for one in missing), missing


def test_what_could_not_be_tried_is_not_called_granted(account: Account) -> None:
    (granted, untried) = _examine(Cloud(account.provider))["cloud-permissions"]
    assert (granted.verdict, untried.verdict) == (Verdict.OK, Verdict.SKIPPED)
    for name in ("ec2:DeleteVolume", "ec2:DeleteSnapshot", "ec2:CreateTags"):
        assert name in untried.saw
        assert name not in granted.saw
    assert account.ec2.existing_volumes() == []


def test_where_dry_runs_are_real_no_volume_is_changed_or_deleted(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a backend that speaks EC2's API and knows no DryRun."""
    account.populate()
    ec2, perform = account.ec2, account.ec2.perform

    def heedless(action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return perform(action, {name: value for name, value in arguments.items() if name != "DryRun"})

    monkeypatch.setattr(ec2, "perform", heedless)
    (volume,), (snapshot,) = ec2.existing_volumes(), ec2.existing_snapshots()
    before = volume.now
    results = run(_check("cloud-permissions"), _scene(Cloud(account.provider)))
    assert "ec2:DeleteVolume (nothing shows that this EC2 heeds DryRun" in results[-1].saw
    assert volume in ec2.existing_volumes()
    assert volume.now == before
    assert snapshot in ec2.existing_snapshots()


@pytest.mark.usefixtures("account")
def test_missing_credentials_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", "/nonexistent")
    results = _examine(Cloud(load_provider("aws", os.environ)))
    assert "tried again" not in str(results)
    found = _problems(results)
    assert set(found) == {"cloud-access", "cloud-identity"}
    assert "NoCredentialsError" in found["cloud-identity"][0].saw
    assert "docs/aws.md" in found["cloud-identity"][0].fix


def test_no_word_of_a_provider_about_what_sidecars_do_is_passed_on() -> None:
    """A command asks once: nothing is tried again."""
    told = [one.text for one in messages("providers") if "tried again" in one.text]
    assert len(told) > 5
    assert [text for text in told if "tried again" in cause(UnavailableError(text))] == []


def test_refused_credentials_are_found_and_not_shown(account: Account) -> None:
    account.ec2.access_keys = frozenset({"AKIAOTHER"})
    results = _examine(Cloud(account.provider))
    found = _problems(results)
    assert set(found) >= {"cloud-access", "cloud-identity"}
    assert "AuthFailure" in found["cloud-identity"][0].saw
    assert PLANTED not in str(results)


def test_a_clock_that_differs_from_the_clouds_is_found(account: Account) -> None:
    cloud, clock = Cloud(account.provider), _check("cloud-clock")
    for seconds, verdict in (
        (3600, Verdict.FAIL),
        (-3600, Verdict.FAIL),
        (30, Verdict.WARN),
        (0, Verdict.OK),
    ):
        (one,) = run(clock, _scene(cloud, now=_clock_that_is_off_by(seconds)))
        assert one.verdict is verdict
        assert ("time server" in one.fix) is (verdict is not Verdict.OK)


def test_a_provider_that_can_not_be_loaded_is_a_fault_and_one_not_named_is_none() -> None:
    wanted = _examine("CONFIDENTIAL_CSI_AWS_REGION must be set")
    assert set(_problems(wanted)) == {"cloud-access"}
    nowhere = Path("/nonexistent")
    scene = Scene(Paths(None, nowhere, nowhere, nowhere), cluster="none", cloud="no cloud was named")
    assert {one.verdict for check in CLOUD_CHECKS for one in run(check, scene)} == {Verdict.SKIPPED}


def test_a_provider_without_a_diagnosis_is_skipped_where_it_has_no_answer() -> None:
    results = _examine(Cloud(MemoryProvider(MemoryCloud())))
    assert {check: found[0].verdict for check, found in results.items()} == {
        "cloud-access": Verdict.OK,
        "cloud-identity": Verdict.SKIPPED,
        "cloud-permissions": Verdict.SKIPPED,
        "cloud-clock": Verdict.SKIPPED,
    }
