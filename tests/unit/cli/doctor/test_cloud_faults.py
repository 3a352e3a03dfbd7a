"""What the doctor finds in a cloud: the strict EC2 of ``tests/fakes``, asked by the real provider."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.doctor.catalog import CHECKS
from cli.doctor.model import Result, Verdict, run
from cli.doctor.scene import Cloud, Paths, Scene
from providers.deadline import Deadline
from providers.interface import BlockVolumeProvider, VolumeRequest
from providers.registry import load_provider
from tests.contract.aws_backend import IAM_POLICY, REGION
from tests.fakes.ec2 import Cloud as Ec2Cloud
from tests.fakes.ec2 import Ec2Server
from tests.fakes.ec2.policy import CALLER, Policy
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider

KEY_ID = "AKIAPLANTEDKEYID"
SECRET = "planted-secret-of-the-cloud"
GIB = 2**30
CLOUD_CHECKS = tuple(check for check in CHECKS if check.id.startswith("cloud-"))


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Cloud]:
    """An account with the documented role, and the environment of a controller that has it."""
    cloud = Ec2Cloud()
    cloud.policy = Policy(json.loads(IAM_POLICY.read_text()))
    with Ec2Server(cloud) as server:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
            "CONFIDENTIAL_CSI_AWS_REGION": REGION,
            "CONFIDENTIAL_CSI_AWS_ZONE": f"{REGION}a",
        }.items():
            monkeypatch.setenv(name, value)
        yield cloud


def _provider() -> BlockVolumeProvider:
    return load_provider("aws", os.environ)


def _populate() -> None:
    """A volume and a snapshot, without which not every permission can be tried."""
    provider: Any = _provider()
    deadline = Deadline.after(30)
    volume = provider.create_volume(VolumeRequest("pvc-1", GIB, None, "ext4"), deadline)
    provider.create_snapshot("snap-1", volume.handle, deadline)


def _examine(cloud: Cloud | str, *, now: Any = time.time) -> dict[str, list[Result]]:
    nowhere = Path("/nonexistent")
    scene = Scene(
        Paths(None, nowhere, nowhere, nowhere, nowhere),
        cluster="no cluster in this test",
        cloud=cloud,
        cloud_wanted=True,
        now=now,
    )
    return {check.id: run(check, scene) for check in CLOUD_CHECKS}


def _problems(results: dict[str, list[Result]]) -> dict[str, list[Result]]:
    return {
        check: problems
        for check, found in results.items()
        if (problems := [one for one in found if one.verdict in (Verdict.WARN, Verdict.FAIL)])
    }


def test_an_account_with_the_documented_role_has_nothing_to_report(ec2: Ec2Cloud) -> None:
    _populate()
    before = ec2.existing_volumes(), ec2.existing_snapshots(), [one.now for one in ec2.existing_volumes()]
    results = _examine(Cloud(_provider()))
    assert {one.verdict for found in results.values() for one in found} == {Verdict.OK}
    assert CALLER in results["cloud-identity"][0].saw
    allowed = {f"ec2:{action}" for _, action in Policy(json.loads(IAM_POLICY.read_text())).granted()}
    assert set(results["cloud-permissions"][0].saw.removeprefix("granted: ").split(", ")) == allowed
    assert before == (
        ec2.existing_volumes(),
        ec2.existing_snapshots(),
        [one.now for one in ec2.existing_volumes()],
    )


_ACTIONS = sorted(
    {
        action.removeprefix("ec2:")
        for statement in json.loads(IAM_POLICY.read_text())["Statement"]
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }
)


@pytest.mark.parametrize("action", _ACTIONS)
def test_the_exact_missing_permission_is_named(action: str, ec2: Ec2Cloud) -> None:
    _populate()
    document = json.loads(IAM_POLICY.read_text())
    for statement in document["Statement"]:
        several = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        statement["Action"] = [one for one in several if one != f"ec2:{action}"]
    ec2.policy = Policy(document)
    missing = [
        one for one in _examine(Cloud(_provider()))["cloud-permissions"] if one.verdict is Verdict.FAIL
    ]
    assert missing
    assert all(f"ec2:{action}" in one.saw and f"ec2:{action}" in one.fix for one in missing)


def test_what_could_not_be_tried_is_not_called_granted(ec2: Ec2Cloud) -> None:
    (granted, untried) = _examine(Cloud(_provider()))["cloud-permissions"]
    assert (granted.verdict, untried.verdict) == (Verdict.OK, Verdict.SKIPPED)
    for name in ("ec2:DeleteVolume", "ec2:DeleteSnapshot", "ec2:CreateTags"):
        assert name in untried.saw
        assert name not in granted.saw
    assert ec2.existing_volumes() == []


def test_missing_credentials_are_found(ec2: Ec2Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    del ec2
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setattr("cli.doctor.scene.CLOUD_SECONDS", 2.0)
    found = _problems(_examine(Cloud(_provider())))
    assert set(found) == {"cloud-access", "cloud-identity"}
    assert "NoCredentialsError" in found["cloud-identity"][0].saw
    assert "docs/aws.md" in found["cloud-identity"][0].fix


def test_refused_credentials_are_found_and_not_shown(ec2: Ec2Cloud) -> None:
    ec2.access_keys = frozenset({"AKIAOTHER"})
    results = _examine(Cloud(_provider()))
    found = _problems(results)
    assert set(found) >= {"cloud-access", "cloud-identity"}
    assert "AuthFailure" in found["cloud-identity"][0].saw
    assert SECRET not in str(results)


def test_a_clock_that_differs_from_the_clouds_is_found(ec2: Ec2Cloud) -> None:
    del ec2
    late = _examine(Cloud(_provider()), now=lambda: time.time() - 3600)
    (one,) = _problems(late)["cloud-clock"]
    assert "360" in one.saw  # seconds, and those of the call
    assert "time server" in one.fix
    slow = _examine(Cloud(_provider()), now=lambda: time.time() + 20)
    assert [one.verdict for one in slow["cloud-clock"]] == [Verdict.WARN]


def test_a_provider_that_can_not_be_loaded_is_a_fault_and_one_not_named_is_none() -> None:
    wanted = _examine("CONFIDENTIAL_CSI_AWS_REGION must be set")
    assert set(_problems(wanted)) == {"cloud-access"}
    nowhere = Path("/nonexistent")
    scene = Scene(Paths(None, nowhere, nowhere, nowhere, nowhere), cluster="none", cloud="no cloud was named")
    assert {one.verdict for check in CLOUD_CHECKS for one in run(check, scene)} == {Verdict.SKIPPED}


def test_a_provider_without_a_diagnosis_is_skipped_where_it_has_no_answer() -> None:
    results = _examine(Cloud(MemoryProvider(MemoryCloud())))
    assert {check: found[0].verdict for check, found in results.items()} == {
        "cloud-access": Verdict.OK,
        "cloud-identity": Verdict.SKIPPED,
        "cloud-permissions": Verdict.SKIPPED,
        "cloud-clock": Verdict.SKIPPED,
    }
