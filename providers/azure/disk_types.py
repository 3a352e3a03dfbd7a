"""What a StorageClass can say about a disk, and which of it Azure takes wherever the disk is.

What can be had in one region only, Azure itself checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from providers.errors import InvalidParameterError, SizeOutOfRangeError

GIB = 1 << 30

SKU = "azureDiskSKU"
#: The Go driver took both spellings.
SKU_OTHER = "azureDiskSku"
IOPS = "azureDiskIops"
MBPS = "azureDiskMbps"
ENCRYPTION_SET = "azureDiskEncryptionSetId"

DEFAULT_SKU = "StandardSSD_LRS"

_NUMBER = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
_ENCRYPTION_SET_ID = re.compile(
    r"/subscriptions/[0-9a-fA-F-]{36}/resourceGroups/[-\w.()]{1,90}/providers/Microsoft\.Compute"
    r"/diskEncryptionSets/[-\w.]{1,80}",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class SkuRules:
    """The limits of one kind of disk."""

    minimum_gib: int = 1
    maximum_gib: int = 32767
    iops: tuple[int, int] | None = None
    """Least and greatest that can be set; None: it follows from the size."""
    mbps: tuple[int, int] | None = None
    iops_free: int = 0
    """What any size may have."""
    iops_per_gib: int = 0
    zone_redundant: bool = False

    def most_iops(self, gib: int) -> int:
        """The most that a disk of ``gib`` GiB can have."""
        least, most = self.iops or (0, 0)
        return min(most, max(least, self.iops_free, self.iops_per_gib * gib))


#: From "Select a disk type for Azure IaaS VMs" (Microsoft Learn).
SKUS: Mapping[str, SkuRules] = {
    "Standard_LRS": SkuRules(),
    "StandardSSD_LRS": SkuRules(),
    "StandardSSD_ZRS": SkuRules(zone_redundant=True),
    "Premium_LRS": SkuRules(),
    "Premium_ZRS": SkuRules(zone_redundant=True),
    "PremiumV2_LRS": SkuRules(
        maximum_gib=65536, iops=(3000, 80_000), mbps=(125, 2000), iops_free=3000, iops_per_gib=500
    ),
    "UltraSSD_LRS": SkuRules(
        minimum_gib=4, maximum_gib=65536, iops=(100, 400_000), mbps=(1, 10_000), iops_per_gib=1000
    ),
}

MAXIMUM_GIB = max(rules.maximum_gib for rules in SKUS.values())


@dataclass(frozen=True)
class DiskType:
    """What a class asks for; None where it leaves it open."""

    sku: str | None
    iops: int | None
    mbps: int | None
    encryption_set: str | None

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> DiskType:
        """The part of ``parameters`` that is about the disk itself.

        Raises:
            InvalidParameterError: a value or a combination that can't work.
        """
        spellings = {parameters[key] for key in (SKU, SKU_OTHER) if key in parameters}
        if len(spellings) > 1:
            raise InvalidParameterError(f"{SKU} and {SKU_OTHER} differ; leave out {SKU_OTHER}")
        sku = spellings.pop() if spellings else None
        if sku is not None and sku not in SKUS:
            raise InvalidParameterError(f"{SKU} {sku[:40]!r} is not one of {', '.join(SKUS)}")
        encryption_set = parameters.get(ENCRYPTION_SET)
        if encryption_set is not None and not _ENCRYPTION_SET_ID.fullmatch(encryption_set):
            raise InvalidParameterError(
                f"{ENCRYPTION_SET} {encryption_set[:60]!r} must be the resource id of a disk encryption set "
                "(/subscriptions/…/providers/Microsoft.Compute/diskEncryptionSets/…)"
            )
        found = cls(sku, _number(parameters, IOPS), _number(parameters, MBPS), encryption_set)
        if sku is not None:
            found.check_performance(sku)
        return found

    def check_performance(self, sku: str) -> None:
        """Check IOPS and throughput for a disk of that SKU, of whatever size.

        Raises:
            InvalidParameterError: they can't be had, or not chosen.
        """
        rules = SKUS[sku]
        for name, value, limits in ((IOPS, self.iops, rules.iops), (MBPS, self.mbps, rules.mbps)):
            if value is None:
                continue
            if limits is None:
                tunable = ", ".join(name for name, other in SKUS.items() if other.iops is not None)
                raise InvalidParameterError(f"{name} can be chosen for {tunable} only, not for {sku}")
            if not limits[0] <= value <= limits[1]:
                raise InvalidParameterError(f"{name} is {value}; {sku} takes {limits[0]} to {limits[1]}")
        if self.iops is not None and self.mbps is not None and self.mbps * 4 > self.iops:
            raise InvalidParameterError(
                f"{MBPS} {self.mbps} needs at least {self.mbps * 4} of {IOPS} (a quarter MB/s for each)"
            )

    def check_size(self, sku: str, gib: int) -> None:
        """Check a size, and the IOPS that go with it.

        Raises:
            SizeOutOfRangeError: no such disk has that size. InvalidParameterError: not with these IOPS.
        """
        rules = SKUS[sku]
        if not rules.minimum_gib <= gib <= rules.maximum_gib:
            raise SizeOutOfRangeError(
                f"{gib} GiB: {sku} disks have {rules.minimum_gib} to {rules.maximum_gib} GiB; ask for that"
            )
        if self.iops is not None and rules.iops is not None and self.iops > rules.most_iops(gib):
            raise InvalidParameterError(
                f"{IOPS} is {self.iops}; a {sku} disk of {gib} GiB has at most {rules.most_iops(gib)}"
            )

    def created_as(self) -> str:
        """What is noted on the disk, to tell a repeated request from a different one."""
        parts = [self.sku or DEFAULT_SKU]
        parts += [f"iops={self.iops}"] if self.iops is not None else []
        parts += [f"mbps={self.mbps}"] if self.mbps is not None else []
        return " ".join(parts)


def _number(parameters: Mapping[str, str], name: str) -> int | None:
    if name not in parameters:
        return None
    if not _NUMBER.fullmatch(parameters[name]):
        raise InvalidParameterError(f"{name} {parameters[name][:40]!r} is not a positive whole number")
    return int(parameters[name])
