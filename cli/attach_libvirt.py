"""``confidential-csi attach-libvirt``."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import click

from cli.node_options import direct_volumes_option
from cli.serving import logging_options
from driver.attacher import Attacher
from driver.direct_volumes import DirectVolumes
from driver.dumps import forbid_dumps
from driver.logs import configure
from providers.errors import ConfigurationError
from providers.interface import VolumeAttacher
from providers.registry import load_provider

_PROVIDER = "libvirt"


@click.command("attach-libvirt", short_help="Attach published volumes to PodVMs on libvirt.")
@logging_options
@click.option(
    "--node-id",
    envvar="CONFIDENTIAL_CSI_NODE_ID",
    required=True,
    show_envvar=True,
    help="Name of this Kubernetes node; what other nodes attached is left alone.",
)
@direct_volumes_option
@click.option(
    "--interval",
    envvar="CONFIDENTIAL_CSI_ATTACH_INTERVAL",
    type=click.FloatRange(min=0.05, max=60),
    default=0.5,
    show_default=True,
    show_envvar=True,
    help="Seconds between two looks at the records and the PodVMs.",
)
def attach_libvirt(
    *, log_format: str, log_level: str, node_id: str, direct_volumes_root: Path, interval: float
) -> None:
    """Attach published volumes to libvirt PodVMs on one node, as cloud-api-adaptor does on other clouds."""
    configure(log_format, log_level)
    forbid_dumps()
    try:
        provider = load_provider(_PROVIDER, os.environ)
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from error
    if not isinstance(provider, VolumeAttacher):
        raise click.ClickException("the installed libvirt provider can't attach disks; update it")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    Attacher(provider, _PROVIDER, DirectVolumes(direct_volumes_root), node_id).run(stop, interval)
