"""What the process environment says about the subscription, and how long things take there."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from providers.azure.places import Place, is_resource_group, is_subscription, labels_of, normalized_location
from providers.azure.tags import LABELS, is_tag_key, is_tag_value
from providers.disk_facts import ENCRYPT_TYPE, KBS_KEY_ID
from providers.errors import ConfigurationError

SUBSCRIPTION = "CONFIDENTIAL_CSI_AZURE_SUBSCRIPTION_ID"
RESOURCE_GROUP = "CONFIDENTIAL_CSI_AZURE_RESOURCE_GROUP"
MORE_RESOURCE_GROUPS = "CONFIDENTIAL_CSI_AZURE_MORE_RESOURCE_GROUPS"
LOCATION = "CONFIDENTIAL_CSI_AZURE_LOCATION"
ZONE = "CONFIDENTIAL_CSI_AZURE_ZONE"
ENDPOINT = "CONFIDENTIAL_CSI_AZURE_ENDPOINT"
CLUSTER_ID = "CONFIDENTIAL_CSI_CLUSTER_ID"
EXTRA_TAGS = "CONFIDENTIAL_CSI_EXTRA_TAGS"

PUBLIC_ENDPOINT = "https://management.azure.com"

_MAXIMUM_EXTRA_TAGS = 30  # a resource has at most 50
_LOCATION_FORM = re.compile(r"[a-z]{2,40}[0-9]{0,2}", re.ASCII)
_ZONE_NUMBER = re.compile(r"[1-9]", re.ASCII)


@dataclass(frozen=True)
class Timings:
    """Seconds; the defaults are for the real Azure."""

    first_pause: float = 0.25
    """Before an operation is looked at for the first time, or a call repeated; it doubles …"""
    longest_pause: float = 5.0
    """… up to this. Azure's own Retry-After takes its place."""
    answer: float = 20.0
    """How long one answer may take."""
    consistency: float = 10.0
    """An object that was just made can be missing from answers for this long."""
    snapshot: float = 1.0
    """How long the background copy of a snapshot is waited for before it is reported as not ready."""


@dataclass(frozen=True)
class Settings:
    """One subscription, as this controller uses it."""

    place: Place
    """Where volumes are unless a parameter says otherwise."""
    more_places: tuple[Place, ...] = ()
    """Further resource groups that parameters may name and whose volumes are found and listed."""
    location: str = ""
    """Region of new volumes unless a parameter or the topology says otherwise."""
    zone: str = ""
    """Number of the zone of new volumes if the topology names none; empty: no zone."""
    endpoint: str = PUBLIC_ENDPOINT
    cluster_id: str = ""
    extra_tags: Mapping[str, str] = field(default_factory=dict)
    timings: Timings = Timings()

    @property
    def places(self) -> tuple[Place, ...]:
        """All resource groups, the usual one first."""
        return (self.place, *self.more_places)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """The settings in ``environment``.

        Raises:
            ConfigurationError: one is missing or can't work.
        """
        subscription = environment.get(SUBSCRIPTION, "").lower()
        if not is_subscription(subscription):
            raise ConfigurationError(f"{SUBSCRIPTION} must be set to the id (a UUID) of the subscription")
        place = Place(subscription, environment.get(RESOURCE_GROUP, ""))
        if not is_resource_group(place.group):
            raise ConfigurationError(f"{RESOURCE_GROUP} must be set to the resource group of the disks")
        more_places = tuple(
            _place(text.strip(), subscription)
            for text in environment.get(MORE_RESOURCE_GROUPS, "").split(",")
            if text.strip()
        )
        places = (place, *more_places)
        if len(labels_of(places)) < 2 * len({one.folded for one in places}):
            raise ConfigurationError(
                f"{MORE_RESOURCE_GROUPS}: two resource groups have one label; leave one out"
            )
        location = normalized_location(environment.get(LOCATION, ""))
        if location and not _LOCATION_FORM.fullmatch(location):
            raise ConfigurationError(
                f"{LOCATION} {location[:40]!r} is not the name of a region, as westeurope"
            )
        zone = environment.get(ZONE, "").removeprefix(f"{location}-")
        if zone and not (location and _ZONE_NUMBER.fullmatch(zone)):
            raise ConfigurationError(
                f"{ZONE} {zone[:40]!r} is not a zone of {LOCATION}; expected 1 or westeurope-1"
            )
        cluster_id = environment.get(CLUSTER_ID, "")
        if not is_tag_value(cluster_id):
            raise ConfigurationError(
                f"{CLUSTER_ID} must have at most 256 characters, none of them a control one"
            )
        return cls(
            place=place,
            more_places=more_places,
            location=location,
            zone=zone,
            endpoint=_endpoint(environment.get(ENDPOINT, "")),
            cluster_id=cluster_id,
            extra_tags=MappingProxyType(_extra_tags(environment.get(EXTRA_TAGS, ""))),
        )


def _place(text: str, subscription: str) -> Place:
    before, separator, after = text.partition("/")
    place = Place(before.lower(), after) if separator else Place(subscription, text)
    if not (is_subscription(place.subscription) and is_resource_group(place.group)):
        raise ConfigurationError(
            f"{MORE_RESOURCE_GROUPS} must be a comma-separated list of resource groups, each as GROUP or "
            f"SUBSCRIPTION/GROUP; {text[:60]!r} is not"
        )
    return place


def _endpoint(text: str) -> str:
    endpoint = text.rstrip("/") or PUBLIC_ENDPOINT
    try:
        parts = urllib.parse.urlsplit(endpoint)
        valid = parts.scheme == "https" and parts.hostname and not (parts.query or parts.fragment)
        valid = valid and parts.username is None and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(
            f"{ENDPOINT} must be the https URL of the cloud's Resource Manager, as {PUBLIC_ENDPOINT}"
        )
    return endpoint


def _extra_tags(text: str) -> dict[str, str]:
    tags = {}
    for part in filter(None, text.split(",")):
        key, separator, value = part.partition("=")
        if not (separator and is_tag_key(key) and is_tag_value(value)):
            raise ConfigurationError(
                f"{EXTRA_TAGS} must be key=value,key=value, the keys without any of <>%&\\?/; "
                f"{part[:60]!r} is not"
            )
        if key.lower().startswith(("caa-csi-", "microsoft", "azure", "windows")) or key.lower() in _OURS:
            raise ConfigurationError(f"{EXTRA_TAGS}: the key {key[:60]!r} belongs to the driver or to Azure")
        tags[key] = value
    if len(tags) > _MAXIMUM_EXTRA_TAGS:
        raise ConfigurationError(f"{EXTRA_TAGS} holds {len(tags)} tags; at most {_MAXIMUM_EXTRA_TAGS}")
    return tags


_OURS = frozenset({ENCRYPT_TYPE, KBS_KEY_ID, *LABELS.values()})
