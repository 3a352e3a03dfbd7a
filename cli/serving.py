"""What every serving role of the command has in common: its options, and how it starts and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from driver.dumps import forbid_dumps
from driver.endpoint import Endpoint, EndpointError
from driver.logs import LEVELS
from driver.observation import Observer
from driver.server import Server, serve_until_signal

_Command = TypeVar("_Command", bound=Callable[..., Any])

_ENDPOINT_OPTION = (
    click.option(
        "--endpoint",
        envvar="CSI_ENDPOINT",
        default="unix:///csi/csi.sock",
        show_default=True,
        show_envvar=True,
        help="Unix socket to serve on.",
    ),
)
_LOGGING_OPTIONS = (
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
        type=click.Choice(LEVELS),
        default="info",
        show_default=True,
        show_envvar=True,
        help="Least level of a log line; debug also logs requests, trace all that the SDKs say; no secrets.",
    ),
)
_METRICS_OPTION = (
    click.option(
        "--metrics-address",
        envvar="CONFIDENTIAL_CSI_METRICS_ADDRESS",
        default="",
        show_envvar=True,
        help="Serve Prometheus metrics at http://HOST:PORT/metrics; :PORT is every address; empty: off.",
    ),
)
_GRACE_OPTION = (
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


def serving_options(command: _Command) -> _Command:
    """Add the options of every serving role."""
    return _with(command, *_ENDPOINT_OPTION, *_LOGGING_OPTIONS, *_METRICS_OPTION, *_GRACE_OPTION)


def logging_options(command: _Command) -> _Command:
    """Add the options of every role that logs."""
    return _with(command, *_LOGGING_OPTIONS)


def _with(command: _Command, *options: Callable[[_Command], _Command]) -> _Command:
    for option in reversed(options):
        command = option(command)
    return command


def serve(endpoint: str, services: Mapping[str, object], grace_period: float, observer: Observer) -> None:
    """Serve until a signal; what stands in the way is told on standard error, with exit code 1."""
    try:
        forbid_dumps()
        serve_until_signal(Server(Endpoint.parse(endpoint), services, observer=observer), grace_period)
    except EndpointError as error:
        raise click.ClickException(str(error)) from error
