"""Fixtures of the driver's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.memory_provider import MemoryCloud, MemoryProvider
from tests.unit.driver.node_support import Worker, worker
from tests.unit.driver.rig import Client, controller


@pytest.fixture
def cloud() -> MemoryCloud:
    """A cloud of the test's own."""
    return MemoryCloud()


@pytest.fixture
def client(cloud: MemoryCloud) -> Iterator[Client]:
    """A client of a controller over that cloud, through a real socket."""
    with controller(MemoryProvider(cloud)) as served:
        yield served


@pytest.fixture
def node() -> Iterator[Worker]:
    """A node's folders."""
    with worker() as made:
        yield made
