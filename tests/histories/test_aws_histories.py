"""Histories of calls, faults and replays on the strict EC2; after each, its objects are those of the model.

A fault comes at any call to EC2, questions too: the process or the connection ends before or after the call
was done, EC2 throttles or fails. Answers lag behind, and states take their time, by a clock that goes on with
each call. The transport is left out here, for speed; the contract suite has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

from botocore import exceptions as botocore
from hypothesis import strategies as st

from providers.aws import AwsProvider, calls, modifications, pacing, snapshots, tags, volumes
from providers.aws.settings import Settings, Timings
from tests.fakes.crash import Crash
from tests.fakes.ec2 import Cloud, Rules
from tests.fakes.ec2.rules import Ec2Error
from tests.histories.history import histories, run_histories
from tests.histories.model import Call, Create, Model, ModelSnapshot, ModelVolume
from tests.histories.rig import GIB, Rig

HISTORIES_WITH_A_FAULT = 500
REGION = "us-east-1"
NO_SNAPSHOT = f"{REGION}/snap-00000000"

#: In calls, not seconds; of TIMINGS, ``consistency`` and ``snapshot``.
RULES = Rules(lag=2, creating=2, deleting=2, snapshot=2, modifying=2, optimizing=2)
TIMINGS = Timings(consistency=20, first_poll=0, last_poll=0, gather=0, merge=0, snapshot=20)


class CallClock:
    """Goes on with each call to EC2. Stands for the module ``time`` where the provider waits for EC2."""

    def __init__(self) -> None:
        self.now = 0.0

    def tick(self) -> None:
        self.now += 1

    def monotonic(self) -> float:
        return self.now


CLOCK = CallClock()


class Moment(Enum):
    """What a fault does at its call."""

    CRASH_BEFORE = "the process ends before the call"
    CRASH_AFTER = "the process ends after it"
    LOST_REQUEST = "the connection ends before the call arrives"
    LOST_ANSWER = "the connection ends once it was done"
    THROTTLED = "too many calls"
    BROKEN = "an internal error, after the call was done"


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


class AwsRig(Rig[Fault]):
    """An account of the strict EC2, by a clock that goes on with each call."""

    unit_bytes = GIB
    repetitions = 3  # EC2 refuses a modification while another one is under way
    copies_late = True

    def __init__(self) -> None:
        self._cloud = Cloud(RULES, CLOCK.monotonic)
        self._client = Client(self._cloud, CLOCK.tick, None)

    def connected(self, fault: Fault | None) -> AbstractContextManager[AwsProvider]:
        client = self._client = Client(self._cloud, CLOCK.tick, fault)
        settings = Settings(REGION, zone="us-east-1a", timings=TIMINGS)
        return nullcontext(AwsProvider(settings, lambda _: client))

    def has_struck(self) -> bool:
        return self._client.has_struck

    def pause_before(self, call: Call) -> None:
        """Longer than answers lag behind. A creation needs none."""
        if not isinstance(call, Create):
            CLOCK.now += 10

    def can_be_left(self, faults: tuple[Fault, ...]) -> bool:
        CLOCK.now += 10
        return super().can_be_left(faults)

    def placed(self, name: str) -> str:
        if name.startswith(tags.VOLUME_PREFIX):
            return f"{REGION}/{name}"
        for snapshot in self._cloud.existing_snapshots():
            if snapshot.tags["Name"] == name:
                return f"{REGION}/{snapshot.snapshot_id}"
        return NO_SNAPSHOT

    def bare(self, handle: str) -> str:
        region, _, name = handle.partition("/")
        assert region == REGION
        if name in self._cloud.volumes:
            return self._cloud.volumes[name].history[0][1].tags["Name"]
        return self._cloud.snapshots[name].tags["Name"] if name in self._cloud.snapshots else name

    def marks(self, name: str) -> dict[int, int]:
        contents = [one.content for one in self._cloud.existing_volumes() if one.now.tags["Name"] == name]
        contents += [one.content for one in self._cloud.existing_snapshots() if one.tags["Name"] == name]
        (content,) = contents
        return dict(content)

    def mark(self, name: str, block: int, mark: int) -> None:
        (volume,) = (one for one in self._cloud.existing_volumes() if one.now.tags["Name"] == name)
        volume.content[block] = mark

    def stored(self) -> Model:
        """What is in the cloud, read without the provider's own eyes; temporary snapshots left out."""
        volumes = {}
        for volume in self._cloud.existing_volumes():
            noted = volume.now.tags
            assert noted["Name"] not in volumes, "two volumes of one name"
            # A modification that was accepted will be in effect.
            size = volume.history[-1][1].size
            facts = tags.read(noted, tags.VOLUME_KEY)
            volumes[noted["Name"]] = ModelVolume(
                name=facts.name,
                size=size,
                created_size=int(noted[tags.CREATED_SIZE]) // GIB,
                encryption=facts.encryption,
                source=self.bare_source(facts.source),
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

    def check_end(self, model: Model) -> None:
        assert len(self._cloud.existing_volumes()) == len(model.volumes)
        assert len(self._cloud.existing_snapshots()) == len(model.snapshots)
        CLOCK.now += 10
        assert self.listed() == model


@contextmanager
def by_the_clock_of_calls() -> Iterator[None]:
    """Retries and paced calls follow at once; how long answers may lag behind is counted in calls."""
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(calls, "_FIRST_PAUSE", 0.0))
        patches.enter_context(mock.patch.object(pacing, "_FIRST_INTERVAL", 0.0005))
        for module in (modifications, snapshots, volumes):
            patches.enter_context(mock.patch.object(module, "time", CLOCK))
        yield


def _new_rig(_directory: Path) -> AwsRig:
    return AwsRig()


def _faults(numbers: int) -> st.SearchStrategy[Fault]:
    return st.builds(Fault, st.integers(0, numbers - 1), st.sampled_from(Moment))


def test_five_hundred_histories_end_as_the_model_says() -> None:
    """Field cases A1, D3, E2."""
    # A blank create makes three calls and more.
    strategy = histories(_faults(8), _faults(3), most_faults=2, most_steps=9)
    with by_the_clock_of_calls():
        assert run_histories(strategy, _new_rig, 520) >= HISTORIES_WITH_A_FAULT
