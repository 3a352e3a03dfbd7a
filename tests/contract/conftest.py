"""Fixtures: one backend of each kind, freshly made; tests of optional interfaces see those that have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.interface import (
    BackendCheck,
    BlockVolumeProvider,
    CapacityReporter,
    VolumeCloner,
    VolumeExpander,
    VolumeFence,
    VolumeHealth,
    VolumeLister,
    VolumeSnapshotter,
)
from tests.contract.backend import Backend
from tests.contract.backends import backends_with

_INTERFACES: dict[str, type] = {
    "expander": VolumeExpander,
    "snapshotter": VolumeSnapshotter,
    "cloner": VolumeCloner,
    "lister": VolumeLister,
    "capacity": CapacityReporter,
    "fence": VolumeFence,
    "health": VolumeHealth,
    "check": BackendCheck,
}


def pytest_configure(config: pytest.Config) -> None:
    """Declare this suite's own marker."""
    config.addinivalue_line(
        "markers", f"needs(interface, ...): optional interfaces, of {', '.join(_INTERFACES)}"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each backend whose provider has the interfaces that the test ``needs``."""
    if "backend_class" in metafunc.fixturenames:
        needed = [name for mark in metafunc.definition.iter_markers("needs") for name in mark.args]
        backends = [
            backend
            for backend in backends_with(*(_INTERFACES[name] for name in needed))
            if not backend.cannot.keys() & {metafunc.function.__name__, metafunc.module.__name__}
        ]
        metafunc.parametrize("backend_class", backends, ids=[b.test_id() for b in backends])


@pytest.fixture
def backend(backend_class: type[Backend], tmp_path: Path) -> Backend:
    """A new, empty backend."""
    return backend_class(tmp_path)


@pytest.fixture
def provider(backend: Backend) -> BlockVolumeProvider:
    """A provider on it."""
    return backend.connect()
