"""The policy file: what it may say, and that nothing else passes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Refused
from agent.policy import AgentRules, Encryption, Format, Measurement, Policy, VolumeRules
from agent.policy_schema import MAX_POLICY, PolicyResource, parse_policy

EXAMPLE = Path(__file__).parents[3] / "examples" / "volumes.toml"
UUID = "0a1b2c3d-0123-4567-89ab-0123456789ab"
ENTRY = 'version = 1\n[volumes."/data"]\n'


def entry(fields: str) -> VolumeRules:
    """The rules of a policy with one volume."""
    policy = parse_policy(ENTRY + fields)
    assert isinstance(policy, Policy)
    assert policy.volumes is not None
    return policy.volumes["/data"]


def refusal(text: str | bytes) -> str:
    with pytest.raises(Refused) as raised:
        parse_policy(text)
    assert raised.value.rule == "policy-invalid"
    assert len(str(raised.value).encode()) < 990
    return raised.value.message


def test_every_field_is_read() -> None:
    rules = entry(
        'encryption = "luks2"\nkey = "a/b/c"\nprevious-key = "a/b/old"\nminimum-size = "10Gi"\n'
        f'uuid = "{UUID}"\nformat = "never"\nadopt = true\nfs-group = 2000\ndiscard = true\n'
    )
    assert rules == VolumeRules(
        encryption=Encryption.LUKS2,
        key_id="a/b/c",
        previous_key_id="a/b/old",
        minimum_size=10 << 30,
        luks_uuid=UUID,
        format=Format.NEVER,
        adopt=True,
        read_only=False,
        fs_group=2000,
        discard=True,
    )


def test_left_out_fields_are_the_careful_ones() -> None:
    assert entry('key = "a/b/c"') == VolumeRules(key_id="a/b/c")


def test_a_plain_volume_is_one_that_says_so() -> None:
    assert entry('encryption = "none"') == VolumeRules(encryption=Encryption.NONE)


def test_a_pinned_or_read_only_volume_is_never_formatted() -> None:
    assert entry(f'key = "a/b/c"\nuuid = "{UUID}"').format is Format.NEVER
    assert entry('key = "a/b/c"\nread-only = true').format is Format.NEVER


def test_a_policy_may_name_no_volume_at_all() -> None:
    assert parse_policy("version = 1\n[volumes]") == Policy({})


def test_a_policy_may_name_a_resource_instead() -> None:
    assert parse_policy('version = 1\npolicy-resource = "a/policy/x"') == PolicyResource("a/policy/x")


def test_what_holds_for_all_volumes_is_in_a_table_of_its_own() -> None:
    policy = parse_policy('version = 1\n[volumes]\n[agent]\nmeasurement = "required"\nusage-figures = false')
    assert policy == Policy({}, agent=AgentRules(Measurement.REQUIRED, usage_figures=False))
    for text in ("[agent]", '[agent]\nmeasurement = "if-enabled"', "[agent]\nusage-figures = true"):
        assert parse_policy(f"version = 1\n[volumes]\n{text}") == Policy({})


def test_places_for_something_else_than_volumes_are_named_in_a_list() -> None:
    text = 'version = 1\nother-mounts = ["/run/secrets/store", "/data/conf/"]\n' + ENTRY.partition("\n")[2]
    policy = parse_policy(text + 'key = "a/b/c"')
    assert isinstance(policy, Policy)
    assert policy.other_mounts == {"/run/secrets/store", "/data/conf"}


def test_the_example_is_a_policy() -> None:
    policy = parse_policy(EXAMPLE.read_bytes())
    assert isinstance(policy, Policy)
    assert policy.volumes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "version"),
        ("[volumes]", "version"),
        ("version = 2\n[volumes]", "version"),
        ("version = true\n[volumes]", "version"),
        ("version = 1.0\n[volumes]", "version"),
        ('version = "1"\n[volumes]', "version"),
        ("version = 1", "volumes"),
        ('version = 1\npolicy-resource = "a/b/c"\n[volumes]', "volumes"),
        ('version = 1\npolicy-resource = "kbs:///a/b/c"', "policy-resource"),
        ("version = 1\npolicy-resource = 1", "policy-resource"),
        ("version = 1\nvolumes = []", "volumes"),
        ("version = 1\n[volume]", "did you mean volumes"),
        ("version = 1\n[volumes]\nversion = 1", "volumes.'version'"),
        ("version = 1\nversion = 1\n[volumes]", "not TOML"),
        ('version = 1\n[volumes."/data"]\nkey = "a/b/c"\n[volumes."/data"]\nkey = "a/b/c"', "not TOML"),
        ('version = 1\n[volumes."/a/"]\nkey = "a/b/c"\n[volumes."/a"]\nkey = "a/b/c"', "named twice"),
        ('version = 1\n[volumes."data"]\nkey = "a/b/c"', "volumes.'data'"),
        ('version = 1\n[volumes."/"]\nkey = "a/b/c"', "volumes.'/'"),
        ('version = 1\n[volumes."/a/../b"]\nkey = "a/b/c"', "not normalized"),
        ('version = 1\n[volumes."/run/x"]\nkey = "a/b/c"', "/run"),
        ('version = 1\n[volumes]\n"/data" = "luks2"', "must be a table"),
        ('version = 1\nother-mounts = "/x"\n[volumes]', "other-mounts: must be a list"),
        ("version = 1\nother-mounts = [1]\n[volumes]", "other-mounts: must hold paths"),
        ('version = 1\nother-mounts = ["x"]\n[volumes]', "absolute"),
        ('version = 1\nother-mounts = ["/a/../b"]\n[volumes]', "not normalized"),
        ('version = 1\nother-mounts = ["/"]\n[volumes]', "above every volume"),
        ('version = 1\nother-mounts = ["/a", "/a/"]\n[volumes]', "named twice"),
        ('version = 1\nother-mounts = ["/a"]\n[volumes."/a"]\nkey = "a/b/c"', "named twice"),
        ('version = 1\nother_mounts = ["/a"]\n[volumes]', "did you mean other-mounts"),
        ('version = 1\n[volumes."/a"]\nkey = "a/b/c"\nother-mounts = ["/b"]', "above the first table"),
        ("version = 1\nagent = 1\n[volumes]", "agent: must be a table"),
        ('version = 1\n[volumes]\n[agent]\nmeasurement = "Required"', "agent.measurement"),
        ("version = 1\n[volumes]\n[agent]\nmeasurement = true", "agent.measurement"),
        ("version = 1\n[volumes]\n[agent]\nusage-figures = 0", "agent.usage-figures"),
        ('version = 1\n[volumes]\n[agent]\nusage-figures = "no"', "agent.usage-figures"),
        ("version = 1\n[volumes]\n[agent]\nusage-figure = false", "did you mean usage-figures"),
        ('version = 1\npolicy-resource = "a/b/c"\n[agent]', "agent: belongs into the policy"),
        ('version = 1\npolicy-resource = "a/b/c"\nother-mounts = []', "other-mounts: belongs into"),
    ],
)
def test_a_file_of_another_form_is_refused(text: str, names: str) -> None:
    assert names in refusal(text)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ("", "key: is missing"),
        ('key = ""', "key"),
        ('key = "a/b"', "key"),
        ('key = "a/b/c\\n"', "key"),
        ('key = "kbs:///a/b/c"', "scheme"),
        ('key = "a/b/.."', "key"),
        ('kye = "a/b/c"', "did you mean key"),
        ('Key = "a/b/c"', "Key"),
        ('minimum_size = 1\nkey = "a/b/c"', "did you mean minimum-size"),
        ('key = "a/b/c"\nencryption = "LUKS2"', "encryption"),
        ('key = "a/b/c"\nencryption = true', "encryption"),
        ('key = "a/b/c"\nprevious-key = "a/b/c"', "previous-key"),
        ('key = "a/b/c"\nminimum-size = 0', "minimum-size"),
        ('key = "a/b/c"\nminimum-size = -1', "minimum-size"),
        ('key = "a/b/c"\nminimum-size = true', "minimum-size"),
        ('key = "a/b/c"\nminimum-size = 1.5', "minimum-size"),
        ('key = "a/b/c"\nminimum-size = "10"', "minimum-size"),
        ('key = "a/b/c"\nminimum-size = "10G"', "minimum-size"),
        ('key = "a/b/c"\nminimum-size = "1_0Gi"', "minimum-size"),
        ('key = "a/b/c"\nminimum-size = "\uff19Gi"', "minimum-size"),
        ('key = "a/b/c"\nminimum-size = "9999999999Pi"', "minimum-size"),
        (f'key = "a/b/c"\nminimum-size = 0x{"f" * 9000}', "minimum-size"),
        (f'key = "a/b/c"\nuuid = "{UUID.upper()}"', "uuid"),
        ('key = "a/b/c"\nuuid = ""', "uuid"),
        (f'key = "a/b/c"\nuuid = "{UUID}"\nformat = "if-blank"', "format"),
        ('key = "a/b/c"\nread-only = true\nformat = "if-blank"', "format"),
        ('key = "a/b/c"\nread-only = true\nadopt = true', "adopt"),
        ('key = "a/b/c"\nformat = "once"', "format"),
        ('key = "a/b/c"\nadopt = "yes"', "adopt"),
        ('key = "a/b/c"\nread-only = 1', "read-only"),
        ('key = "a/b/c"\ndiscard = 0', "discard"),
        ('key = "a/b/c"\nfs-group = -1', "fs-group"),
        ('key = "a/b/c"\nfs-group = true', "fs-group"),
        ('key = "a/b/c"\nfs-group = "2000"', "fs-group"),
        ('key = "a/b/c"\nfs-group = 2147483648', "fs-group"),
        ('encryption = "none"\nkey = "a/b/c"', "key"),
        (f'encryption = "none"\nuuid = "{UUID}"', "uuid"),
        ('encryption = "none"\nadopt = false', "adopt"),
        ('encryption = "none"\nprevious-key = "a/b/c"', "previous-key"),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields: str, names: str) -> None:
    message = refusal(ENTRY + fields)
    assert names in message
    assert message.startswith("volumes.'/data'.")


@pytest.mark.parametrize(
    "text",
    [
        b"version = 1\n[volumes]\n\xff",
        b"\xff\xfev\0e\0r\0",
        b"\xef\xbb\xbfversion = 1\n[volumes]",
        b"version = 1\n[volumes]\n" + b"#" * MAX_POLICY,
        b"version = 1\nx = " + b"[" * 10000,
        b"version = " + b"1" * 5000,
    ],
)
def test_bytes_that_are_no_policy_are_refused(text: bytes) -> None:
    refusal(text)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_no_input_ends_in_another_error(text: bytes | str) -> None:
    try:
        parse_policy(text)
    except Refused as refused:
        assert refused.rule == "policy-invalid"
        assert len(str(refused).encode()) < 990


_SCALARS = st.sampled_from(
    [
        "true",
        "false",
        "0",
        "1",
        "0x10",
        "1.5",
        '""',
        '"luks2"',
        '"none"',
        '"never"',
        '"if-blank"',
        '"a/b/c"',
        '"1Gi"',
        f'"{UUID}"',
        "[]",
        "{}",
        "1979-05-27",
    ]
)
_NAMES = st.sampled_from(
    [
        "encryption",
        "key",
        "previous-key",
        "minimum-size",
        "uuid",
        "format",
        "adopt",
        "read-only",
        "fs-group",
        "discard",
        "other",
    ]
)


@given(st.dictionaries(_NAMES, _SCALARS, max_size=6))
def test_an_accepted_volume_means_what_its_fields_say(fields: dict[str, str]) -> None:
    """No combination of fields is passed over or turned into something weaker."""
    text = ENTRY + "\n".join(f"{name} = {value}" for name, value in fields.items())
    try:
        rules = entry_of(text)
    except Refused as refused:
        assert refused.rule == "policy-invalid"
        return
    written = tomllib.loads(text)["volumes"]["/data"]
    assert "other" not in written
    assert rules.encryption == written.get("encryption", "luks2")
    assert rules.key_id == written.get("key")
    assert (rules.key_id is None) == (rules.encryption is Encryption.NONE)
    assert rules.luks_uuid == written.get("uuid")
    assert rules.adopt is written.get("adopt", False)
    assert rules.read_only is written.get("read-only", False)
    assert rules.discard is written.get("discard", False)
    assert rules.fs_group == written.get("fs-group")
    if rules.format is Format.IF_BLANK:
        assert written.get("format", "if-blank") == "if-blank"
        assert rules.luks_uuid is None
        assert not rules.read_only


def entry_of(text: str) -> VolumeRules:
    policy = parse_policy(text)
    assert isinstance(policy, Policy)
    assert policy.volumes is not None
    return policy.volumes["/data"]
