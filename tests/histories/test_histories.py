"""A thousand histories of calls, crashes and replays; after each, the directory equals the model.

A crash comes before any system call that changes something; the next call is made by a provider that knows
nothing of the one that crashed. Real processes and a real SIGKILL are in ``tests/contract/test_crashes.py``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from providers.interface import ContentSource, Encryption, SourceKind
from tests.contract.local_backend import LocalBackend
from tests.histories.directory import BLOCKS, Crash, files, files_of, look, run, write
from tests.histories.model import (
    Call,
    Create,
    Delete,
    DeleteSnapshot,
    Expand,
    Model,
    Operation,
    TakeSnapshot,
    Write,
    expected,
    snapshot_handle,
    volume_handle,
)

HISTORIES_WITH_A_CRASH = 1000

VOLUMES = st.sampled_from(["pvc-1", "PVC-1", "n" * 128])
SNAPSHOTS = st.sampled_from(["snap-1", "../snap 1"])
SIZES = st.integers(1, 3)
SOURCES = st.none() | st.one_of(
    st.builds(ContentSource, st.just(SourceKind.VOLUME), VOLUMES.map(volume_handle)),
    st.builds(ContentSource, st.just(SourceKind.SNAPSHOT), SNAPSHOTS.map(snapshot_handle)),
)
ENCRYPTIONS = st.sampled_from([None, Encryption("luks2", "default/key/1")])
CALLS: st.SearchStrategy[Call] = st.one_of(
    st.builds(Create, VOLUMES, SIZES, ENCRYPTIONS, SOURCES),
    st.builds(Delete, VOLUMES),
    st.builds(Expand, VOLUMES, SIZES),
    st.builds(TakeSnapshot, SNAPSHOTS, VOLUMES),
    st.builds(DeleteSnapshot, SNAPSHOTS),
)
WRITES = st.builds(Write, VOLUMES, st.integers(0, BLOCKS - 1), st.integers(1, 2**64))


@dataclass(frozen=True)
class Step:
    """An operation of a history.

    A call crashes at each of ``crashes`` in turn, a number of system calls, before one gets through; an
    ``abandoned`` one is not replayed until all else has been done.
    """

    operation: Operation
    crashes: tuple[int, ...] = ()
    abandoned: bool = False


CRASHES = st.lists(st.integers(0, 16), max_size=3).map(tuple)
STEPS = st.one_of(
    st.builds(Step, CALLS, CRASHES, st.booleans()),
    st.builds(Step, CALLS, CRASHES, st.booleans()),
    st.builds(Step, WRITES),
)
# A blank create has more steps than 8, so each history has a crash; most have several.
FIRST_STEPS = st.builds(
    Step,
    st.builds(Create, VOLUMES, SIZES, ENCRYPTIONS, st.none()),
    st.lists(st.integers(0, 8), min_size=1, max_size=3).map(tuple),
    st.booleans(),
)
HISTORIES = st.tuples(FIRST_STEPS, st.lists(STEPS, min_size=4, max_size=14)).map(
    lambda two: (two[0], *two[1])
)


class History:
    """Runs steps on a directory and on the model."""

    def __init__(self, backend: LocalBackend) -> None:
        self.crashes = 0
        self._backend = backend
        self._model = Model()
        self._unfinished: list[Call] = []

    def run(self, steps: tuple[Step, ...]) -> None:
        """All of the steps, then everything that was left unfinished."""
        self._backend.connect()
        for step in steps:
            if isinstance(step.operation, Write):
                write(self._backend, step.operation)
                self._model = self._model.after(step.operation)
            else:
                self._run_call(step.operation, step.crashes, step.abandoned)
        for call in self._unfinished:
            self._finish(call)
        assert look(self._backend) == self._model
        assert files(self._backend) == files_of(self._model)

    def _run_call(self, call: Call, crashes: tuple[int, ...], abandoned: bool) -> None:
        for crash_at in crashes:
            try:
                error = run(self._backend, call, crash_at)
            except Crash:
                self.crashes += 1
                self._adopt_what_the_crash_left(call)
            else:
                self._model, right_error = expected(self._model, call)
                assert error is right_error
                return
        if crashes and abandoned:
            self._unfinished.append(call)
        else:
            self._finish(call)

    def _adopt_what_the_crash_left(self, call: Call) -> None:
        """A crashed call has happened or has not: there is nothing between."""
        done, _ = expected(self._model, call)
        seen = look(self._backend)
        assert seen in (self._model, done)
        self._model = seen

    def _finish(self, call: Call) -> None:
        self._model, right_error = expected(self._model, call)
        assert run(self._backend, call, None) is right_error
        assert look(self._backend) == self._model


@contextmanager
def instant_fsync() -> Iterator[None]:
    """A crash of a process loses nothing that was written, so waiting for the disk shows nothing here."""
    with mock.patch("os.fsync", new=lambda _: None), mock.patch("os.fdatasync", new=lambda _: None):
        yield


def test_a_thousand_histories_end_as_the_model_says(tmp_path: Path) -> None:
    """Field cases A1, D3."""
    crashes: dict[tuple[Step, ...], int] = {}

    @settings(
        max_examples=1200,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(HISTORIES)
    def histories(steps: tuple[Step, ...]) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
            history = History(LocalBackend(Path(directory)))
            history.run(steps)
            crashes[steps] = history.crashes

    with instant_fsync():
        histories()

    crashed = [count for count in crashes.values() if count]
    print(f"{len(crashes)} different histories, {len(crashed)} with a crash, {sum(crashed)} crashes")
    assert len(crashed) >= HISTORIES_WITH_A_CRASH
