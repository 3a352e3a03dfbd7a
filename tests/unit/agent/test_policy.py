"""What a policy makes of an annotation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.annotation import CloudVolume
from agent.errors import Refused
from agent.policy import (
    DEFAULT_POLICY,
    Encryption,
    Format,
    Policy,
    VolumeRules,
    rules_for,
)
from tests.unit.agent.policy_support import KEY_ID, encrypted, plain

LUKS = VolumeRules(key_id=KEY_ID)
PLAIN = VolumeRules(encryption=Encryption.NONE)


def refusal(policy: Policy, *volumes: CloudVolume) -> str:
    with pytest.raises(Refused) as raised:
        rules_for(policy, volumes)
    assert "vol-0" in str(raised.value), "Kubernetes shows nothing but this message"
    assert len(str(raised.value).encode()) < 990
    return raised.value.rule


def test_the_built_in_default_takes_every_encrypted_volume_and_believes_nothing_else() -> None:
    rules = rules_for(DEFAULT_POLICY, [encrypted("/data"), encrypted("/other", key_id="a/b/c")])["vol-0"]
    assert rules.encryption is Encryption.LUKS2
    assert rules.format is Format.IF_BLANK
    assert not rules.adopt
    assert (rules.key_id, rules.luks_uuid, rules.minimum_size) == (None, None, 0)


def test_the_built_in_default_mounts_nothing_in_the_clear() -> None:
    """Field cases L3 and K3: however the volume came to lack its encryption."""
    assert refusal(DEFAULT_POLICY, plain()) == "encryption-required"


def test_a_plain_volume_needs_a_policy_that_says_so() -> None:
    policy = Policy({"/data": PLAIN, "/secret": LUKS})
    assert rules_for(policy, [plain("/data")]) == {"vol-0": PLAIN}
    assert refusal(policy, plain("/secret")) == "encryption-required"


def test_an_encrypted_volume_where_the_policy_says_plain_is_refused() -> None:
    assert refusal(Policy({"/data": PLAIN}), encrypted()) == "encryption-unexpected"


def test_what_a_policy_does_not_name_is_refused() -> None:
    assert refusal(Policy({"/data": LUKS}), encrypted("/data2")) == "policy-destination"
    assert refusal(Policy({}), encrypted("/data")) == "policy-destination"
    long = Policy({f"/{number}{'x' * 900}": LUKS for number in range(50)})
    assert refusal(long, encrypted("/data")) == "policy-destination"


def test_the_key_is_the_policys_not_the_hosts() -> None:
    """A host that names another path, of a resource it knows the bytes of, gets nowhere."""
    policy = Policy({"/data": LUKS})
    assert rules_for(policy, [encrypted()]) == {"vol-0": LUKS}
    assert refusal(policy, encrypted(key_id="default/key/vol2")) == "policy-key"
    assert refusal(policy, encrypted(key_id=KEY_ID + "x")) == "policy-key"


def test_size_uuid_and_format_are_enforced_as_they_stand() -> None:
    rules = VolumeRules(minimum_size=4096, luks_uuid="a", format=Format.NEVER)
    rules.require_size(4096)
    rules.require_uuid("a")
    attempts: dict[str, Callable[[], None]] = {
        "policy-size": lambda: rules.require_size(4095),
        "policy-uuid": lambda: rules.require_uuid("b"),
        "format-forbidden": rules.require_format,
    }
    for rule, attempt in attempts.items():
        with pytest.raises(Refused) as raised:
            attempt()
        assert raised.value.rule == rule
    VolumeRules().require_size(0)
    VolumeRules().require_uuid("anything")
    VolumeRules().require_format()
