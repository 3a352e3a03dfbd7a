"""``confidential-csi controller``."""

from __future__ import annotations

import os

import click

from cli.serving import serve, serving_options
from driver.controller import ControllerService
from driver.identity import IdentityService
from driver.logs import configure
from providers.errors import ConfigurationError
from providers.interface import VolumeExpander, ZonedVolumes
from providers.registry import installed_providers, load_provider


@click.command()
@serving_options
@click.option(
    "--provider",
    envvar="CONFIDENTIAL_CSI_PROVIDER",
    required=True,
    show_envvar=True,
    help="Where disks live; the provider reads its own settings from the environment.",
)
def controller(*, endpoint: str, log_format: str, log_level: str, grace_period: float, provider: str) -> None:
    """Create, grow, copy and delete volumes (with the provisioner, resizer and snapshotter)."""
    configure(log_format, log_level)
    try:
        backend = load_provider(provider, os.environ)
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from error
    services = {
        "Identity": IdentityService(
            can_expand=isinstance(backend, VolumeExpander), has_zones=isinstance(backend, ZonedVolumes)
        ),
        "Controller": ControllerService(backend, installed_providers()),
    }
    serve(endpoint, services, grace_period)
