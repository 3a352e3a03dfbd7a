"""Histories of calls, faults and replays on the strict ARM; after each, its objects are those of the model.

A fault comes at any request of a call: the process or the connection ends before or after the request was
done, Azure throttles or fails, or an operation that it accepted comes to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from providers.azure import AzureProvider, handles, tags
from providers.azure.places import Place
from providers.azure.settings import Settings, Timings
from providers.deadline import Deadline
from providers.errors import DeadlineError, OutcomeUnknownError, ProviderError, UnavailableError
from providers.interface import ContentSource, Encryption, SourceKind, VolumeRequest
from tests.fakes.arm.cloud import ArmCloud, Resource
from tests.fakes.arm.messages import Answer, Dropped, Request, error, throttled
from tests.fakes.arm.rig import FakeCredential
from tests.fakes.arm.wire import transport
from tests.histories.model import (
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
GIB = 1 << 30
_RETRIED = (UnavailableError, OutcomeUnknownError, DeadlineError)
_TIMINGS = Timings(first_pause=0, longest_pause=0, answer=5, consistency=1, snapshot=0)


class Moment(Enum):
    """What a fault does at its request."""

    CRASH_BEFORE = "the process ends before the request"
    CRASH_AFTER = "the process ends after it"
    DROP_BEFORE = "the connection breaks before the request arrives"
    DROP_AFTER = "the connection breaks once it was accepted"
    THROTTLED = "too many requests"
    BROKEN = "an internal error, after the request was accepted"
    FAILS = "an operation is accepted and fails"
    FAILS_AND_CRASH = "and then the process ends"


class Crash(BaseException):
    """The process is gone. Not an Exception: nothing in the provider may survive it."""


@dataclass(frozen=True)
class Fault:
    """A fault at the request of that number."""

    number: int
    moment: Moment


class Wire:
    """Hands one call's requests to the cloud, with a fault among them."""

    def __init__(self, cloud: ArmCloud, fault: Fault | None) -> None:
        self.struck = False
        self._cloud = cloud
        self._fault = fault
        self._left = -1 if fault is None else fault.number
        self._gone = False
        self._doomed = False

    def handle(self, request: Request) -> Answer:
        """Hand over one request."""
        if self._gone:
            raise Crash
        if self._doomed and not request.changes:
            self._gone = True
            raise Crash
        now = self._left == 0
        self._left -= 1
        if not now or self._fault is None:
            return self._cloud.handle(request)
        self.struck = True
        match self._fault.moment:
            case Moment.CRASH_BEFORE:
                self._gone = True
                raise Crash
            case Moment.CRASH_AFTER:
                self._gone = True
                self._cloud.handle(request)
                raise Crash
            case Moment.DROP_BEFORE:
                raise Dropped
            case Moment.DROP_AFTER:
                self._cloud.handle(request)
                raise Dropped
            case Moment.THROTTLED:
                return throttled(303)
            case Moment.BROKEN:
                self._cloud.handle(request)
                return error(500, "InternalServerError")
            case Moment.FAILS | Moment.FAILS_AND_CRASH:
                self._doomed = self._fault.moment is Moment.FAILS_AND_CRASH and request.changes
                self._cloud.failing[:] = ["InternalDiskManagementError"] if request.changes else []
                answer = self._cloud.handle(request)
                self._cloud.failing.clear()
                return answer


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


def _faults(least: int, most: int, requests: int) -> st.SearchStrategy[tuple[Fault, ...]]:
    one = st.builds(Fault, st.integers(0, requests - 1), st.sampled_from(Moment))
    return st.lists(one, min_size=least, max_size=most).map(tuple)


STEPS = st.one_of(
    st.builds(Step, CALLS, _faults(0, 2, 6), st.booleans()),
    st.builds(Step, CALLS, _faults(0, 2, 6), st.booleans()),
    st.builds(Step, WRITES),
)
# A blank create of a plain name makes four requests and more, so each history meets a fault.
FIRST_STEPS = st.builds(
    Step,
    st.builds(Create, VOLUMES, SIZES, ENCRYPTIONS, st.none()),
    _faults(1, 3, 4),
    st.booleans(),
)
HISTORIES = st.tuples(FIRST_STEPS, st.lists(STEPS, min_size=4, max_size=8)).map(lambda two: (two[0], *two[1]))


