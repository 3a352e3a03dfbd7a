"""Metrics for Prometheus (``docs/metrics.md``): counted here, served over HTTP by its client library.

Imported only where ``--metrics-address`` is given. Labels have few values: methods, API operations, codes,
never an id, a name or a path.
"""

from __future__ import annotations

import math
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import cast
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

from driver.observation import CheckResult, Observer, VolumeCount, VolumeKind
from providers.observation import Outcome

_PREFIX = "confidential_csi_"
_RPC_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_CALL_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_WAIT_SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BATCH_SIZES = (1, 2, 5, 10, 25, 50, 100, 200, 500)

#: Alerts ask whether these grew (deploy/monitoring), and what was never seen as 0 does not grow to 1.
_CODES_OF_ALERTS = ("INTERNAL", "RESOURCE_EXHAUSTED")

#: Error codes are the backend's: a bound, should it ever make them up.
_MOST_CODES = 60
OTHER = "other"

_EVERY_ADDRESS = ("::", "0.0.0.0")  # noqa: S104 - what an empty host asks for

_DONE = "done"
_FAILED = "failed"


class Scrape(WSGIRequestHandler):
    """One connection to the metrics. Whoever says nothing is hung up on, or idle threads would pile up."""

    timeout = 10.0
    """Seconds."""

    def handle(self) -> None:
        with suppress(OSError):  # it timed out, or went away: nobody's business
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        del format, args  # every scrape would be a line, in a form of its own


class CannotListen(Exception):
    """The address can't be listened on."""


