"""``confidential-csi-agent proxy``: stands in front of the forwarder, or between it and kata-agent."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from agent.block_device import DirectDevice
from agent.cdh import DataHub
from agent.clock import SystemClock
from agent.commands import SystemRunner
from agent.devices import DeviceFinder
from agent.errors import Unavailable
from agent.growth import Growth
from agent.holds import Holds
from agent.policy_source import PolicyFiles, load_policy
from agent.proxy import Address, Proxy
from agent.proxy_calls import Workers
from agent.proxy_containers import Containers
from agent.proxy_tls import DEFAULT_CONFIG, server_context
from agent.proxy_volumes import VolumeCalls
from agent.volume_lock import STATE_ROOT
from agent.volumes import Volumes

#: Seconds to wait for the disk of a volume that is mounted: it is there, or something is wrong.
_GROWTH_DISK_SECONDS: Final = 5.0

FRONT: Final = "front"
MIDDLE: Final = "middle"

DEFAULT_LISTEN: Final = {
    FRONT: Address(host="0.0.0.0", port=15150),  # noqa: S104  As the forwarder does: the worker connects here.
    MIDDLE: Address(path="/run/confidential-csi-agent/kata-agent.sock"),
}
DEFAULT_UPSTREAM: Final = {
    FRONT: Address(host="127.0.0.1", port=15151),
    MIDDLE: Address(path="/run/kata-containers/agent.sock"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the proxy alone."""
    parser.add_argument(
        "--mode",
        required=True,
        choices=(FRONT, MIDDLE),
        help="front (mode A): own the forwarder's TLS listener; middle (mode B): between it and kata-agent",
    )
    parser.add_argument(
        "--listen",
        type=address,
        metavar="ADDRESS",
        help=f"a socket's path or host:port ({_of_each_mode(DEFAULT_LISTEN)})",
    )
    parser.add_argument(
        "--upstream",
        type=address,
        metavar="ADDRESS",
        help=f"where to forward to ({_of_each_mode(DEFAULT_UPSTREAM)})",
    )
    parser.add_argument(
        "--tls-config",
        type=Path,
        default=DEFAULT_CONFIG,
        metavar="FILE",
        help="the forwarder's configuration, in mode front (%(default)s)",
    )


def _of_each_mode(defaults: Mapping[str, Address]) -> str:
    return "; ".join(f"{mode}: {default}" for mode, default in defaults.items())


def run_proxy(arguments: argparse.Namespace, hub: DataHub, volumes: Volumes) -> None:
    """Serve until SIGTERM or SIGINT. Volumes stay mounted: containers use them."""
    mode: str = arguments.mode
    workers = Workers()
    holds = Holds(STATE_ROOT / "containers.json")
    clock = SystemClock()
    growth = Growth(
        hub=hub,
        runner=SystemRunner(),
        clock=clock,
        finder=DeviceFinder(clock, _GROWTH_DISK_SECONDS),
        open_device=DirectDevice,
    )
    containers = Containers(volumes, holds, partial(load_policy, hub, PolicyFiles()), workers)
    takeovers = {**containers.takeovers(), **VolumeCalls(holds, growth, workers).takeovers()}
    proxy = Proxy(
        arguments.listen or DEFAULT_LISTEN[mode],
        arguments.upstream or DEFAULT_UPSTREAM[mode],
        takeovers,
        tls=server_context(arguments.tls_config) if mode == FRONT else None,
    )
    serve(proxy)


def serve(proxy: Proxy, *, beside: Callable[[], Coroutine[None, None, None]] | None = None) -> None:
    """Run a proxy until SIGTERM or SIGINT, and ``beside`` with it.

    Raises:
        Unavailable: it can't listen (``listen-failed``).
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    asyncio.run(_serve(proxy, beside))


async def _serve(proxy: Proxy, beside: Callable[[], Coroutine[None, None, None]] | None) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        bound = await proxy.start()
    except OSError as error:
        raise Unavailable(
            "listen-failed", f"cannot listen on {proxy.listen}: {error.strerror or error}"
        ) from None
    logging.getLogger(__name__).info("listening on %s", bound)
    running = asyncio.create_task(beside()) if beside else None
    await stopped.wait()
    if running:
        running.cancel()
    await proxy.stop()


def address(text: str) -> Address:
    """An absolute path, or ``host:port``; raises ArgumentTypeError."""
    if text.startswith("/"):
        return Address(path=text)
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is neither an absolute path nor host:port")
    return Address(host=host, port=int(port))
