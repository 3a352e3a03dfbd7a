"""What a StorageClass can say about managed disks: checked without the SDK and the account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from providers.azure import disk_types
from providers.azure.disk_types import GIB, MAXIMUM_GIB, SKUS, DiskType
from providers.azure.places import is_resource_group, is_subscription
from providers.errors import InvalidParameterError
from providers.interface import StorageClassRules

SUBSCRIPTION = "azureSubscriptionId"
RESOURCE_GROUP = "azureResourceGroup"
LOCATION = "azureLocation"


class AzureClassRules(StorageClassRules):
    """Of the provider ``azure``."""

    name: ClassVar[str] = "azure"
    size_step_bytes: ClassVar[int] = GIB
    minimum_size_bytes: ClassVar[int] = GIB
    maximum_size_bytes: ClassVar[int] = MAXIMUM_GIB * GIB
    mutable_parameter_names: ClassVar[frozenset[str]] = frozenset(
        {disk_types.SKU, disk_types.SKU_OTHER, disk_types.IOPS, disk_types.MBPS}
    )
    parameter_names: ClassVar[frozenset[str]] = mutable_parameter_names | {
        SUBSCRIPTION,
        RESOURCE_GROUP,
        LOCATION,
        disk_types.ENCRYPTION_SET,
    }

    def validate_parameters(self, parameters: Mapping[str, str]) -> None:
        for parameter in parameters:
            if parameter not in self.parameter_names:
                raise InvalidParameterError(
                    f"the azure provider has no parameter {parameter[:64]!r}; remove it"
                )
        subscription, group = parameters.get(SUBSCRIPTION), parameters.get(RESOURCE_GROUP)
        if subscription is not None and not is_subscription(subscription.lower()):
            raise InvalidParameterError(
                f"{SUBSCRIPTION} {subscription[:40]!r} is not a subscription's id, a UUID"
            )
        if group is not None and not is_resource_group(group):
            raise InvalidParameterError(
                f"{RESOURCE_GROUP} {group[:90]!r} is not the name of a resource group"
            )
        disk_type = DiskType.parse(parameters)
        if disk_type.sku is None:
            disk_type.check_performance(disk_types.DEFAULT_SKU)

    def size_limits(self, parameters: Mapping[str, str]) -> tuple[int, int]:
        if not parameters:
            return self.minimum_size_bytes, self.maximum_size_bytes  # of any disk, as for an expansion
        rules = SKUS[_sku(parameters)]
        return rules.minimum_gib * GIB, rules.maximum_gib * GIB

    def zone_follows_pod(self, parameters: Mapping[str, str]) -> bool:
        return not SKUS[_sku(parameters)].zone_redundant


def _sku(parameters: Mapping[str, str]) -> str:
    return DiskType.parse(parameters).sku or disk_types.DEFAULT_SKU
