"""EBS volume types, their limits (EC2 API reference, CreateVolume), and a StorageClass's choice of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from providers.errors import InvalidParameterError, SizeOutOfRangeError

GIB = 1 << 30

VOLUME_TYPE = "awsVolumeType"
IOPS = "awsIops"
THROUGHPUT = "awsThroughput"
KMS_KEY = "awsKmsKeyId"
ENCRYPTED = "awsEncrypted"

DEFAULT_TYPE = "gp3"


@dataclass(frozen=True)
class Limits:
    """Of one volume type; sizes in GiB, throughput in MiB/s. No range of a figure: it can't be chosen."""

    sizes: range
    iops: range | None = None
    iops_needed: bool = False
    iops_per_gib: int = 0
    """Above the least of ``iops``, which any size has."""
    throughput: range | None = None
    iops_per_throughput: int = 0
    """Each MiB/s above the least of ``throughput`` takes this many I/O operations per second."""


def _range(least: int, greatest: int) -> range:
    return range(least, greatest + 1)


TYPES: Mapping[str, Limits] = MappingProxyType(
    {
        "gp3": Limits(
            _range(1, 65536),
            iops=_range(3000, 80000),
            iops_per_gib=500,
            throughput=_range(125, 2000),
            iops_per_throughput=4,
        ),
        "gp2": Limits(_range(1, 16384)),
        "io2": Limits(_range(4, 65536), iops=_range(100, 256000), iops_needed=True, iops_per_gib=1000),
        "io1": Limits(_range(4, 16384), iops=_range(100, 64000), iops_needed=True, iops_per_gib=50),
        "st1": Limits(_range(125, 16384)),
        "sc1": Limits(_range(125, 16384)),
        "standard": Limits(_range(1, 1024)),
    }
)

_NUMBER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_KEY = re.compile(
    r"(?:arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:)?(?:key/|alias/)?[A-Za-z0-9/_-]{1,200}", re.ASCII
)


@dataclass(frozen=True)
class DiskType:
    """What a volume is made of; None where EC2's default applies."""

    name: str
    iops: int | None = None
    throughput: int | None = None
    encrypted: bool = True
    """By EBS, below the guest's own encryption."""
    kms_key: str | None = None

    def __str__(self) -> str:
        parts = [self.name]
        if self.iops:
            parts.append(f"iops={self.iops}")
        if self.throughput:
            parts.append(f"throughput={self.throughput}")
        parts.append(f"key={self.kms_key or 'default'}" if self.encrypted else "plain")
        return " ".join(parts)

    def limits(self) -> Limits:
        """Of its type."""
        return TYPES[self.name]

    def check_size(self, size_gib: int) -> None:
        """Check that such a volume can have that size.

        Raises:
            SizeOutOfRangeError: it can't. InvalidParameterError: not with these figures.
        """
        limits = self.limits()
        if size_gib not in limits.sizes:
            raise SizeOutOfRangeError(
                f"type {self.name} has {limits.sizes[0]} to {limits.sizes[-1]} GiB, not {size_gib}"
            )
        if self.iops and limits.iops and self.iops > max(limits.iops[0], limits.iops_per_gib * size_gib):
            raise InvalidParameterError(
                f"{IOPS}: a volume of type {self.name} has at most {limits.iops_per_gib} for each GiB, and "
                f"{self.iops} are too many for {size_gib} GiB"
            )


def parse(parameters: Mapping[str, str]) -> DiskType:
    """The disk type that a StorageClass chooses.

    Raises:
        InvalidParameterError: a value, or a combination, can't work.
    """
    name, iops, throughput = parse_figures(parameters)
    encrypted = _flag(parameters, ENCRYPTED)
    key = parameters.get(KMS_KEY)
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidParameterError(f"{KMS_KEY} {key[:80]!r} is not the id, ARN or alias of a KMS key")
    if key is not None and not encrypted:
        raise InvalidParameterError(f"{KMS_KEY} is set and {ENCRYPTED} is false; leave one of them out")
    disk_type = DiskType(
        name or DEFAULT_TYPE,
        iops=iops,
        throughput=throughput,
        encrypted=encrypted,
        kms_key=key,
    )
    check_figures(disk_type)
    return disk_type


def parse_figures(parameters: Mapping[str, str]) -> tuple[str | None, int | None, int | None]:
    """Type, iops and throughput, each if it is given; whether they fit together is not checked.

    Raises:
        InvalidParameterError: a value can't work.
    """
    name = parameters.get(VOLUME_TYPE)
    if name is not None and name not in TYPES:
        raise InvalidParameterError(f"{VOLUME_TYPE} is {name[:40]!r}; expected one of {', '.join(TYPES)}")
    return name, _number(parameters, IOPS), _number(parameters, THROUGHPUT)


def check_figures(disk_type: DiskType) -> None:
    """Check figures against the type.

    Raises:
        InvalidParameterError: the type has no such figure, needs one, or not that much.
    """
    limits = disk_type.limits()
    for parameter, value, allowed in (
        (IOPS, disk_type.iops, limits.iops),
        (THROUGHPUT, disk_type.throughput, limits.throughput),
    ):
        if value is not None and allowed is None:
            raise InvalidParameterError(
                f"{parameter} can't be chosen for type {disk_type.name}; leave it out"
            )
        if value is not None and allowed is not None and value not in allowed:
            raise InvalidParameterError(
                f"{parameter} is {value}; type {disk_type.name} has {allowed[0]} to {allowed[-1]}"
            )
    if limits.iops_needed and disk_type.iops is None:
        raise InvalidParameterError(f"{VOLUME_TYPE} {disk_type.name} needs {IOPS}; set it")
    if disk_type.throughput and limits.throughput and limits.iops:
        iops = disk_type.iops or limits.iops[0]
        if disk_type.throughput > max(limits.throughput[0], iops // limits.iops_per_throughput):
            raise InvalidParameterError(
                f"{THROUGHPUT} {disk_type.throughput} needs {IOPS} of at least "
                f"{disk_type.throughput * limits.iops_per_throughput}, not {iops}"
            )


def _number(parameters: Mapping[str, str], name: str) -> int | None:
    text = parameters.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise InvalidParameterError(f"{name} is {text[:40]!r}; expected a whole number, as 3000")
    return int(text)


def _flag(parameters: Mapping[str, str], name: str) -> bool:
    text = parameters.get(name, "true")
    if text not in ("true", "false"):
        raise InvalidParameterError(f"{name} is {text[:40]!r}; expected true or false")
    return text == "true"