class Metrics(Observer):
    """What both roles have; in a registry of its own."""

    def __init__(self, role: str, provider: str = "") -> None:
        cast(Callable[[], None], disable_created_metrics)()  # a time for each series, which nobody uses
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        about = {"version": version("confidential-csi"), "python": platform.python_version()}
        text = "What is running; the value is always 1."
        info = Info(f"{_PREFIX}build", text, registry=self.registry)
        info.info({**about, "role": role, "provider": provider})
        self._rpcs = self._histogram(
            "rpc_duration_seconds",
            "Time from a CSI call's arrival to its answer; the count is the number of calls.",
            ("method", "code"),
            _RPC_SECONDS,
        )
        self._rpcs_in_flight = self._gauge("rpcs_in_flight", "CSI calls in progress.", ("method",))

    def serve(self, host: str, port: int) -> int:
        """Serve at ``http://host:port/metrics`` in the background; the port, which may be given as 0.

        Without a host at every address: of IPv6, and so of IPv4, too, or of IPv4 where there is no other.

        Raises:
            CannotListen: it can't.
        """
        hosts = (host,) if host else _EVERY_ADDRESS
        for one in hosts:
            try:
                server, _ = start_http_server(port, one, self.registry)
            except OSError as error:
                if one != hosts[-1]:
                    continue
                raise CannotListen(f"can't listen on {host}:{port}: {error.strerror or error}") from error
            server.RequestHandlerClass = Scrape
            return int(server.server_port)
        raise AssertionError("unreachable: there is a host")

    def rpcs_offered(self, methods: Iterable[str]) -> None:
        for method in methods:
            for code in _CODES_OF_ALERTS:
                self._rpcs.labels(method, code)

    def rpc_began(self, method: str) -> None:
        self._rpcs_in_flight.labels(method).inc()

    def rpc_ended(self, method: str, code: str, seconds: float) -> None:
        self._rpcs_in_flight.labels(method).dec()
        self._rpcs.labels(method, code).observe(seconds)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(_PREFIX + name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(_PREFIX + name, text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> Histogram:
        return Histogram(_PREFIX + name, text, labels, buckets=buckets, registry=self.registry)


class NodeMetrics(Metrics):
    """Those of the node plugin; ``count_records`` tells how many records there are whenever it is asked."""

    def __init__(self, count_records: Callable[[], int]) -> None:
        super().__init__("node")
        self._writes = self._counter(
            "mountinfo_writes_total", "Records (mountInfo.json) that publishes wrote.", ("result",)
        )
        self._removals = self._counter(
            "mountinfo_removals_total", "Records (mountInfo.json) that unpublishes removed.", ("result",)
        )
        for counter in (self._writes, self._removals):
            for result in (_DONE, _FAILED):
                counter.labels(result)
        records = self._gauge("mountinfo_records", "Records (mountInfo.json) on this node.")
        records.set_function(lambda: _count_or_nothing(count_records))

    def record_written(self, *, done: bool) -> None:
        self._writes.labels(_DONE if done else _FAILED).inc()

    def record_removed(self, *, done: bool) -> None:
        self._removals.labels(_DONE if done else _FAILED).inc()


class ControllerMetrics(Metrics):
    """Those of the controller of ``provider``, and of the calls that it makes."""

    def __init__(self, provider: str) -> None:
        super().__init__("controller", provider)
        self._provider = provider
        self._codes: set[str] = set()
        self._mutex = threading.Lock()
        of_call = ("provider", "operation")
        self._calls = self._histogram(
            "cloud_call_duration_seconds",
            "Time that calls of the cloud's API took; the count is the number of calls.",
            (*of_call, "code"),
            _CALL_SECONDS,
        )
        self._calls_in_flight = self._gauge("cloud_calls_in_flight", "Calls of the cloud's API now.", of_call)
        self._throttled = self._counter(
            "cloud_calls_throttled_total", "Calls that the cloud refused as too many.", of_call
        )
        self._repeated = self._counter(
            "cloud_call_retries_total", "Calls that were sent again after they failed.", of_call
        )
        self._batches = self._histogram(
            "cloud_batch_size",
            "Objects that one shared call asked about, in place of a call for each.",
            ("provider", "question"),
            _BATCH_SIZES,
        )
        self._waits = self._histogram(
            "wait_duration_seconds",
            "Time that callers waited until the cloud had done something, or took another call.",
            ("provider", "what"),
            _WAIT_SECONDS,
        )
        self._set_up_background()

    def _set_up_background(self) -> None:
        self._ready = self._gauge("ready", "1 while Probe answers that the controller is ready, else 0.")
        self._ready.set(1)
        self._checks = self._counter(
            "backend_checks_total",
            "Background checks whether the cloud serves this process.",
            ("provider", "result"),
        )
        for result in CheckResult:
            self._checks.labels(self._provider, result.value)
        self._last_check = self._gauge(
            "backend_check_success_timestamp_seconds",
            "When a background check last found no fault (at first: when the process started).",
        )
        self._last_check.set(time.time())
        by_kind = ("state", "encryption")
        self._volumes = self._gauge("volumes", "Volumes that the provider lists, now and then.", by_kind)
        self._volume_bytes = self._gauge("volumes_size_bytes", "Their sizes together.", by_kind)
        self._abnormal = self._gauge(
            "volumes_abnormal", "Volumes that the cloud says are not well; 0 where it can't tell."
        )
        self._listings = self._counter(
            "volume_listings_total", "Listings from which volumes are counted.", ("result",)
        )
        for one in (_DONE, _FAILED):
            self._listings.labels(one)

    def call_began(self, operation: str) -> None:
        self._calls_in_flight.labels(self._provider, operation).inc()
        # From the first call on, so that the first throttled or repeated one is an increase.
        self._throttled.labels(self._provider, operation)
        self._repeated.labels(self._provider, operation)

    def call_ended(self, operation: str, outcome: Outcome, seconds: float) -> None:
        self._calls_in_flight.labels(self._provider, operation).dec()
        self._calls.labels(self._provider, operation, self._known(outcome.code)).observe(seconds)
        if outcome.throttled:
            self._throttled.labels(self._provider, operation).inc()

    def call_repeated(self, operation: str) -> None:
        self._repeated.labels(self._provider, operation).inc()

    def asked_together(self, question: str, size: int) -> None:
        self._batches.labels(self._provider, question).observe(size)

    def waited(self, what: str, seconds: float) -> None:
        self._waits.labels(self._provider, what).observe(seconds)

    def backend_checked(self, result: CheckResult, *, ready: bool) -> None:
        self._checks.labels(self._provider, result.value).inc()
        self._ready.set(int(ready))
        if result is CheckResult.SERVED:
            self._last_check.set(time.time())

    def volumes_counted(self, counts: Mapping[VolumeKind, VolumeCount], abnormal: int) -> None:
        self._listings.labels(_DONE).inc()
        for kind in VolumeKind.all():
            count = counts.get(kind, VolumeCount())
            self._volumes.labels(kind.state, kind.encryption).set(count.volumes)
            self._volume_bytes.labels(kind.state, kind.encryption).set(count.size_bytes)
        self._abnormal.set(abnormal)

    def volumes_not_counted(self) -> None:
        self._listings.labels(_FAILED).inc()

    def _known(self, code: str) -> str:
        with self._mutex:
            if len(self._codes) < _MOST_CODES:
                self._codes.add(code)
            return code if code in self._codes else OTHER


def _count_or_nothing(count: Callable[[], int]) -> float:
    """What can't be counted now must not keep all other figures from being told."""
    try:
        return count()
    except OSError:
        return math.nan
