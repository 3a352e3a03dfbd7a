"""The example resource policy of the key broker, evaluated by a Rego engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opa_eval import OpaEval

POLICY = Path(__file__).parents[3] / "deploy" / "kbs" / "volume-keys.rego"
UNSET = "0" * 64
EXPECTED = "ab" * 32
KEY_ID = "default/volume-key/ledger"


def claims(init_data: object = EXPECTED, status: str = "affirming") -> dict[str, Any]:
    """What the broker makes of the evidence; init_data_claims is null under cloud-api-adaptor."""
    evidence = {"init_data": init_data, "init_data_claims": None, "report_data": "00"}
    return {"submods": {"cpu0": {"ear.status": status, "ear.veraison.annotated-evidence": evidence}}}


def evaluate(policy: Path, path: object, presented: object) -> bool:
    """The decision on a path and claims, by the engine that the broker has built in (regorus)."""
    engine = OpaEval(str(policy), json.dumps({"resource-path": path}), "data.policy.allow")
    decision = engine.evaluate_parsed(json.dumps(presented))
    assert isinstance(decision, bool)
    return decision


Decide = Callable[[object, object], bool]


@pytest.fixture(params=["string", "segments"])
def allowed(request: pytest.FixtureRequest, tmp_path: Path) -> Decide:
    """Whether the policy, with the expected digest filled in, releases a path to claims."""
    text = POLICY.read_text()
    assert text.count(UNSET) == 1
    filled_in = tmp_path / "policy.rego"
    filled_in.write_text(text.replace(UNSET, EXPECTED))

    def decide(path: object, presented: object) -> bool:
        if request.param == "segments" and isinstance(path, str):
            path = path.split("/")
        return evaluate(filled_in, path, presented)

    return decide


def test_a_key_goes_to_the_initdata_that_its_owner_expects(allowed: Decide) -> None:
    assert allowed(KEY_ID, claims())


@pytest.mark.parametrize(
    "init_data",
    ["cd" * 32, EXPECTED[:-1], EXPECTED + "0", EXPECTED.upper(), "", None, 0, [EXPECTED], {EXPECTED: 1}],
)
def test_no_key_goes_to_another_initdata(allowed: Decide, init_data: object) -> None:
    """A host that leaves the volume policy out, or writes its own, gets a VM without keys."""
    assert not allowed(KEY_ID, claims(init_data))


@pytest.mark.parametrize("status", ["warning", "contraindicated", "none", ""])
def test_no_key_goes_to_evidence_that_does_not_match(allowed: Decide, status: str) -> None:
    assert not allowed(KEY_ID, claims(status=status))
    assert not allowed("default/security-policy/x", claims(status=status))


@pytest.mark.parametrize(
    "presented", [{}, {"submods": {}}, {"submods": {"cpu0": {"ear.status": "affirming"}}}, None]
)
def test_no_key_goes_to_claims_without_initdata(allowed: Decide, presented: object) -> None:
    assert not allowed(KEY_ID, presented)


@pytest.mark.parametrize(
    "path",
    [
        "default/volume-key/other",
        "default/volume-key/ledger/x",
        "default/volume-key",
        "default/volume-key/LEDGER",
        "default/security-policy",
        "default/security-policy/x/y",
        "",
        7,
        None,
    ],
)
def test_what_is_not_listed_is_not_released(allowed: Decide, path: object) -> None:
    assert not allowed(path, claims())


def test_open_resources_go_to_every_proven_guest(allowed: Decide) -> None:
    assert allowed("default/security-policy/test", claims("cd" * 32))


def test_as_shipped_it_releases_no_volume_key() -> None:
    """The placeholder is no digest that any initdata has."""
    assert not evaluate(POLICY, KEY_ID, claims())
