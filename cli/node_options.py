"""Options of the roles that work on one node."""

from __future__ import annotations

from pathlib import Path

import click

from driver.direct_volumes import DEFAULT_ROOT
from driver.pod_sockets import DEFAULT_ROOT as PODS_ROOT

direct_volumes_option = click.option(
    "--direct-volumes-root",
    envvar="CONFIDENTIAL_CSI_DIRECT_VOLUMES_ROOT",
    type=click.Path(path_type=Path),
    default=DEFAULT_ROOT,
    show_default=True,
    show_envvar=True,
    help="Kata's directory of direct volumes; the host's, mounted into the container.",
)

pods_option = click.option(
    "--pods-root",
    envvar="CONFIDENTIAL_CSI_PODS_ROOT",
    type=click.Path(path_type=Path),
    default=PODS_ROOT,
    show_default=True,
    show_envvar=True,
    help="cloud-api-adaptor's directory of pods, with a socket to each PodVM's agent.",
)
