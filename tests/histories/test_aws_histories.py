"""Histories of calls, faults and replays on the strict EC2; after each, its objects are those of the model.

A fault comes at any call to EC2, questions too: the process or the connection ends before or after the call
was done, EC2 throttles or fails. Answers lag behind, and states take their time, by a clock that goes on with
each call. The transport is left out here, for speed; the contract suite has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from unittest import mock

from botocore import exceptions as botocore
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from providers.aws import AwsProvider, calls, pacing, tags
from providers.aws.settings import Settings, Timings
from providers.deadline import Deadline
from providers.errors import DeadlineError, OutcomeUnknownError, ProviderError, UnavailableError
from providers.interface import ContentSource, Encryption, SourceKind, VolumeRequest
from tests.fakes.ec2 import Cloud, Rules
from tests.fakes.ec2.rules import Ec2Error
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
REGION = "us-east-1"
NO_SNAPSHOT = f"{REGION}/snap-00000000"

#: In calls, not seconds.
RULES = Rules(lag=2, creating=2, deleting=2, snapshot=2, modifying=2, optimizing=2)
TIMINGS = Timings(consistency=0.002, first_poll=0, last_poll=0, gather=0, merge=0, snapshot=5)

_RETRIED = (UnavailableError, OutcomeUnknownError, DeadlineError)


class Moment(Enum):
    """What a fault does at its call."""

    CRASH_BEFORE = "the process ends before the call"
    CRASH_AFTER = "the process ends after it"
    LOST_REQUEST = "the connection ends before the call arrives"
    LOST_ANSWER = "the connection ends once it was done"
    THROTTLED = "too many calls"
    BROKEN = "an internal error, after the call was done"


class Crash(BaseException):
    """The process is gone. Not an Exception: nothing in the provider may survive it."""


@dataclass(frozen=True)
class Fault:
    """A fault at the call of that number."""

    number: int
    moment: Moment


class Client:
    """What the provider takes for boto3's client: one call's way to the cloud, with a fault on it."""

    def __init__(self, cloud: Cloud, tick: Callable[[], None], fault: Fault | None) -> None:
        self.has_struck = False
        self._cloud = cloud
        self._tick = tick
        self._fault = fault
        self._left = -1 if fault is None else fault.number
        self._is_gone = False

    def __getattr__(self, method: str) -> Callable[..., dict[str, Any]]:
        action = "".join(word.capitalize() for word in method.split("_"))
        return lambda **arguments: self._call(action, arguments)

    def _call(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._is_gone:
            raise Crash
        strikes = self._left == 0
        self._left -= 1
        if not strikes or self._fault is None:
            return self._done(action, arguments)
        self.has_struck = True
        match self._fault.moment:
            case Moment.CRASH_BEFORE:
                self._is_gone = True
                raise Crash
            case Moment.CRASH_AFTER:
                self._done(action, arguments)
                self._is_gone = True
                raise Crash
            case Moment.LOST_REQUEST:
                raise botocore.ConnectionClosedError(endpoint_url="ec2")
            case Moment.LOST_ANSWER:
                self._done(action, arguments)
                raise botocore.ReadTimeoutError(endpoint_url="ec2")
            case Moment.THROTTLED:
                raise _client_error(Ec2Error("RequestLimitExceeded", status=503), action)
            case Moment.BROKEN:
                self._done(action, arguments)
                raise _client_error(Ec2Error("InternalError", status=500), action)

    def _done(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self._tick()
        try:
            return self._cloud.perform(action, arguments)
        except Ec2Error as error:
            raise _client_error(error, action) from error


def _client_error(error: Ec2Error, action: str) -> botocore.ClientError:
    answer: Any = {
        "Error": {"Code": error.code, "Message": error.message},
        "ResponseMetadata": {"HTTPStatusCode": error.status},
    }
    return botocore.ClientError(answer, action)


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


def _faults(least: int, most: int, numbers: int) -> st.SearchStrategy[tuple[Fault, ...]]:
    one = st.builds(Fault, st.integers(0, numbers - 1), st.sampled_from(Moment))
    return st.lists(one, min_size=least, max_size=most).map(tuple)


STEPS = st.one_of(
    st.builds(Step, CALLS, _faults(0, 2, 8), st.booleans()),
    st.builds(Step, CALLS, _faults(0, 2, 8), st.booleans()),
    st.builds(Step, WRITES),
)
# A blank create makes three calls and more, so each history meets a fault.
FIRST_STEPS = st.builds(
    Step,
    st.builds(Create, VOLUMES, SIZES, ENCRYPTIONS, st.none()),
    _faults(1, 3, 3),
    st.booleans(),
)
HISTORIES = st.tuples(FIRST_STEPS, st.lists(STEPS, min_size=4, max_size=9)).map(lambda two: (two[0], *two[1]))


class History:
    """Runs steps on a cloud and on the model."""

    def __init__(self) -> None:
        self.faults = 0
        self._now = 0.0
        self._cloud = Cloud(RULES, lambda: self._now)
        self._model = Model()
        self._unfinished: list[Call] = []

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
        assert len(self._cloud.existing_volumes()) == len(self._model.volumes)
        assert len(self._cloud.existing_snapshots()) == len(self._model.snapshots)

    def _run_call(self, call: Call, step: Step) -> None:
        for fault in step.faults:
            client = Client(self._cloud, self._tick, fault)
            try:
                error = self._call(call, client)
            except Crash:
                error = UnavailableError
            if not client.has_struck:
                self._finish(call, error)
                return
            self.faults += 1
            self._adopt(call, error)
            self._pause_before(call)
        if step.faults and step.abandoned:
            self._now += 10
            self._unfinished.append(call)
        else:
            self._finish(call, UnavailableError)

    def _adopt(self, call: Call, error: type[ProviderError] | None) -> None:
        """A call that met a fault has happened or has not; if it said so, then that is true."""
        done, right_error = expected(self._model, call)
        assert error is right_error or (error is not None and issubclass(error, _RETRIED)), error
        seen = self._look()
        assert seen in ((done,) if error is None else (self._model, done))
        self._model = seen

    def _finish(self, call: Call, error: type[ProviderError] | None = UnavailableError) -> None:
        """The call until it gets through: EC2 refuses a modification while another is under way."""
        self._model, right_error = expected(self._model, call)
        for _ in range(4):
            if error is None or not issubclass(error, _RETRIED):
                break
            self._pause_before(call)
            error = self._call(call, Client(self._cloud, self._tick, None))
        assert error is right_error
        assert self._look() == self._model

    def _pause_before(self, call: Call) -> None:
        """A sidecar's pause before it calls again: longer than answers lag behind. A creation needs none."""
        if not isinstance(call, Create):
            self._now += 10

    def _tick(self) -> None:
        self._now += 1

    def _call(self, call: Call, client: Client) -> type[ProviderError] | None:
        provider, deadline = self._started(client), Deadline.after(30)
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

    def _started(self, client: Client) -> AwsProvider:
        """A provider that knows nothing of earlier ones."""
        return AwsProvider(Settings(REGION, zone="us-east-1a", timings=TIMINGS), lambda _: client)

    def _write(self, operation: Write) -> None:
        written = volume_handle(operation.name)
        for call in self._unfinished:
            if isinstance(call, Create) and call.source and call.source.handle == written:
                return  # what is written while a clone is under way may be in it or not
        for volume in self._cloud.existing_volumes():
            if volume.now.tags["Name"] == written:
                volume.content[operation.block] = operation.mark
        self._model = self._model.after(operation)

    def _look(self) -> Model:
        """What is in the cloud, read without the provider's own eyes; temporary snapshots left out."""
        volumes = {}
        for volume in self._cloud.existing_volumes():
            noted = volume.now.tags
            assert noted["Name"] not in volumes, "two volumes of one name"
            # A modification that was accepted will be in effect.
            size = volume.history[-1][1].size
            volumes[noted["Name"]] = ModelVolume(
                name=tags.read(noted, tags.VOLUME_KEY).name,
                mib=size,
                created_mib=int(noted[tags.CREATED_SIZE]) // GIB,
                encryption=tags.read(noted, tags.VOLUME_KEY).encryption,
                source=self._named(tags.read(noted, tags.VOLUME_KEY).source),
                marks=dict(volume.content),
            )
        snapshots = {}
        for snapshot in self._cloud.existing_snapshots():
            if tags.TEMPORARY_KEY in snapshot.tags:
                continue
            name = snapshot.tags["Name"]
            assert name not in snapshots, "two snapshots of one name"
            facts = tags.read(snapshot.tags, tags.SNAPSHOT_KEY)
            source = self._cloud.volumes[snapshot.volume_id].history[0][1].tags["Name"]
            snapshots[name] = ModelSnapshot(
                facts.name, source, snapshot.size, facts.encryption, dict(snapshot.content)
            )
        return Model(volumes, snapshots)

    def _listed(self) -> set[str]:
        self._now += 10
        provider = self._started(Client(self._cloud, self._tick, None))
        deadline = Deadline.after(30)
        return {
            *(volume_handle(one.name) for one in provider.list_volumes(0, "", deadline).items),
            *(snapshot_handle(one.name) for one in provider.list_snapshots(None, 0, "", deadline).items),
        }

    def _placed(self, name: str) -> str:
        """The provider's handle for the model's."""
        if name.startswith(tags.VOLUME_PREFIX):
            return f"{REGION}/{name}"
        for snapshot in self._cloud.existing_snapshots():
            if snapshot.tags["Name"] == name:
                return f"{REGION}/{snapshot.snapshot_id}"
        return NO_SNAPSHOT

    def _named(self, source: ContentSource | None) -> ContentSource | None:
        """The model's handle for the provider's."""
        if source is None:
            return None
        name = source.handle.partition("/")[2]
        if source.kind is SourceKind.SNAPSHOT:
            name = self._cloud.snapshots[name].tags["Name"]
        return replace(source, handle=name)


@contextmanager
def without_pauses() -> Iterator[None]:
    """Retries and paced calls follow at once."""
    with mock.patch.object(calls, "_FIRST_PAUSE", 0.0), mock.patch.object(pacing, "_FIRST_INTERVAL", 0.0005):
        yield


def test_five_hundred_histories_end_as_the_model_says() -> None:
    """Field cases A1, D3, E2."""
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

    with without_pauses():
        histories()
    struck = [count for count in faults.values() if count]
    print(f"{len(faults)} different histories, {len(struck)} with a fault, {sum(struck)} faults")
    assert len(struck) >= HISTORIES_WITH_A_FAULT
