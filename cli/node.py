"""``confidential-csi node``."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.metrics import node_observer
from cli.node_options import direct_volumes_option, pods_option
from cli.serving import serve, serving_options
from driver.direct_volumes import DirectVolumes
from driver.guests import Guests
from driver.identity import IdentityService
from driver.logs import configure
from driver.node import NodeService
from driver.node_id import is_node_name
from driver.one_pod import OnePodWithVolumes
from driver.pod_sockets import PodSockets

if TYPE_CHECKING:
    from driver.peer_pods import PeerPodGuard

_METADATA = "metadata:"


@click.command(short_help="Hand volumes over to Kata on one node.")
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
@click.option(
    "--peer-pod-handlers",
    envvar="CONFIDENTIAL_CSI_PEER_POD_HANDLERS",
    default="",
    show_envvar=True,
    help="Handlers of the RuntimeClasses that start peer pods, separated by commas (kata-remote): volumes "
    "are published for pods with these alone, which the Kubernetes API tells. Without it, for any pod.",
)
@click.option(
    "--service-account",
    envvar="CONFIDENTIAL_CSI_SERVICE_ACCOUNT",
    type=click.Path(path_type=Path),
    default=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
    show_default=True,
    show_envvar=True,
    help="Directory with token and ca.crt for the Kubernetes API; only read with --peer-pod-handlers.",
)
@click.option(
    "--one-pod-with-volumes",
    envvar="CONFIDENTIAL_CSI_ONE_POD_WITH_VOLUMES",
    is_flag=True,
    default=False,
    show_envvar=True,
    help="Publish nothing beside a volume of another pod on this node: cloud-api-adaptor would attach it to "
    "both PodVMs.",
)
def node(
    *,
    endpoint: str,
    log_format: str,
    log_level: str,
    metrics_address: str,
    grace_period: float,
    node_id: str,
    zone: str,
    direct_volumes_root: Path,
    pods_root: Path,
    peer_pod_handlers: str,
    service_account: Path,
    one_pod_with_volumes: bool,
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
    records = DirectVolumes(direct_volumes_root)
    observer = node_observer(metrics_address, lambda: len(records.target_paths()))
    direct_volumes = DirectVolumes(direct_volumes_root, observer)
    direct_volumes.clear_leftovers()
    services = {
        # Plugin capabilities are the plugin's as a whole; the node offers its part of online expansion.
        "Identity": IdentityService(can_expand=True, readiness=direct_volumes.readiness),
        "Node": NodeService(
            node_id,
            direct_volumes,
            Guests(PodSockets(pods_root)),
            zone,
            peer_pods=_guard(peer_pod_handlers, service_account) if peer_pod_handlers else None,
            one_pod=OnePodWithVolumes(direct_volumes) if one_pod_with_volumes else None,
        ),
    }
    serve(endpoint, services, grace_period, observer)


def _guard(handlers: str, service_account: Path) -> PeerPodGuard:
    # Only here, as above.
    peer_pods = import_module("driver.peer_pods")
    kubernetes_api = import_module("driver.kubernetes_api")
    try:
        api = kubernetes_api.KubernetesApi.in_cluster(os.environ, service_account)
        guard: PeerPodGuard = peer_pods.PeerPodGuard(api, peer_pods.handlers_in(handlers))
    except (kubernetes_api.NotInCluster, ValueError) as error:
        raise click.ClickException(f"--peer-pod-handlers: {error}") from error
    return guard
