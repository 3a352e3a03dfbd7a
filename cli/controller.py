"""``confidential-csi controller``."""

from __future__ import annotations

import os

import click

from cli.metrics import controller_observer
from cli.serving import serve, serving_options
from driver.controller import ControllerService
from driver.identity import IdentityService, always_ready
from driver.inventory import Inventory
from driver.logs import configure
from driver.readiness import BackendReadiness
from providers.errors import ConfigurationError
from providers.interface import BackendCheck, VolumeExpander, ZonedVolumes
from providers.registry import installed_providers, load_provider


@click.command(short_help="Create, grow, copy and delete volumes.")
@serving_options
@click.option(
    "--provider",
    envvar="CONFIDENTIAL_CSI_PROVIDER",
    required=True,
    show_envvar=True,
    help="Where disks live; the provider reads its own settings from the environment.",
)
def controller(
    *,
    endpoint: str,
    log_format: str,
    log_level: str,
    metrics_address: str,
    grace_period: float,
    provider: str,
) -> None:
    """Create, grow, copy and delete volumes (with the provisioner, resizer and snapshotter)."""
    configure(log_format, log_level)
    try:
        backend = load_provider(provider, os.environ)
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from error
    observer = controller_observer(metrics_address, provider)
    readiness = always_ready
    if isinstance(backend, BackendCheck):
        check = BackendReadiness(backend, observer)
        check.start()
        readiness = check.reason
    if metrics_address:
        Inventory(backend, observer).start()
    services = {
        "Identity": IdentityService(
            can_expand=isinstance(backend, VolumeExpander),
            has_zones=isinstance(backend, ZonedVolumes),
            readiness=readiness,
        ),
        "Controller": ControllerService(backend, installed_providers()),
    }
    serve(endpoint, services, grace_period, observer)