class History:
    """Runs steps on a cloud and on the model."""

    def __init__(self) -> None:
        self.faults = 0
        self._cloud = ArmCloud(operation_looks=1)
        self._place = Place(self._cloud.subscription, "disks")
        self._model = Model()
        self._unfinished: list[Call] = []
        self._wire = Wire(self._cloud, None)
        self._provider = self._started()

    def run(self, steps: tuple[Step, ...]) -> None:
        """All of the steps, then everything that was left unfinished."""
        for step in steps:
            if isinstance(step.operation, Write):
                self._write(step.operation)
            else:
                self._run_call(step.operation, step)
        for call in self._unfinished:
            self._finish(call)
        assert self._look() == self._model
        assert self._listed() == {*self._model.volumes, *self._model.snapshots}
        assert len(self._cloud.objects()) == len(self._model.volumes) + len(self._model.snapshots)
        assert not self._cloud.violations

    def _run_call(self, call: Call, step: Step) -> None:
        half_made = False
        for fault in step.faults:
            wire = Wire(self._cloud, fault)
            try:
                error = self._call(call, wire)
            except Crash:
                error = UnavailableError
                self._provider = self._started()  # another process, that knows nothing
            if not wire.struck:
                self._model, right_error = expected(self._model, call)
                assert error is right_error
                return
            self.faults += 1
            half_made = half_made or fault.moment is Moment.FAILS_AND_CRASH
            self._adopt(call, error)
        # A disk that Azure failed to make and nobody cleaned up is nothing that other calls can work with.
        if step.faults and step.abandoned and not half_made:
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
        error = self._call(call, Wire(self._cloud, None))
        assert error is right_error
        assert self._look() == self._model

    def _started(self) -> AzureProvider:
        settings = Settings(self._place, location="westeurope", timings=_TIMINGS)
        return AzureProvider(settings, FakeCredential(), lambda: transport(self._handle))

    def _handle(self, request: Request) -> Answer:
        return self._wire.handle(request)

    def _call(self, call: Call, wire: Wire) -> type[ProviderError] | None:
        self._wire = wire
        provider, deadline = self._provider, Deadline.after(30)
        try:
            match call:
                case Create(name, size, encryption, source):
                    if source is not None:
                        source = replace(source, handle=self._placed(source.handle))
                    provider.create_volume(
                        VolumeRequest(name, size * GIB, encryption, "ext4", source=source), deadline
                    )
                case Delete(name):
                    provider.delete_volume(self._placed(volume_handle(name)), deadline)
                case Expand(name, size):
                    handle = self._placed(volume_handle(name))
                    assert provider.expand_volume(handle, size * GIB, deadline) >= size * GIB
                case TakeSnapshot(name, volume_name):
                    provider.create_snapshot(name, self._placed(volume_handle(volume_name)), deadline)
                case DeleteSnapshot(name):
                    provider.delete_snapshot(self._placed(snapshot_handle(name)), deadline)
        except ProviderError as error:
            return type(error)
        return None

    def _write(self, operation: Write) -> None:
        if volume_handle(operation.name) in self._model.volumes:
            self._cloud.disk(volume_handle(operation.name)).content[operation.block] = operation.mark
        self._model = self._model.after(operation)

    def _look(self) -> Model:
        """What is in the cloud, read without the provider's own eyes."""
        self._cloud.objects()
        volumes, snapshots = {}, {}
        for (kind, _, _), resource in self._cloud.resources.items():
            noted = resource.document["tags"]
            if kind == "disks":
                volumes[resource.document["name"]] = ModelVolume(
                    name=tags.read(noted, tags.VOLUME).name,
                    mib=resource.properties["diskSizeGB"],
                    created_mib=int(noted[tags.CREATED_SIZE]) // GIB,
                    encryption=_encryption(noted),
                    source=_source(noted),
                    marks=dict(resource.content),
                )
            elif resource.properties["provisioningState"] != "Failed":
                snapshots[resource.document["name"]] = _snapshot(resource)
        return Model(volumes, snapshots)

    def _listed(self) -> set[str]:
        self._wire = Wire(self._cloud, None)
        provider, deadline = self._started(), Deadline.after(30)
        volumes = provider.list_volumes(0, "", deadline).items
        snapshots = provider.list_snapshots(None, 0, "", deadline).items
        found = [one.handle for one in volumes] + [one.handle for one in snapshots]
        return {handle.partition("@")[0] for handle in found}

    def _placed(self, name: str) -> str:
        return str(handles.handle(name, self._place))


def _snapshot(resource: Resource) -> ModelSnapshot:
    noted = resource.document["tags"]
    source = _source(noted)
    assert source is not None
    return ModelSnapshot(
        name=tags.read(noted, tags.SNAPSHOT).name,
        source_handle=source.handle,
        mib=resource.properties["diskSizeGB"],
        encryption=_encryption(noted),
        marks=dict(resource.content),
    )


def _encryption(noted: dict[str, str]) -> Encryption | None:
    kind = noted.get("encrypt-type")
    return None if kind is None else Encryption(kind, noted["kbs-key-id"])


def _source(noted: dict[str, str]) -> ContentSource | None:
    kind, _, handle = noted.get(tags.SOURCE, "").partition(" ")
    return ContentSource(SourceKind(kind), handle.partition("@")[0]) if handle else None


def test_five_hundred_histories_end_as_the_model_says() -> None:
    """Field cases A1, B1, D3."""
    faults: dict[tuple[Step, ...], int] = {}

    @settings(
        max_examples=520,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(HISTORIES)
    def histories(steps: tuple[Step, ...]) -> None:
        history = History()
        history.run(steps)
        faults[steps] = history.faults

    histories()
    struck = [count for count in faults.values() if count]
    print(f"{len(faults)} different histories, {len(struck)} with a fault, {sum(struck)} faults")
    assert len(struck) >= HISTORIES_WITH_A_FAULT
