"""What a StorageClass can say about EBS volumes: checked without the SDK and the account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from providers.aws import disk_types
from providers.aws.disk_types import GIB
from providers.aws.settings import is_region
from providers.errors import InvalidParameterError
from providers.interface import StorageClassRules

REGION = "awsRegion"
ZONE = "awsAvailabilityZone"


class AwsClassRules(StorageClassRules):
    """Of the provider ``aws``."""

    name: ClassVar[str] = "aws"
    size_step_bytes: ClassVar[int] = GIB
    minimum_size_bytes: ClassVar[int] = GIB
    maximum_size_bytes: ClassVar[int] = 65536 * GIB
    mutable_parameter_names: ClassVar[frozenset[str]] = frozenset(
        {disk_types.VOLUME_TYPE, disk_types.IOPS, disk_types.THROUGHPUT}
    )
    parameter_names: ClassVar[frozenset[str]] = mutable_parameter_names | {
        REGION,
        ZONE,
        disk_types.KMS_KEY,
        disk_types.ENCRYPTED,
    }

    def validate_parameters(self, parameters: Mapping[str, str]) -> None:
        for parameter in parameters:
            if parameter not in self.parameter_names:
                raise InvalidParameterError(
                    f"the aws provider has no parameter {parameter[:64]!r}; remove it"
                )
        disk_types.parse(parameters)
        region = parameters.get(REGION)
        if region is not None and not is_region(region):
            raise InvalidParameterError(
                f"{REGION} {region[:40]!r} is not the name of a region; expected one as us-east-1"
            )
        if region is not None and ZONE in parameters:
            check_zone(parameters[ZONE], region)

    def size_limits(self, parameters: Mapping[str, str]) -> tuple[int, int]:
        sizes = disk_types.parse(parameters).limits().sizes
        return sizes[0] * GIB, sizes[-1] * GIB

    def zone_follows_pod(self, parameters: Mapping[str, str]) -> bool:
        return ZONE not in parameters


def check_zone(zone: str, region: str) -> None:
    """Check that a zone's name can be one of the region.

    Raises:
        InvalidParameterError: it can't.
    """
    if not (zone.startswith(region) and zone.isascii() and zone != region):
        raise InvalidParameterError(f"{ZONE} {zone[:40]!r} is not a zone of the region {region!r}")
