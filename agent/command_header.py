"""``confidential-csi-agent header export``: a volume's header, for escrow."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from agent.annotation import CloudVolume
from agent.block_device import DirectDevice
from agent.cdh import DataHubClient
from agent.clock import SystemClock
from agent.commands import SystemRunner
from agent.devices import DeviceFinder
from agent.errors import Refused
from agent.header_export import ExportedHeader, HeaderExport
from agent.policy import rules_for
from agent.policy_source import PolicyFiles, load_policy
from agent.rotation import KeyedHeaders


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``header export`` alone."""
    parser.add_argument(
        "--annotation", required=True, metavar="FILE", help="the annotation's value; - is stdin"
    )
    parser.add_argument("--volume", required=True, metavar="NAME", help="which of its volumes: vol-0")
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FILE", help="a file that does not exist yet"
    )


def run_export(
    arguments: argparse.Namespace, volumes: Sequence[CloudVolume], hub: DataHubClient
) -> ExportedHeader:
    """Export the header of one of ``volumes``, as the policy of this VM allows."""
    rules = rules_for(load_policy(hub, PolicyFiles()), volumes)
    clock = SystemClock()
    export = HeaderExport(
        hub=hub,
        headers=KeyedHeaders(hub, SystemRunner(), clock),
        clock=clock,
        finder=DeviceFinder(clock, arguments.device_timeout),
        open_device=DirectDevice,
    )
    for volume in volumes:
        if volume.name == arguments.volume:
            return export.export(volume, rules[volume.name], arguments.output)
    raise Refused(
        "volume-unknown",
        f"the annotation has no volume {arguments.volume[:100]!a}; it has "
        f"{', '.join(volume.name for volume in volumes)}"[:500],
    )
