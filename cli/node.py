"""``confidential-csi node``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from cli.node_options import direct_volumes_option, pods_option
from cli.serving import serve, serving_options
from driver.direct_volumes import DirectVolumes
from driver.guests import Guests
from driver.identity import IdentityService
from driver.logs import configure
from driver.node import NodeService
from driver.node_id import is_node_name
from driver.pod_sockets import PodSockets

_METADATA = "metadata:"


@click.command()
@serving_options
@click.option(
    "--node-id",
    envvar="CONFIDENTIAL_CSI_NODE_ID",
    required=True,
    show_envvar=True,
    help="Name of this Kubernetes node.",
)
@click.option(
    "--zone",
    envvar="CONFIDENTIAL_CSI_ZONE",
    default="",
    show_envvar=True,
    help="Zone in which this node's PodVMs are created, by the cloud's name for it; metadata:aws or "
    "metadata:azure: this machine's own; none: no topology.",
)
@direct_volumes_option
@pods_option
def node(
    *,
    endpoint: str,
    log_format: str,
    log_level: str,
    grace_period: float,
    node_id: str,
    zone: str,
    direct_volumes_root: Path,
    pods_root: Path,
) -> None:
    """Hand volumes over to Kata on one node (beside the node-driver-registrar)."""
    configure(log_format, log_level)
    if not is_node_name(node_id):
        raise click.ClickException(
            f"--node-id {node_id[:80]!r} is not the name of a Kubernetes node (lower-case letters, digits, "
            "'-' and '.', at most 187)"
        )
    if zone.startswith(_METADATA):
        # Only here: most nodes are told their zone, and need no HTTP client in memory.
        metadata = import_module("driver.instance_zone")
        try:
            zone = metadata.instance_zone(zone.removeprefix(_METADATA))
        except metadata.NoMetadata as error:
            raise click.ClickException(f"--zone: {error}") from error
    direct_volumes = DirectVolumes(direct_volumes_root)
    direct_volumes.clear_leftovers()
    services = {
        # Plugin capabilities are the plugin's as a whole; the node offers its part of online expansion.
        "Identity": IdentityService(can_expand=True, readiness=direct_volumes.readiness),
        "Node": NodeService(node_id, direct_volumes, Guests(PodSockets(pods_root)), zone),
    }
    serve(endpoint, services, grace_period)
