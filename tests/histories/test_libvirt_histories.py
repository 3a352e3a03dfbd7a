"""Histories of calls, faults and replays on libvirt; after each, the pool holds what the model says.

In memory a fault comes at any call of libvirt, before, half-way through, or after it was done; it ends the
process or the connection. On a real libvirtd a few more, at the calls that change something.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from providers.deadline import Deadline
from providers.errors import DeadlineError, OutcomeUnknownError, ProviderError, UnavailableError
from providers.interface import ContentSource, Encryption, SourceKind, VolumeRequest
from providers.libvirt import LibvirtProvider
from tests.contract.libvirt_backend import POOL
from tests.fakes.libvirt_host.host import Crash, Fault
from tests.histories.libvirt_hosts import FakeHost, LibvirtHost, RealHost
from tests.histories.model import (
    MIB,
    Call,
    Create,
    Delete,
    DeleteSnapshot,
    Expand,
    Model,
    ModelSnapshot,
    ModelVolume,
    Operation,
    TakeSnapshot,
    Write,
    expected,
    snapshot_handle,
    volume_handle,
)

HISTORIES_WITH_A_FAULT = 500
REAL_HISTORIES = 20
_CALLS_OF_A_CREATE = 35  # at least so many, of a blank volume: each history meets a fault
_RETRIED = (UnavailableError, OutcomeUnknownError, DeadlineError)

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
WRITES = st.builds(Write, VOLUMES, st.integers(0, 3), st.integers(1, 2**64))


@dataclass(frozen=True)
class Step:
    """An operation; a call meets each of ``faults`` in turn before one gets through.

    An ``abandoned`` one is not replayed until all else has been done.
    """

    operation: Operation
    faults: tuple[Fault, ...] = ()
    abandoned: bool = False


def _faults(calls: int, moments: tuple[str, ...]) -> st.SearchStrategy[Fault]:
    return st.builds(Fault, st.integers(0, calls - 1), st.sampled_from(moments), st.booleans())


def _histories(calls: int, moments: tuple[str, ...]) -> st.SearchStrategy[tuple[Step, ...]]:
    """Histories with faults among the first ``calls`` calls of libvirt that a call makes."""
    faults = st.lists(_faults(calls, moments), max_size=3).map(tuple)
    steps = st.one_of(
        st.builds(Step, CALLS, faults, st.booleans()),
        st.builds(Step, CALLS, faults, st.booleans()),
        st.builds(Step, WRITES),
    )
    first = st.builds(
        Step,
        st.builds(Create, VOLUMES, SIZES, ENCRYPTIONS, st.none()),
        st.lists(_faults(min(calls, _CALLS_OF_A_CREATE), moments), min_size=1, max_size=3).map(tuple),
        st.booleans(),
    )
    return st.tuples(first, st.lists(steps, min_size=4, max_size=12)).map(lambda two: (two[0], *two[1]))


class History:
    """Runs steps on a host and on the model."""

    def __init__(self, host: LibvirtHost) -> None:
        self.faults = 0
        self._host = host
        self._model = Model()
        self._unfinished: list[Call] = []

    def run(self, steps: tuple[Step, ...]) -> None:
        """All of the steps, then everything that was left unfinished."""
        for step in steps:
            if isinstance(step.operation, Write):
                self._write(step.operation)
            else:
                self._run_call(step)
        for call in self._unfinished:
            self._finish(call)
        assert self._look() == self._model
        assert sorted(name.partition("~")[0] for name in self._host.names()) == sorted(
            2 * [*self._model.volumes, *self._model.snapshots]
        )

    def _run_call(self, step: Step) -> None:
        call = step.operation
        assert not isinstance(call, Write)
        for fault in step.faults:
            try:
                error = self._call(call, fault)
            except Crash:
                error = UnavailableError
            if not self._host.has_struck():
                self._model, right_error = expected(self._model, call)
                assert error is right_error
                return
            self.faults += 1
            self._adopt(call, error)
        if step.faults and step.abandoned:
            self._unfinished.append(call)
        else:
            self._finish(call)

    def _adopt(self, call: Call, error: type[ProviderError] | None) -> None:
        """A call that met a fault has happened or has not; if it said so, then that is true."""
        done, right_error = expected(self._model, call)
        assert error is right_error or (error is not None and issubclass(error, _RETRIED)), error
        seen = self._look()
        assert seen in ((done,) if error is None else (self._model, done))
        self._model = seen

    def _finish(self, call: Call) -> None:
        self._model, right_error = expected(self._model, call)
        assert self._call(call, None) is right_error
        assert self._look() == self._model

    def _call(self, call: Call, fault: Fault | None) -> type[ProviderError] | None:
        try:
            _make(self._host.provider(fault), call)
        except ProviderError as error:
            return type(error)
        return None

    def _write(self, operation: Write) -> None:
        if volume_handle(operation.name) in self._model.volumes:
            disk = self._disk(volume_handle(operation.name))
            self._host.mark(disk, operation.block, operation.mark)
        self._model = self._model.after(operation)

    def _disk(self, base: str) -> str:
        (disk,) = (
            name for name in self._host.names() if name.startswith(f"{base}~") and name.endswith(".raw")
        )
        return disk

    def _look(self) -> Model:
        """What readers see, and what is written on each disk."""
        provider, deadline = self._host.provider(None), Deadline.after(60)
        volumes = {
            _bare(volume.handle): ModelVolume(
                name=volume.name,
                mib=volume.size_bytes // MIB,
                created_mib=volume.created_size_bytes // MIB,
                encryption=volume.encryption,
                source=None
                if volume.source is None
                else replace(volume.source, handle=_bare(volume.source.handle)),
                marks=self._host.marks(self._disk(_bare(volume.handle))),
            )
            for volume in provider.list_volumes(0, "", deadline).items
        }
        snapshots = {
            _bare(snapshot.handle): ModelSnapshot(
                name=snapshot.name,
                source_handle=_bare(snapshot.source_handle),
                mib=snapshot.size_bytes // MIB,
                encryption=snapshot.encryption,
                marks=self._host.marks(self._disk(_bare(snapshot.handle))),
            )
            for snapshot in provider.list_snapshots(None, 0, "", deadline).items
        }
        return Model(volumes, snapshots)


def _make(provider: LibvirtProvider, call: Call) -> None:
    deadline = Deadline.after(60)
    match call:
        case Create(name, mib, encryption, source):
            placed = None if source is None else replace(source, handle=_placed(source.handle))
            provider.create_volume(
                VolumeRequest(name, mib * MIB, encryption, "ext4", source=placed), deadline
            )
        case Delete(name):
            provider.delete_volume(_placed(volume_handle(name)), deadline)
        case Expand(name, mib):
            assert provider.expand_volume(_placed(volume_handle(name)), mib * MIB, deadline) >= mib * MIB
        case TakeSnapshot(name, volume_name):
            provider.create_snapshot(name, _placed(volume_handle(volume_name)), deadline)
        case DeleteSnapshot(name):
            provider.delete_snapshot(_placed(snapshot_handle(name)), deadline)


def _placed(base: str) -> str:
    return f"{base}@{POOL}"


def _bare(handle: str) -> str:
    assert handle.endswith(f"@{POOL}")
    return handle.removesuffix(f"@{POOL}")


def _run(
    host: Callable[[Path], LibvirtHost], strategy: st.SearchStrategy[tuple[Step, ...]], count: int
) -> int:
    """Run that many histories; the number of different ones with a fault."""
    faults: dict[tuple[Step, ...], int] = {}

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def histories(steps: tuple[Step, ...]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            history = History(host(Path(directory)))
            history.run(steps)
            faults[steps] = history.faults

    histories()
    struck = [count for count in faults.values() if count]
    print(f"{len(faults)} different histories, {len(struck)} with a fault, {sum(struck)} faults")
    return len(struck)


def test_five_hundred_histories_with_faults_end_as_the_model_says() -> None:
    """Field cases A1, D3, E2: no duplicate, no leak, nothing of another's deleted, no data lost."""
    strategy = _histories(65, ("before", "during", "after"))
    assert _run(lambda _directory: FakeHost(), strategy, 560) >= HISTORIES_WITH_A_FAULT


def test_histories_on_a_real_libvirtd_end_as_the_model_says() -> None:
    assert _run(RealHost, _histories(6, ("before", "after")), REAL_HISTORIES) >= REAL_HISTORIES * 0.9
