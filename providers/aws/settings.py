"""What the process environment says about the account, and how long things take there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from providers.aws.tags import RESERVED_KEYS, is_tag_text
from providers.errors import ConfigurationError

REGION = "CONFIDENTIAL_CSI_AWS_REGION"
MORE_REGIONS = "CONFIDENTIAL_CSI_AWS_MORE_REGIONS"
ZONE = "CONFIDENTIAL_CSI_AWS_ZONE"
CLUSTER_ID = "CONFIDENTIAL_CSI_CLUSTER_ID"
EXTRA_TAGS = "CONFIDENTIAL_CSI_EXTRA_TAGS"

#: As EKS sets them for a pod, and as the SDK reads them.
_USUAL_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")

_MAXIMUM_EXTRA_TAGS = 30  # EC2 allows 50 in all
_REGION_FORM = re.compile(r"[a-z]{2,4}(?:-[a-z]{2,10}){1,2}-[0-9]{1,2}", re.ASCII)


@dataclass(frozen=True)
class Timings:
    """Seconds; the defaults are for the real EC2."""

    consistency: float = 10.0
    """A new object can be missing from answers for this long, so one missing for longer does not exist."""
    first_poll: float = 0.5
    """Between two shared questions when the first are asked after a pause …"""
    last_poll: float = 3.0
    """… and after a while of asking without one."""
    gather: float = 0.01
    """How long the first question after a pause waits for others to share its call."""
    merge: float = 0.5
    """How long a modification waits for another one of the same volume to share its call."""
    snapshot: float = 1.0
    """How long a snapshot is waited for before it is reported as not ready yet."""


@dataclass(frozen=True)
class Settings:
    """One account, as this controller uses it."""

    region: str
    """Where volumes are unless a parameter or an id says otherwise."""
    more_regions: tuple[str, ...] = ()
    """Further ones whose volumes are listed."""
    zone: str = ""
    """Where volumes are if neither topology nor a parameter says so; empty: one of the two must."""
    cluster_id: str = ""
    extra_tags: Mapping[str, str] = field(default_factory=dict)
    timings: Timings = Timings()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """The settings in ``environment``.

        Raises:
            ConfigurationError: one is missing or can't work.
        """
        given = (environment.get(name, "") for name in (REGION, *_USUAL_REGIONS))
        region = next((value for value in given if value), "")
        if not region:
            raise ConfigurationError(f"{REGION} must be set to the region of the volumes, as us-east-1")
        more_regions = tuple(part.strip() for part in environment.get(MORE_REGIONS, "").split(",") if part)
        for one in (region, *more_regions):
            if not is_region(one):
                raise ConfigurationError(
                    f"{one[:40]!r} is not the name of a region; correct {REGION} or {MORE_REGIONS}"
                )
        zone = environment.get(ZONE, "")
        if zone and not zone.startswith(region):
            raise ConfigurationError(f"{ZONE} {zone[:40]!r} is not a zone of the region {region!r}")
        cluster_id = environment.get(CLUSTER_ID, "")
        if not is_tag_text(cluster_id, 256):
            raise ConfigurationError(f"{CLUSTER_ID} must be letters, digits, spaces and + - = . _ : / @")
        extra_tags = _extra_tags(environment.get(EXTRA_TAGS, ""))
        return cls(region, more_regions, zone, cluster_id, MappingProxyType(extra_tags))


def is_region(text: str) -> bool:
    """Whether ``text`` has the form of a region's name (``us-east-1``)."""
    return _REGION_FORM.fullmatch(text) is not None


def _extra_tags(text: str) -> dict[str, str]:
    tags = {}
    for part in filter(None, text.split(",")):
        key, separator, value = part.partition("=")
        if not (separator and key and is_tag_text(key, 128) and is_tag_text(value, 256)):
            raise ConfigurationError(
                f"{EXTRA_TAGS} must be key=value,key=value with letters, digits, spaces and + - = . _ : / @; "
                f"{part[:60]!r} is not"
            )
        if key in RESERVED_KEYS or key.lower().startswith(("aws:", "caa-csi-")):
            raise ConfigurationError(f"{EXTRA_TAGS}: the key {key!r} belongs to the driver or to AWS")
        tags[key] = value
    if len(tags) > _MAXIMUM_EXTRA_TAGS:
        raise ConfigurationError(f"{EXTRA_TAGS} holds {len(tags)} tags; at most {_MAXIMUM_EXTRA_TAGS}")
    return tags
