"""Switching metrics on, for the roles that serve."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from driver.observation import Observer
from providers.observation import observe

_LOG = logging.getLogger(__name__)


def controller_observer(address: str, provider: str) -> Observer:
    """Who counts what a controller of ``provider`` does; nobody if ``address`` is empty."""
    return _started(address, lambda metrics: metrics.ControllerMetrics(provider))


def node_observer(address: str, count_records: Callable[[], int]) -> Observer:
    """Who counts what a node plugin does; nobody if ``address`` is empty."""
    return _started(address, lambda metrics: metrics.NodeMetrics(count_records))


def _started(address: str, make: Callable[[Any], Any]) -> Observer:
    if not address:
        return Observer()
    host, port = _parsed(address)
    # Only here: a node without metrics has no room for an HTTP server in its memory.
    module = import_module("driver.metrics")
    made = make(module)
    try:
        bound = made.serve(host, port)
    except module.CannotListen as error:
        raise click.ClickException(f"--metrics-address: {error}") from error
    shown = f"{address.rpartition(':')[0]}:{bound}"
    _LOG.info("serving metrics", extra={"fields": {"address": shown}})
    observer: Observer = made
    observe(observer)
    return observer


def _parsed(address: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    if not separator or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise click.ClickException(
            f"--metrics-address {address[:80]!r} is not HOST:PORT; expected :9810 or 127.0.0.1:9810"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)
