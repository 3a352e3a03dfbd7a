"""Fixtures for tests that need a guest. Every test in this folder is marked ``guest``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.hypervisor import Hypervisor
from tests.lab.podvm import PodVm

_names = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.guest)


@pytest.fixture(scope="session")
def hypervisor() -> Iterator[Hypervisor]:
    """One libvirtd for the run."""
    with Hypervisor() as running:
        yield running


@pytest.fixture
def boot(hypervisor: Hypervisor) -> Iterator[Callable[[], PodVm]]:
    """Boots a new guest at each call (about 5 s); they are destroyed after the test."""
    booted: list[PodVm] = []

    def boot_one() -> PodVm:
        booted.append(hypervisor.boot(f"vm-{next(_names)}"))
        return booted[-1]

    yield boot_one
    for vm in booted:
        vm.destroy()


@pytest.fixture(scope="module")
def vm(hypervisor: Hypervisor) -> Iterator[PodVm]:
    """One guest for all tests of a module that leave it as they found it."""
    running = hypervisor.boot(f"vm-{next(_names)}")
    yield running
    running.destroy()


@pytest.fixture
def make_disk(tmp_path: Path) -> Callable[..., Path]:
    """Makes sparse raw images: ``make_disk("a", mib=64)``."""

    def make(name: str, *, mib: int = 64) -> Path:
        image = tmp_path / f"{name}.raw"
        with image.open("xb") as file:
            file.truncate(mib * 2**20)
        return image

    return make
