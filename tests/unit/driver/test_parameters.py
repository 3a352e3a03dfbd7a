"""StorageClass parameters: what parses, what is refused, and how the refusal helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests
from driver.errors import DriverError, InvalidArgument, bounded
from driver.key_path import check_key_path
from driver.parameters import CLOUD_PARAMETERS, VolumeSpec, parse_parameters
from providers.errors import InvalidParameterError
from providers.interface import Encryption
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider

VECTORS: dict[str, Any] = json.loads(
    (Path(tests.__file__).parent / "vectors" / "key_paths.json").read_text(encoding="utf-8")
)

KEY = {"kbs-key-id": "default/key/1"}


def parse(parameters: dict[str, str], *installed: str) -> VolumeSpec:
    return parse_parameters(parameters, MemoryProvider(MemoryCloud()), installed or ("memory",))


def refusal(parameters: dict[str, str], *installed: str) -> str:
    with pytest.raises((InvalidArgument, InvalidParameterError)) as caught:
        parse(parameters, *installed)
    return str(caught.value)


def test_a_complete_class_parses() -> None:
    spec = parse(
        {
            "cloudProvider": "memory",
            "encrypt-type": "luks2",
            "kbs-key-id": "default/key/1",
            "memoryType": "slow",
            "fsType": "ext4",
            "csi.storage.k8s.io/pvc/name": "data",
            "csi.storage.k8s.io/pvc/namespace": "team",
            "csi.storage.k8s.io/pv/name": "pvc-1",
            "csi.storage.k8s.io/provisioner-secret-name": "anything",
        }
    )
    assert spec.encryption == Encryption("luks2", "default/key/1")
    assert dict(spec.provider_parameters) == {"memoryType": "slow"}
    assert dict(spec.labels) == {"pvc/name": "data", "pvc/namespace": "team", "pv/name": "pvc-1"}
    assert set(spec.context) == {"cloudProvider", "encrypt-type", "kbs-key-id", "memoryType", "fsType"}


def test_nothing_asked_is_an_unencrypted_volume() -> None:
    spec = parse({})
    assert (spec.encryption, spec.fs_type, dict(spec.context)) == (None, None, {})


@pytest.mark.parametrize("cloud", sorted(CLOUD_PARAMETERS))
def test_the_older_driver_s_classes_parse_once_their_provider_is_there(cloud: str) -> None:
    """contracts.md 10: StorageClasses that use these names parse unchanged."""

    class Cloud(MemoryProvider):
        name = cloud
        parameter_names = CLOUD_PARAMETERS[cloud]

        def validate_parameters(self, parameters: object) -> None:
            pass

    parameters = {"cloudProvider": cloud, "encrypt-type": "luks", **KEY}
    parameters |= dict.fromkeys(CLOUD_PARAMETERS[cloud], "x")
    spec = parse_parameters(parameters, Cloud(MemoryCloud()), (cloud,))
    assert dict(spec.context) == parameters
    message = refusal(parameters)
    assert repr(cloud) in message
    assert "not installed" in message


@pytest.mark.parametrize("cloud", sorted(CLOUD_PARAMETERS))
def test_a_parameter_of_another_cloud_is_refused_by_naming_it(cloud: str) -> None:
    for name in CLOUD_PARAMETERS[cloud]:
        message = refusal({name: "x"})
        assert repr(cloud) in message
        assert repr(name) in message


def test_an_installed_provider_that_is_not_served_is_refused_with_the_way_out() -> None:
    assert "--provider aws" in refusal({"cloudProvider": "aws"}, "memory", "aws")


@pytest.mark.parametrize(
    "parameters",
    [
        {"encrypt-type": "luks2"},
        KEY,
        {"encrypt-type": "", **KEY},
        {"encrypt-type": "luks2", "kbs-key-id": ""},
        {"encrypt-type": "", "kbs-key-id": ""},
        {"encrypt-type": " luks2 ", **KEY},
        {"encrypt-type": "LUKS2", **KEY},
        {"encrypt-type": "Luks", **KEY},
        {"encrypt-type": "luks1", **KEY},
        {"encrypt-type": "aes", **KEY},
        {"encrypt-type": "none", **KEY},
        {"Encrypt-Type": "LUKS2", **KEY},
        {"encryptType": "luks2", **KEY},
        {"encrypt-type ": "luks2", **KEY},
        {"encrypt-type": "luks2", "KBS-key-id": "default/key/1"},
    ],
)
def test_nothing_near_encryption_ends_as_plaintext(parameters: dict[str, str]) -> None:
    """Field case L3."""
    refusal(parameters)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("encryptType", "'encrypt-type'"),
        ("Encrypt-Type", "'encrypt-type'"),
        ("encrypt_type", "'encrypt-type'"),
        ("kbsKeyId", "'kbs-key-id'"),
        ("kbs-keyid", "'kbs-key-id'"),
        ("cloud-provider", "'cloudProvider'"),
        ("memorytype", "'memoryType'"),
        ("fstype", "'fsType'"),
        ("completely different", "known: "),
        ("", "known: "),
    ],
)
def test_an_unknown_key_is_refused_with_a_guess(key: str, words: str) -> None:
    """Field case L3."""
    message = refusal({key: "x"})
    assert words in message
    assert repr(key) in message


@pytest.mark.parametrize(
    "key", ["cdhEncryptionType", "cdhSourceType", "cdhTargetType", "cdhFilesystemType", "cdhKey"]
)
def test_the_older_driver_s_sample_keys_are_refused_by_naming_the_real_ones(key: str) -> None:
    """contracts.md 10: nothing reads them, so those volumes were plaintext."""
    message = refusal({key: "kbs:///default/key/1"})
    assert "encrypt-type" in message
    assert "kbs-key-id" in message


@pytest.mark.parametrize(
    "key",
    [
        "awsAccessKeyId",
        "awsSecretKey",
        "sasToken",
        "azureClientSecret",
        "password",
        "adminPasswd",
        "api_key",
        "credentials",
        "connection-string",
        "azureStorageAccountKey",
    ],
)
def test_credentials_are_refused_and_not_repeated(key: str) -> None:
    """Field case L2."""
    message = refusal({key: "S3CR3T", "encrypt-type": "luks2", **KEY})
    assert "credential" in message
    assert "S3CR3T" not in message


def test_a_provider_s_refusal_of_a_value_is_passed_on() -> None:
    assert "memoryType" in refusal({"memoryType": "1_000"})


def test_the_upper_case_typo_gets_the_case_rule_as_hint() -> None:
    assert "lower case" in refusal({"encrypt-type": "LUKS2", **KEY})


def test_conflicting_file_system_parameters_are_refused() -> None:
    refusal({"fsType": "ext4", "csi.storage.k8s.io/fstype": "xfs"})


def test_too_much_for_the_context_is_refused() -> None:
    refusal({"memoryType": "fast", "cloudProvider": "memory", "fsType": "x" * 2048})


@pytest.mark.parametrize("value", VECTORS["accepted"])
def test_key_paths_of_the_shared_vectors_are_accepted(value: str) -> None:
    """Field case J1."""
    check_key_path(value)


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: str(case["why"]))
def test_key_paths_of_the_shared_vectors_are_refused(case: dict[str, str]) -> None:
    """Field case J1."""
    with pytest.raises(InvalidArgument):
        check_key_path(case["key_id"])


@pytest.mark.parametrize(
    "value",
    [
        "kbs:///default/key/vol1",
        "key/vol1",
        "default/key/vol1\n",
        "default/key/v%2e1",
        "default/key/\u03b1",
        "kbs+pkcs11:///x",
        "a/b/" + "c" * 197,
    ],
)
def test_key_paths_of_the_field_case_are_refused(value: str) -> None:
    """Field case J1; the scheme and the missing repository with a hint."""
    with pytest.raises(InvalidArgument) as caught:
        check_key_path(value)
    assert ("adds kbs:///" in str(caught.value)) == ("://" in value)


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_any_parameters_parse_or_are_refused_in_bounds(parameters: dict[str, str]) -> None:
    try:
        spec = parse(parameters)
    except (DriverError, InvalidParameterError) as error:
        assert len(bounded(str(error)).encode()) < 990
    else:
        assert set(spec.context) <= {"cloudProvider", "encrypt-type", "kbs-key-id", "fsType", "memoryType"}


typos = st.sampled_from(["encrypt-type", "kbs-key-id"]).flatmap(
    lambda word: st.tuples(st.just(word), st.integers(0, len(word) - 1), st.sampled_from("abcXYZ-_ \u0435"))
)


@given(typos)
def test_no_one_letter_typo_passes_for_encryption(typo: tuple[str, int, str]) -> None:
    """Field case L3."""
    word, position, letter = typo
    misspelled = word[:position] + letter + word[position + 1 :]
    if misspelled == word:
        return
    complete = {"encrypt-type": "luks2", **KEY}
    complete[misspelled] = complete.pop(word)
    refusal(complete)
