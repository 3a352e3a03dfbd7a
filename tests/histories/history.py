"""Histories of calls, faults and replays: how they are drawn, and how one runs on a rig and on the model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from providers.deadline import Deadline
from providers.errors import DeadlineError, OutcomeUnknownError, ProviderError, UnavailableError
from providers.interface import (
    BlockVolumeProvider,
    ContentSource,
    Encryption,
    SourceKind,
    VolumeExpander,
    VolumeRequest,
    VolumeSnapshotter,
)
from tests.fakes.crash import Crash
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
from tests.histories.rig import SECONDS, Fault, Rig

_RETRIED = (UnavailableError, OutcomeUnknownError, DeadlineError)

_VOLUMES = st.sampled_from(["pvc-1", "PVC-1", "n" * 128])
_SNAPSHOTS = st.sampled_from(["snap-1", "../snap 1"])
_SIZES = st.integers(1, 3)
_SOURCES = st.none() | st.one_of(
    st.builds(ContentSource, st.just(SourceKind.VOLUME), _VOLUMES.map(volume_handle)),
    st.builds(ContentSource, st.just(SourceKind.SNAPSHOT), _SNAPSHOTS.map(snapshot_handle)),
)
_ENCRYPTIONS = st.sampled_from([None, Encryption("luks2", "default/key/1")])
_CALLS: st.SearchStrategy[Call] = st.one_of(
    st.builds(Create, _VOLUMES, _SIZES, _ENCRYPTIONS, _SOURCES),
    st.builds(Delete, _VOLUMES),
    st.builds(Expand, _VOLUMES, _SIZES),
    st.builds(TakeSnapshot, _SNAPSHOTS, _VOLUMES),
    st.builds(DeleteSnapshot, _SNAPSHOTS),
)
_WRITES = st.builds(Write, _VOLUMES, st.integers(0, 3), st.integers(1, 2**64))


@dataclass(frozen=True)
class Step(Generic[Fault]):
    """An operation; a call meets each of ``faults`` in turn before one gets through.

    An ``abandoned`` one is not replayed until all else has been done.
    """

    operation: Operation
    faults: tuple[Fault, ...] = ()
    abandoned: bool = False


Steps = tuple[Step[Any], ...]


def histories(
    faults: st.SearchStrategy[Fault],
    first_faults: st.SearchStrategy[Fault],
    most_faults: int,
    most_steps: int,
) -> st.SearchStrategy[Steps]:
    """Histories that begin with a blank creation, which meets one to three faults.

    Args:
        faults: those of other calls.
        first_faults: those that come before a creation is over, so that each history meets one.
        most_faults: that another call meets before it gets through.
        most_steps: after the first one.
    """
    some_faults = st.lists(faults, max_size=most_faults).map(tuple)
    steps = st.one_of(
        st.builds(Step, _CALLS, some_faults, st.booleans()),
        st.builds(Step, _CALLS, some_faults, st.booleans()),
        st.builds(Step, _WRITES),
    )
    first = st.builds(
        Step,
        st.builds(Create, _VOLUMES, _SIZES, _ENCRYPTIONS, st.none()),
        st.lists(first_faults, min_size=1, max_size=3).map(tuple),
        st.booleans(),
    )
    return st.tuples(first, st.lists(steps, min_size=4, max_size=most_steps)).map(
        lambda two: (two[0], *two[1])
    )


class History(Generic[Fault]):
    """Runs steps on a rig and on the model."""

    def __init__(self, rig: Rig[Fault]) -> None:
        self.faults = 0
        self._rig = rig
        self._model = Model()
        self._unfinished: list[Call] = []

    def run(self, steps: tuple[Step[Fault], ...]) -> None:
        """All of the steps, then everything that was left unfinished."""
        for step in steps:
            if isinstance(step.operation, Write):
                self._write(step.operation)
            else:
                self._run_call(step.operation, step)
        for call in self._unfinished:
            self._finish(call)
        assert self._rig.stored() == self._model
        self._rig.check_end(self._model)

    def _write(self, operation: Write) -> None:
        written = volume_handle(operation.name)
        begun = (call.source for call in self._unfinished if isinstance(call, Create))
        if self._rig.copies_late and any(source and source.handle == written for source in begun):
            return
        if written in self._model.volumes:
            self._rig.mark(written, operation.block, operation.mark)
        self._model = self._model.after(operation)

    def _run_call(self, call: Call, step: Step[Fault]) -> None:
        for fault in step.faults:
            error = self._call(call, fault)
            if not self._rig.has_struck():
                self._settle(call, error)
                return
            self.faults += 1
            self._adopt(call, error)
            self._rig.pause_before(call)
        if step.faults and step.abandoned and self._rig.can_be_left(step.faults):
            self._unfinished.append(call)
        else:
            self._finish(call)

    def _adopt(self, call: Call, error: type[ProviderError] | None) -> None:
        """A call that met a fault has happened or has not; if it said so, then that is true."""
        done, right_error = expected(self._model, call)
        assert error is right_error or _is_retried(error), error
        seen = self._rig.stored()
        assert seen in ((done,) if error is None else (self._model, done))
        self._model = seen

    def _finish(self, call: Call) -> None:
        self._rig.pause_before(call)
        self._settle(call, self._call(call, None))

    def _settle(self, call: Call, error: type[ProviderError] | None) -> None:
        """``error`` is how a call ended that met no fault: it, or a repetition, ends as the model says."""
        self._model, right_error = expected(self._model, call)
        for _ in range(self._rig.repetitions):
            if not _is_retried(error):
                break
            self._rig.pause_before(call)
            error = self._call(call, None)
        assert error is right_error
        assert self._rig.stored() == self._model

    def _call(self, call: Call, fault: Fault | None) -> type[ProviderError] | None:
        try:
            with self._rig.connected(fault) as provider:
                self._make(call, provider)
        except Crash:
            return UnavailableError
        except ProviderError as error:
            return type(error)
        return None

    def _make(self, call: Call, provider: BlockVolumeProvider) -> None:
        placed, bare, unit = self._rig.placed, self._rig.bare, self._rig.unit_bytes
        deadline = Deadline.after(SECONDS)
        match call:
            case Create(name, size, encryption, source):
                source = None if source is None else replace(source, handle=placed(source.handle))
                request = VolumeRequest(name, size * unit, encryption, "ext4", source=source)
                assert bare(provider.create_volume(request, deadline).handle) == volume_handle(name)
            case Delete(name):
                provider.delete_volume(placed(volume_handle(name)), deadline)
            case Expand(name, size):
                assert isinstance(provider, VolumeExpander)
                handle = placed(volume_handle(name))
                assert provider.expand_volume(handle, size * unit, deadline) >= size * unit
            case TakeSnapshot(name, volume_name):
                assert isinstance(provider, VolumeSnapshotter)
                snapshot = provider.create_snapshot(name, placed(volume_handle(volume_name)), deadline)
                assert bare(snapshot.handle) == snapshot_handle(name)
            case DeleteSnapshot(name):
                assert isinstance(provider, VolumeSnapshotter)
                provider.delete_snapshot(placed(snapshot_handle(name)), deadline)


def _is_retried(error: type[ProviderError] | None) -> bool:
    return error is not None and issubclass(error, _RETRIED)


def run_histories(strategy: st.SearchStrategy[Steps], new_rig: Callable[[Path], Rig[Any]], count: int) -> int:
    """Run ``count`` histories, each in a rig (and its directory) of its own.

    Returns:
        The number of different ones with a fault.
    """
    faults: dict[Steps, int] = {}

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(steps: Steps) -> None:
        with tempfile.TemporaryDirectory() as directory:
            history = History(new_rig(Path(directory)))
            history.run(steps)
            faults[steps] = history.faults

    run()
    struck = [number for number in faults.values() if number]
    print(f"{len(faults)} different histories, {len(struck)} with a fault, {sum(struck)} faults")
    return len(struck)
