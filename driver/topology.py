"""Zones, in the specification's terms: one topology key, whose value is the provider's name of a zone.

A node's zone is the one where its PodVMs are created, so that disk and PodVM meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from driver.errors import InvalidArgument
from proto import csi_pb2

ZONE_KEY = "topology.caa-csi-block.csi.confidentialcontainers.io/zone"


def accessible_topology(zones: Iterable[str]) -> list[csi_pb2.Topology]:
    """One topology for each zone."""
    return [csi_pb2.Topology(segments={ZONE_KEY: zone}) for zone in zones]


def wanted_zones(requirement: csi_pb2.TopologyRequirement) -> tuple[str, ...]:
    """The zones that a volume may be in, the preferred ones first; empty when any will do.

    Raises:
        InvalidArgument: a topology has another key than ours, so that no zone can be told from it.
    """
    preferred, requisite = _zones(requirement.preferred), _zones(requirement.requisite)
    if requisite:
        # The specification wants each preferred one among the requisite; one that is not can't be used.
        preferred = [zone for zone in preferred if zone in requisite]
    return tuple(dict.fromkeys([*preferred, *requisite]))


def _zones(topologies: Sequence[csi_pb2.Topology]) -> list[str]:
    zones = []
    for topology in topologies:
        unknown = sorted(set(topology.segments) - {ZONE_KEY})
        if unknown or not topology.segments.get(ZONE_KEY):
            raise InvalidArgument(
                f"accessibility_requirements: {unknown[0][:128]!r} is not a key of this driver; "
                f"allowedTopologies must use {ZONE_KEY}"
                if unknown
                else f"accessibility_requirements: a topology lacks {ZONE_KEY}"
            )
        zones.append(topology.segments[ZONE_KEY])
    return zones
