"""The doctor's questions to Azure: who we are, what is missing, what time it is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from providers.azure.diagnosis import NEEDED
from providers.errors import UnavailableError
from providers.interface import Permission
from tests.fakes.arm.messages import Dropped, Fault, anything
from tests.fakes.arm.rig import Rig, soon
from tests.fakes.arm.server import TOKEN

ROLE = json.loads((Path(__file__).parents[3] / "deploy" / "azure" / "role.json").read_text())


def _granted(*roles: dict[str, Any]) -> dict[str, bool | None]:
    rig = Rig()
    rig.cloud.roles = list(roles)
    return {one.name: one.granted for one in rig.provider().permissions(soon())}


def _role(actions: list[str], not_actions: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"actions": actions, "notActions": list(not_actions)}


def test_all_of_the_role_is_asked_for() -> None:
    assert set(NEEDED) == set(ROLE["Actions"])


def test_the_documented_role_grants_all_and_so_do_wildcards() -> None:
    assert set(_granted(_role(ROLE["Actions"])).values()) == {True}
    assert set(_granted(_role(["*"])).values()) == {True}
    assert set(_granted(_role(["microsoft.compute/*"])).values()) == {True}
    assert set(_granted(_role(ROLE["Actions"][:5]), _role(ROLE["Actions"][5:])).values()) == {True}


@pytest.mark.parametrize("action", NEEDED)
def test_each_missing_action_is_named_exactly(action: str) -> None:
    left = [one for one in ROLE["Actions"] if one != action]
    for role in (_role(left), _role(["*"], (action,))):
        assert [name for name, granted in _granted(role).items() if granted is False] == [action]


def test_what_may_not_be_asked_is_neither_granted_nor_missing() -> None:
    rig = Rig()
    rig.cloud.roles = None
    answers = rig.provider().permissions(soon())
    assert {one.granted for one in answers} == {None}
    assert all("AuthorizationFailed" in one.detail for one in answers)
    assert rig.cloud.violations == []


def test_the_resource_group_is_told() -> None:
    assert Permission(NEEDED[0], False, "in the resource group disks") in Rig().provider().permissions(soon())


def test_the_identity_is_named_by_its_token_which_is_not_shown() -> None:
    named = Rig().provider().identity(soon())
    assert named == "application app-1, object object-1, tenant tenant-1"
    assert TOKEN not in named


def test_the_clock_is_the_answers() -> None:
    told = Rig().provider().backend_time(soon())
    assert told is not None
    assert abs(told - time.time()) < 60


def test_an_azure_that_is_away_is_unavailable() -> None:
    rig = Rig()
    rig.cloud.faults.append(Fault(anything, before=Dropped, times=10))
    for question in (rig.provider().permissions, rig.provider().backend_time):
        with pytest.raises(UnavailableError):
            question(soon())
