"""Histories of calls, faults and replays on the strict ARM; after each, its objects are those of the model.

A fault comes at any request of a call: the process or the connection ends before or after the request was
done, Azure throttles or fails, or an operation that it accepted comes to nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hypothesis import strategies as st

from providers.azure import AzureProvider, handles, tags
from providers.azure.places import Place
from providers.azure.settings import Settings, Timings
from providers.interface import ContentSource, Encryption, SourceKind
from tests.fakes.arm.cloud import ArmCloud
from tests.fakes.arm.messages import Answer, Dropped, Request, error, throttled
from tests.fakes.arm.rig import FakeCredential
from tests.fakes.arm.wire import transport
from tests.fakes.crash import Crash
from tests.histories.history import histories, run_histories
from tests.histories.model import Model, ModelSnapshot, ModelVolume
from tests.histories.rig import GIB, Rig

HISTORIES_WITH_A_FAULT = 500
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


@dataclass(frozen=True)
class Fault:
    """A fault at the request of that number."""

    number: int
    moment: Moment


class Wire:
    """Hands one call's requests to the cloud, with a fault among them."""

    def __init__(self, cloud: ArmCloud, fault: Fault | None) -> None:
        self.has_struck = False
        self._cloud = cloud
        self._fault = fault
        self._left = -1 if fault is None else fault.number
        self.gone = False
        self._doomed = False

    def handle(self, request: Request) -> Answer:
        """Hand over one request."""
        if self.gone:
            raise Crash
        if self._doomed and not request.changes:
            self.gone = True
            raise Crash
        now = self._left == 0
        self._left -= 1
        if not now or self._fault is None:
            return self._cloud.handle(request)
        self.has_struck = True
        match self._fault.moment:
            case Moment.CRASH_BEFORE:
                self.gone = True
                raise Crash
            case Moment.CRASH_AFTER:
                self.gone = True
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


class AzureRig(Rig[Fault]):
    """A resource group of the strict ARM. The provider stays from call to call until its process ends."""

    unit_bytes = GIB

    def __init__(self) -> None:
        self._cloud = ArmCloud(operation_looks=1)
        self._place = Place(self._cloud.subscription, "disks")
        self._wire = Wire(self._cloud, None)
        self._provider = self._started()

    def _started(self) -> AzureProvider:
        settings = Settings(self._place, location="westeurope", timings=_TIMINGS)
        return AzureProvider(settings, FakeCredential(), lambda: transport(self._handle))

    def _handle(self, request: Request) -> Answer:
        return self._wire.handle(request)

    def connected(self, fault: Fault | None) -> AbstractContextManager[AzureProvider]:
        if self._wire.gone:
            self._provider = self._started()
        self._wire = Wire(self._cloud, fault)
        return nullcontext(self._provider)

    def has_struck(self) -> bool:
        return self._wire.has_struck

    def can_be_left(self, faults: tuple[Fault, ...]) -> bool:
        """With a disk that Azure failed to make and nobody cleaned up, other calls can do nothing."""
        return all(fault.moment is not Moment.FAILS_AND_CRASH for fault in faults)

    def placed(self, name: str) -> str:
        return str(handles.handle(name, self._place))

    def bare(self, handle: str) -> str:
        return handle.partition("@")[0]

    def marks(self, name: str) -> dict[int, int]:
        resources = self._cloud.resources.values()
        (content,) = (one.content for one in resources if one.document["name"] == name)
        return dict(content)

    def mark(self, name: str, block: int, mark: int) -> None:
        self._cloud.disk(name).content[block] = mark

    def stored(self) -> Model:
        """What is in the cloud, read without the provider's own eyes."""
        self._cloud.objects()
        volumes, snapshots = {}, {}
        for (kind, _, _), resource in self._cloud.resources.items():
            noted = resource.document["tags"]
            size, marks = resource.properties["diskSizeGB"], dict(resource.content)
            if kind == "disks":
                volumes[resource.document["name"]] = ModelVolume(
                    name=tags.read(noted, tags.VOLUME).name,
                    size=size,
                    created_size=int(noted[tags.CREATED_SIZE]) // GIB,
                    encryption=_encryption(noted),
                    source=self.bare_source(_source(noted)),
                    marks=marks,
                )
            elif resource.properties["provisioningState"] != "Failed":
                source = self.bare_source(_source(noted))
                assert source is not None
                snapshots[resource.document["name"]] = ModelSnapshot(
                    tags.read(noted, tags.SNAPSHOT).name, source.handle, size, _encryption(noted), marks
                )
        return Model(volumes, snapshots)

    def check_end(self, model: Model) -> None:
        assert self.listed() == model
        assert len(self._cloud.objects()) == len(model.volumes) + len(model.snapshots)
        assert not self._cloud.violations


def _encryption(noted: dict[str, str]) -> Encryption | None:
    kind = noted.get("encrypt-type")
    return None if kind is None else Encryption(kind, noted["kbs-key-id"])


def _source(noted: dict[str, str]) -> ContentSource | None:
    kind, _, handle = noted.get(tags.SOURCE, "").partition(" ")
    return ContentSource(SourceKind(kind), handle) if handle else None


def _new_rig(_directory: Path) -> AzureRig:
    return AzureRig()


def _faults(requests: int) -> st.SearchStrategy[Fault]:
    return st.builds(Fault, st.integers(0, requests - 1), st.sampled_from(Moment))


def test_five_hundred_histories_end_as_the_model_says() -> None:
    """Field cases A1, B1, D3."""
    # A blank create of a plain name makes four requests and more.
    strategy = histories(_faults(6), _faults(4), most_faults=2, most_steps=8)
    assert run_histories(strategy, _new_rig, 520) >= HISTORIES_WITH_A_FAULT
