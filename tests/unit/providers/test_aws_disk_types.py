"""EBS types and their limits, as a StorageClass chooses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.aws import AwsProvider
from providers.aws.disk_types import GIB, TYPES, DiskType, parse
from providers.aws.provider import existing_regions
from providers.aws.settings import Settings
from providers.errors import InvalidParameterError, SizeOutOfRangeError
from tests.fakes.ec2.checks import new_volume
from tests.fakes.ec2.rules import Ec2Error

PROVIDER = AwsProvider(Settings("us-east-1"), lambda _: None, existing_regions())


def test_gp3_encrypted_is_what_nothing_asks_for() -> None:
    assert parse({}) == DiskType("gp3", encrypted=True)


@pytest.mark.parametrize(
    "value", ["1_000", "\uff11\uff10\uff10\uff10", "3e3", "-1", "", " 3000", "3000\n", "0", "03000", "9" * 10]
)
@pytest.mark.parametrize("name", ["awsIops", "awsThroughput"])
def test_numbers_are_ascii_digits(name: str, value: str) -> None:
    """Field case L3."""
    with pytest.raises(InvalidParameterError, match=name):
        PROVIDER.validate_parameters({name: value})


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"awsVolumeType": "GP3"}, "awsVolumeType"),
        ({"awsVolumeType": ""}, "awsVolumeType"),
        ({"awsVolumeType": "gp2", "awsIops": "3000"}, "awsIops"),
        ({"awsVolumeType": "io2"}, "awsIops"),
        ({"awsVolumeType": "io1", "awsIops": "64001"}, "awsIops"),
        ({"awsVolumeType": "io2", "awsIops": "99"}, "awsIops"),
        ({"awsVolumeType": "io2", "awsIops": "4000", "awsThroughput": "250"}, "awsThroughput"),
        ({"awsIops": "2999"}, "awsIops"),
        ({"awsIops": "80001"}, "awsIops"),
        ({"awsThroughput": "124"}, "awsThroughput"),
        ({"awsThroughput": "2001"}, "awsThroughput"),
        ({"awsThroughput": "751"}, "awsThroughput"),
        ({"awsEncrypted": "False"}, "awsEncrypted"),
        ({"awsEncrypted": "false", "awsKmsKeyId": "alias/x"}, "awsKmsKeyId"),
        ({"awsKmsKeyId": "a b"}, "awsKmsKeyId"),
        ({"awsKmsKeyId": ""}, "awsKmsKeyId"),
        ({"awsRegion": "us-east"}, "awsRegion"),
        ({"awsRegion": "us-nowhere-1"}, "awsRegion"),
        ({"awsRegion": "us-east-1.evil.example/"}, "awsRegion"),
        ({"awsAvailabilityZone": "eu-west-1a"}, "awsAvailabilityZone"),
        ({"awsAvailabilityZone": "us-east-1"}, "awsAvailabilityZone"),
        ({"awsRegion": "eu-west-1", "awsAvailabilityZone": "us-east-1a"}, "awsAvailabilityZone"),
        ({"awsAccessKeyId": "AKIA"}, "awsAccessKeyId"),
        ({"awsSecretKey": "x"}, "awsSecretKey"),
    ],
)
def test_what_can_t_work_is_refused_before_any_call(parameters: dict[str, str], named: str) -> None:
    """Field cases L2, L3."""
    with pytest.raises(InvalidParameterError, match=named):
        PROVIDER.validate_parameters(parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"awsThroughput": "750"},
        {"awsIops": "4000", "awsThroughput": "1000"},
        {"awsVolumeType": "io2", "awsIops": "256000"},
        {"awsVolumeType": "st1", "awsEncrypted": "false"},
        {"awsKmsKeyId": "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"},
        {"awsRegion": "eu-west-1", "awsAvailabilityZone": "eu-west-1b"},
        {"awsRegion": "us-gov-west-1"},
        {"awsRegion": "us-west-2", "awsAvailabilityZone": "us-west-2-lax-1a"},
    ],
)
def test_what_can_work_is_accepted(parameters: dict[str, str]) -> None:
    PROVIDER.validate_parameters(parameters)


@given(
    st.sampled_from(sorted(TYPES)),
    st.integers(1, 70000),
    st.none() | st.integers(1, 300000),
    st.none() | st.integers(1, 2500),
)
def test_what_the_check_lets_through_ec2_takes(
    name: str, size: int, iops: int | None, throughput: int | None
) -> None:
    """And what it refuses EC2 refuses: the strict EC2 has its own table."""
    figures = {"awsIops": iops, "awsThroughput": throughput}
    given = {key: str(value) for key, value in figures.items() if value is not None}
    arguments = {"Iops": iops, "Throughput": throughput}
    request = {"VolumeType": name, "Size": size}
    request |= {key: value for key, value in arguments.items() if value is not None}
    try:
        parse({"awsVolumeType": name, **given}).check_size(size)
        refused = False
    except (InvalidParameterError, SizeOutOfRangeError):
        refused = True
    try:
        new_volume(request, 0)
        refused_by_ec2 = False
    except Ec2Error:
        refused_by_ec2 = True
    assert refused == refused_by_ec2


def test_limits_of_sizes_depend_on_the_type() -> None:
    """Field case A5."""
    assert PROVIDER.size_limits({}) == (GIB, 65536 * GIB)
    assert PROVIDER.size_limits({"awsVolumeType": "io2", "awsIops": "100"}) == (4 * GIB, 65536 * GIB)
    assert PROVIDER.size_limits({"awsVolumeType": "st1"}) == (125 * GIB, 16384 * GIB)
