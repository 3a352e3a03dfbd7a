"""What a policy makes of an annotation, and of a container's mounts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.annotation import CloudVolume
from agent.errors import Refused
from agent.policy import (
    DEFAULT_POLICY,
    ContainerMount,
    Encryption,
    Format,
    Policy,
    VolumeRules,
    refuse_uncovered,
    rules_for,
)
from tests.unit.agent.policy_support import KEY_ID, encrypted, plain

LUKS = VolumeRules(key_id=KEY_ID)
PLAIN = VolumeRules(encryption=Encryption.NONE)
POD = "/var/lib/kubelet/pods/1111/"


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


def test_a_named_destination_without_its_volume_is_refused() -> None:
    """A stripped annotation: the workload would write to the guest's scratch space."""
    policy = Policy({"/data": LUKS})
    mounts = [ContainerMount("/data", "/run/kata-containers/shared/x")]
    with pytest.raises(Refused) as raised:
        refuse_uncovered(policy, mounts, covered=())
    assert raised.value.rule == "volume-not-covered"
    refuse_uncovered(policy, mounts, covered=["/data"])
    refuse_uncovered(Policy({}), mounts, covered=())
    refuse_uncovered(DEFAULT_POLICY, mounts, covered=())


@pytest.mark.parametrize(
    "spelling", ["/data/", "//data", "///data", "/./data", "/x/../data", "data", "/data/."]
)
def test_no_spelling_of_a_destination_slips_through(spelling: str) -> None:
    mounts = [ContainerMount(spelling, "/x")]
    with pytest.raises(Refused):
        refuse_uncovered(Policy({"/data": LUKS}), mounts, covered=())
    refuse_uncovered(Policy({"/data": LUKS}), mounts, covered=["/data"])


@pytest.mark.parametrize(
    "source",
    [
        POD + "volumes/kubernetes.io~csi/pvc-1/mount",
        POD + "volumes//kubernetes.io~csi/./pvc-1/mount",
        POD + "volumes/kubernetes.io~csi",
        POD + "volume-subpaths/pvc-1/app/0",
    ],
)
@pytest.mark.parametrize("policy", [DEFAULT_POLICY, Policy({"/data": LUKS})], ids=["default", "policy"])
def test_a_csi_volume_or_subpath_that_nothing_covers_is_refused(policy: Policy, source: str) -> None:
    """CAA passes subpaths over: the container would write to an empty directory in the guest."""
    with pytest.raises(Refused) as raised:
        refuse_uncovered(policy, [ContainerMount("/elsewhere", source)], covered=["/data"])
    assert raised.value.rule == "volume-not-covered"
    refuse_uncovered(policy, [ContainerMount("/elsewhere", source)], covered=["/elsewhere"])


@pytest.mark.parametrize(
    "source",
    [
        "/run/secrets",
        "proc",
        "",
        POD + "volumes/kubernetes.io~secret/a",
        POD + "volumes/kubernetes.io~csi-not/a",
    ],
)
def test_other_mounts_are_left_alone(source: str) -> None:
    refuse_uncovered(Policy({"/data": LUKS}), [ContainerMount("/etc/hosts", source)], covered=())


@given(st.text(max_size=300), st.text(max_size=300))
def test_no_mount_of_the_hosts_breaks_the_check(destination: str, source: str) -> None:
    policy: Mapping[str, VolumeRules] = {"/data": LUKS}
    try:
        refuse_uncovered(Policy(policy), [ContainerMount(destination, source)], covered=())
    except Refused as refused:
        assert len(str(refused).encode()) < 990


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
