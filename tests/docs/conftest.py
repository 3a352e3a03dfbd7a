"""What the tests of the pages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.broker import Broker, running_broker


@pytest.fixture(scope="session")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def broker(_broker: Broker) -> Broker:
    """A key broker that nobody has asked yet."""
    _broker.requests.clear()
    return _broker
