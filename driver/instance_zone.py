"""The zone of the machine this runs on, as the cloud's instance metadata tells it.

That is a link-local service of the hypervisor: no cloud API, no credentials. A node's zone is the one where
its PodVMs are created, which is the node's own unless an operator says otherwise.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping

_SECONDS = 2.0
_SERVICE = "169.254.169.254"
_MOST_BYTES = 65536


class NoMetadata(Exception):
    """The metadata could not be read, or names no zone; the message says what to do."""


def instance_zone(cloud: str, service: str = _SERVICE) -> str:
    """The zone of this machine on ``cloud`` (``aws`` or ``azure``), by its name as volumes there have it.

    Raises:
        NoMetadata: it can't be told.
    """
    read = {"aws": _aws, "azure": _azure}.get(cloud)
    if read is None:
        raise NoMetadata(f"no instance metadata is known for {cloud[:40]!r}; give the zone's name itself")
    try:
        zone = read(service)
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise NoMetadata(
            f"the instance metadata of {cloud} could not be read ({type(error).__name__}); give the zone's "
            "name itself, or let pods reach the metadata service (on AWS its hop limit must be 2)"
        ) from error
    if not zone:
        raise NoMetadata(f"the instance metadata of {cloud} names no zone; give the zone's name itself")
    return zone


def _aws(service: str) -> str:
    """EC2 user guide, "Use the Instance Metadata Service", version 2."""
    token = _ask(service, "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    headers = {"X-aws-ec2-metadata-token": token}
    return _ask(service, "/latest/meta-data/placement/availability-zone", headers).strip()


def _azure(service: str) -> str:
    """Azure Instance Metadata Service. As in a node's topology label: ``westeurope-1``, or the number of its
    fault domain for a machine that is in no zone."""
    path = "/metadata/instance/compute?api-version=2021-02-01"
    compute = json.loads(_ask(service, path, {"Metadata": "true"}))
    return (
        f"{compute['location']}-{compute['zone']}" if compute["zone"] else str(compute["platformFaultDomain"])
    )


def _ask(service: str, path: str, headers: Mapping[str, str], method: str = "GET") -> str:
    # Never through a proxy: the address is this machine's own.
    connection = http.client.HTTPConnection(service, timeout=_SECONDS)
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        if answer.status != 200:
            raise http.client.HTTPException(f"status {answer.status}")
        return answer.read(_MOST_BYTES).decode()
    finally:
        connection.close()
