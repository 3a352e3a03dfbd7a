"""A strict fake of Azure Resource Manager behind the Azure provider, over HTTP and through the real SDK."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from azure.core.pipeline.transport import HttpTransport, RequestsTransport

from providers.azure import AzureProvider
from providers.azure.places import Place
from providers.azure.settings import Settings, Timings
from tests.contract.backend import Backend
from tests.fakes.arm.cloud import FOR_EVER, ArmCloud
from tests.fakes.arm.messages import Dropped, Fault, anything
from tests.fakes.arm.rig import FakeCredential
from tests.fakes.arm.server import ArmServer

TIMINGS = Timings(first_pause=0.002, longest_pause=0.02, answer=5, consistency=0.5, snapshot=0.05)


class StepTransport(HttpTransport[Any, Any]):
    """The SDK's usual transport, without TLS, that calls ``before_step`` before each request."""

    def __init__(self, before_step: Callable[[], None]) -> None:
        self._usual = RequestsTransport()
        self._before_step = before_step

    def send(self, request: Any, **options: Any) -> Any:
        self._before_step()
        request.url = request.url.replace("https://", "http://", 1)
        return self._usual.send(request, **options)

    def open(self) -> None:
        self._usual.open()

    def close(self) -> None:
        self._usual.close()

    def __exit__(self, *exception: object) -> None:
        self.close()


@functools.cache
def shared_server() -> ArmServer:
    """One server for all backends of the run."""
    server = ArmServer(None)
    server.start()
    return server


def settings_for(cloud: ArmCloud, endpoint: str, timings: Timings = TIMINGS) -> Settings:
    """A controller of that subscription's group ``disks``."""
    return Settings(
        place=Place(cloud.subscription, "disks"), location="westeurope", endpoint=endpoint, timings=timings
    )


class AzureBackend(Backend):
    """A subscription of its own in the fake."""

    provider_class = AzureProvider

    def __init__(self, directory: Path) -> None:
        del directory
        self.server = shared_server()
        self.cloud = self.server.add(ArmCloud(operation_looks=2))
        self._before_step: Callable[[], None] = lambda: None

    def connect(self) -> AzureProvider:
        return AzureProvider(
            settings_for(self.cloud, self.server.endpoint),
            FakeCredential(),
            lambda: StepTransport(self._step),
        )

    def _step(self) -> None:
        self._before_step()

    def objects(self) -> list[str]:
        assert not self.cloud.violations, self.cloud.violations
        return self.cloud.objects()

    @contextmanager
    def attached(self, handle: str) -> Iterator[None]:
        name = handle.partition("@")[0]
        self.cloud.attach(name, "podvm-1")
        try:
            yield
        finally:
            self.cloud.attach(name, "")

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        self.cloud.faults.append(Fault(anything, before=Dropped, times=FOR_EVER))
        try:
            yield
        finally:
            self.cloud.faults.clear()

    @contextmanager
    def watched(self, before_step: Callable[[], None]) -> Iterator[None]:
        self._before_step = before_step
        try:
            yield
        finally:
            self._before_step = lambda: None
