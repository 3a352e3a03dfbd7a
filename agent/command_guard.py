"""``confidential-csi-agent guard``: stands on the data hub's socket."""

from __future__ import annotations

import argparse
import asyncio
import logging
from functools import partial
from typing import Final

from agent.block_device import DirectDevice
from agent.cdh import DEFAULT_SOCKET, DataHubClient
from agent.cdh_guard import GivenDisks, Guard
from agent.clock import SystemClock
from agent.command_proxy import serve
from agent.commands import SystemRunner
from agent.policy_source import PolicyFiles, load_policy
from agent.proxy import Address, Proxy
from agent.proxy_calls import Workers
from agent.ttrpc_frame import TtrpcError
from agent.volumes import Volumes

DEFAULT_UPSTREAM: Final = "/run/confidential-csi-agent/cdh.sock"
SWEEP_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the guard alone."""
    parser.add_argument(
        "--listen",
        default=DEFAULT_SOCKET,
        metavar="SOCKET",
        help="where callers expect the hub (%(default)s)",
    )
    parser.add_argument(
        "--upstream",
        default=DEFAULT_UPSTREAM,
        metavar="SOCKET",
        help="where the hub listens, by 'socket' in its configuration (%(default)s)",
    )


def run_guard(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT. Volumes stay mounted: containers use them."""
    hub = DataHubClient(arguments.upstream, arguments.cdh_timeout)
    policy = partial(load_policy, hub, PolicyFiles())
    clock = SystemClock()
    volumes = Volumes(
        hub=hub,
        runner=SystemRunner(),
        clock=clock,
        finder=GivenDisks(clock, arguments.device_timeout),
        open_device=DirectDevice,
    )
    workers = Workers()
    guard = Guard(volumes, policy, workers)
    proxy = Proxy(Address(path=arguments.listen), Address(path=arguments.upstream), guard.takeovers())
    serve(proxy, beside=partial(_sweep_for_ever, guard, workers))


async def _sweep_for_ever(guard: Guard, workers: Workers) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            await workers.run(guard.sweep)
        except TtrpcError as error:
            _log.warning("leftovers could not be looked for: %s", error.message)
