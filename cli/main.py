"""``confidential-csi``: the driver's two roles. Flags and environment variables: ``docs/flags.md``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from driver.endpoint import Endpoint, EndpointError
from driver.identity import IdentityService
from driver.logs import configure
from driver.server import Server, serve_until_signal

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--endpoint",
        envvar="CSI_ENDPOINT",
        default="unix:///csi/csi.sock",
        show_default=True,
        show_envvar=True,
        help="Unix socket to serve on.",
    ),
    click.option(
        "--log-format",
        envvar="CONFIDENTIAL_CSI_LOG_FORMAT",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        show_envvar=True,
        help="How log lines are written (to standard error).",
    ),
    click.option(
        "--log-level",
        envvar="CONFIDENTIAL_CSI_LOG_LEVEL",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        show_envvar=True,
        help="Least level of a log line; debug also logs requests, their secrets stripped.",
    ),
    click.option(
        "--grace-period",
        envvar="CONFIDENTIAL_CSI_GRACE_PERIOD",
        type=click.FloatRange(min=0),
        default=20.0,
        show_default=True,
        show_envvar=True,
        help="Seconds that calls in progress may take after SIGTERM.",
    ),
)


def _common_options(command: _Command) -> _Command:
    """The options of every role."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="confidential-csi")
def main() -> None:
    """Encrypted volumes for confidential containers (peer pods)."""


@main.command()
@_common_options
@click.option(
    "--provider",
    envvar="CONFIDENTIAL_CSI_PROVIDER",
    required=True,
    show_envvar=True,
    help="Where disks live; the provider reads its own settings from the environment.",
)
def controller(endpoint: str, log_format: str, log_level: str, grace_period: float, provider: str) -> None:
    """Create, grow, copy and delete volumes (with the provisioner, resizer and snapshotter)."""
    # Imported here: the node role loads no provider.
    from driver.controller import ControllerService
    from providers.errors import ConfigurationError
    from providers.interface import VolumeExpander
    from providers.registry import installed_providers, load_provider

    configure(log_format, log_level)
    try:
        backend = load_provider(provider, os.environ)
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from error
    services = {
        "Identity": IdentityService(can_expand=isinstance(backend, VolumeExpander)),
        "Controller": ControllerService(backend, installed_providers()),
    }
    _serve(endpoint, services, grace_period)


@main.command()
@_common_options
@click.option(
    "--node-id",
    envvar="CONFIDENTIAL_CSI_NODE_ID",
    required=True,
    show_envvar=True,
    help="Name of this Kubernetes node.",
)
@click.option(
    "--direct-volumes-root",
    envvar="CONFIDENTIAL_CSI_DIRECT_VOLUMES_ROOT",
    type=click.Path(path_type=Path),
    default="/run/kata-containers/shared/direct-volumes",
    show_default=True,
    show_envvar=True,
    help="Kata's directory of direct volumes; the host's, mounted into the container.",
)
def node(
    endpoint: str,
    log_format: str,
    log_level: str,
    grace_period: float,
    node_id: str,
    direct_volumes_root: Path,
) -> None:
    """Hand volumes over to Kata on one node (beside the node-driver-registrar)."""
    from driver.direct_volumes import DirectVolumes
    from driver.node import NodeService

    configure(log_format, log_level)
    direct_volumes = DirectVolumes(direct_volumes_root)
    services = {
        # Plugin capabilities are the plugin's as a whole; the node offers its part of online expansion.
        "Identity": IdentityService(can_expand=True, readiness=direct_volumes.readiness),
        "Node": NodeService(node_id, direct_volumes),
    }
    _serve(endpoint, services, grace_period)


def _serve(endpoint: str, services: Mapping[str, object], grace_period: float) -> None:
    try:
        serve_until_signal(Server(Endpoint.parse(endpoint), services), grace_period)
    except EndpointError as error:
        raise click.ClickException(str(error)) from error
