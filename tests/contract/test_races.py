"""Calls on one object at one time, from threads and from processes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest

from providers.errors import OutcomeUnknownError, UnavailableError
from providers.interface import BlockVolumeProvider, Volume
from tests.contract.backend import Backend
from tests.contract.calls import create, expander, of_volume, snapshotter, soon, steps
from tests.contract.processes import together

ROUNDS = 5


def test_two_threads_creating_one_name_get_one_volume(backend: Backend) -> None:
    """Field case A1."""
    provider = backend.connect()
    start = Barrier(2)

    def race(name: str) -> Volume:
        start.wait()
        return create(provider, name)

    with backend.watched(lambda: time.sleep(0.002)), ThreadPoolExecutor(2) as threads:
        for round_ in range(ROUNDS):
            one, two = threads.map(race, [f"pvc-{round_}"] * 2)
            assert one == two
            assert len(backend.objects()) == round_ + 1


def test_two_processes_creating_one_name_get_one_volume(backend: Backend) -> None:
    """Field case A1."""
    for round_ in range(ROUNDS):
        call = partial(create, name=f"pvc-{round_}")
        together(backend, call, call)
        assert len(backend.objects()) == round_ + 1


@pytest.mark.needs("cloner")
def test_two_processes_cloning_to_one_name_get_one_volume(backend: Backend) -> None:
    """Field case A1."""
    source = of_volume(create(backend.connect(), "source"))
    call = partial(create, name="clone", source=source)
    together(backend, call, call)
    assert len(backend.objects()) == 2


def _snapshot(provider: BlockVolumeProvider, name: str, source: str) -> None:
    snapshotter(provider).create_snapshot(name, source, soon())


@pytest.mark.needs("snapshotter")
def test_two_processes_taking_one_snapshot_get_one(backend: Backend) -> None:
    """Field case E2."""
    source = create(backend.connect()).handle
    for round_ in range(ROUNDS):
        call = partial(_snapshot, name=f"snap-{round_}", source=source)
        together(backend, call, call)
        assert len(backend.objects()) == round_ + 2


def _expand(provider: BlockVolumeProvider, handle: str, extra_steps: int) -> None:
    size = steps(provider, extra_steps)
    deadline = soon()
    while True:
        try:
            assert expander(provider).expand_volume(handle, size, deadline) >= size
        except (UnavailableError, OutcomeUnknownError):
            # Some clouds let one expansion end before the next may begin: "call again".
            assert deadline.remaining()
            time.sleep(0.05)
        else:
            return


@pytest.mark.needs("expander")
def test_expansions_at_one_time_end_at_the_largest(backend: Backend) -> None:
    provider = backend.connect()
    for round_ in range(ROUNDS):
        handle = create(provider, f"pvc-{round_}").handle
        together(backend, *(partial(_expand, handle=handle, extra_steps=extra) for extra in (7, 2, 5)))
        assert provider.get_volume_info(handle, soon()).size_bytes == steps(provider, 7)


def _create_or_delete(provider: BlockVolumeProvider, name: str, delete: bool) -> None:
    if delete:
        provider.delete_volume(provider.handle_for_name(name), soon())
    else:
        create(provider, name)


def test_deletions_at_one_time_all_succeed(backend: Backend) -> None:
    """Field case A6."""
    call = partial(_create_or_delete, name="pvc-1", delete=True)
    for _ in range(ROUNDS):
        create(backend.connect(), "pvc-1")
        together(backend, call, call)
        assert backend.objects() == []


def test_creations_leave_each_others_unfinished_work_alone(backend: Backend) -> None:
    together(backend, *(partial(_create_or_delete, name=f"pvc-{i}", delete=False) for i in range(4)))
    assert len(backend.objects()) == 4
    together(backend, *(partial(_create_or_delete, name=f"pvc-{i}", delete=i % 2 == 0) for i in range(8)))
    assert len(backend.objects()) == 4
