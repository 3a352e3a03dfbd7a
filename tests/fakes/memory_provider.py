"""A cloud in memory, stricter than real ones, and its provider: for tests of the driver.

Every call that would reach a cloud is recorded; faults and delays can be put before or after the step that
changes the cloud; requests that the driver must never send fail the test.
"""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import ClassVar, Self

from providers.deadline import Deadline
from providers.errors import (
    AlreadyExistsError,
    InUseError,
    InvalidParameterError,
    InvalidTokenError,
    OutcomeUnknownError,
    QuotaExceededError,
    SnapshotNotFoundError,
    VolumeNotFoundError,
)
from providers.interface import (
    BlockVolumeProvider,
    CapacityReporter,
    ContentSource,
    Item,
    Page,
    Snapshot,
    SourceKind,
    Volume,
    VolumeCloner,
    VolumeCondition,
    VolumeExpander,
    VolumeFence,
    VolumeHealth,
    VolumeLister,
    VolumeModifier,
    VolumeRequest,
    VolumeSnapshotter,
    ZonedVolumes,
)

GIB = 1 << 30

Fault = Callable[[Deadline], None]


def hang(deadline: Deadline) -> None:
    """A cloud that never answers: what a well-made provider does then."""
    wait = threading.Event()
    while True:
        deadline.check()
        wait.wait(0.01)


def raising(error: Exception) -> Fault:
    """A fault that raises ``error``."""

    def fault(_deadline: Deadline) -> None:
        raise error

    return fault


def waiting_for(wait: Callable[[float], object]) -> Fault:
    """A delay until ``wait`` (of an event or a barrier) returns, at most a minute."""

    def fault(_deadline: Deadline) -> None:
        wait(60)

    return fault


@dataclass
class MemoryCloud:
    """What outlives the driver."""

    volumes: dict[str, Volume] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    in_use: set[str] = field(default_factory=set)
    machines: dict[str, str] = field(default_factory=dict)
    """By volume handle: the machine that has the disk."""
    conditions: dict[str, VolumeCondition] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    before: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    """By method: what happens, once each and in order, when a call arrives."""
    after: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    """By method: what happens once the cloud has done the work, before the answer arrives."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def arrive(self, method: str, deadline: Deadline) -> None:
        """A request reaches the cloud."""
        with self.lock:
            self.calls.append(method)
            fault = self.before[method].pop(0) if self.before[method] else None
        if fault:
            fault(deadline)
        deadline.check()

    def answer(self, method: str, deadline: Deadline) -> None:
        """The answer goes back."""
        with self.lock:
            fault = self.after[method].pop(0) if self.after[method] else None
        if fault:
            fault(deadline)

    def changes(self) -> list[str]:
        """The calls so far that could have changed something."""
        return [
            call
            for call in self.calls
            if call.split("_")[0] in ("create", "delete", "expand", "modify", "set")
        ]


class MinimalProvider(BlockVolumeProvider):
    """The four methods, and none of the optional interfaces."""

    name: ClassVar[str] = "memory"
    size_step_bytes: ClassVar[int] = GIB
    minimum_size_bytes: ClassVar[int] = GIB
    maximum_size_bytes: ClassVar[int] = 16384 * GIB
    parameter_names: ClassVar[frozenset[str]] = frozenset({"memoryType"})

    def __init__(self, cloud: MemoryCloud) -> None:
        self.cloud = cloud

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        del settings
        return cls(MemoryCloud())

    def validate_parameters(self, parameters: Mapping[str, str]) -> None:
        assert set(parameters) <= self.parameter_names
        if parameters.get("memoryType", "fast") not in ("fast", "slow"):
            raise InvalidParameterError("memoryType: expected fast or slow")

    def handle_for_name(self, name: str) -> str:
        return "vol-" + hashlib.sha256(name.encode()).hexdigest()[:40]

    def create_volume(self, request: VolumeRequest, deadline: Deadline) -> Volume:
        assert 0 < len(request.name.encode()) <= 128
        assert request.size_bytes % self.size_step_bytes == 0
        assert self.minimum_size_bytes <= request.size_bytes <= self.maximum_size_bytes
        assert request.fs_type in ("ext4", "xfs")
        self.validate_parameters(request.parameters)
        self.cloud.arrive("create_volume", deadline)
        handle = self.handle_for_name(request.name)
        kind = request.parameters.get("memoryType", "fast")
        with self.cloud.lock:
            existing = self.cloud.volumes.get(handle)
            if existing is not None and self.cloud.types[handle] != kind:
                raise AlreadyExistsError(f"memoryType is {self.cloud.types[handle]}, not {kind}")
            volume = existing or self._make(handle, request)
            self.cloud.types[handle] = kind
            self.cloud.volumes[handle] = volume
        self.cloud.answer("create_volume", deadline)
        return volume

    def _make(self, handle: str, request: VolumeRequest) -> Volume:
        if request.source is not None:
            assert request.size_bytes >= self._source_size(request.source)
        return Volume(
            handle=handle,
            name=request.name,
            size_bytes=request.size_bytes,
            created_size_bytes=request.size_bytes,
            encryption=request.encryption,
            fs_type=request.fs_type,
            source=request.source,
            disk_id=f"disk-{handle}",
            attributes={"memory-zone": "zone-1"},
        )

    def _source_size(self, source: ContentSource) -> int:
        if source.kind is SourceKind.SNAPSHOT:
            if source.handle not in self.cloud.snapshots:
                raise SnapshotNotFoundError(source.handle)
            return self.cloud.snapshots[source.handle].size_bytes
        if source.handle not in self.cloud.volumes:
            raise VolumeNotFoundError(source.handle)
        return self.cloud.volumes[source.handle].size_bytes

    def delete_volume(self, handle: str, deadline: Deadline) -> None:
        if not _is_handle(handle, "vol-"):
            return
        self.cloud.arrive("delete_volume", deadline)
        with self.cloud.lock:
            if handle in self.cloud.in_use:
                raise InUseError(f"{handle} is attached to a VM; delete the pod first")
            self.cloud.volumes.pop(handle, None)
        self.cloud.answer("delete_volume", deadline)

    def get_volume_info(self, handle: str, deadline: Deadline) -> Volume:
        if not _is_handle(handle, "vol-"):
            raise VolumeNotFoundError(handle)
        self.cloud.arrive("get_volume_info", deadline)
        with self.cloud.lock:
            if handle not in self.cloud.volumes:
                raise VolumeNotFoundError(handle)
            return replace(self.cloud.volumes[handle], attached_to=self.cloud.machines.get(handle, ""))

    def volume_exists(self, handle: str, deadline: Deadline) -> bool:
        try:
            self.get_volume_info(handle, deadline)
        except VolumeNotFoundError:
            return False
        return True


class MemoryProvider(
    MinimalProvider, VolumeExpander, VolumeSnapshotter, VolumeCloner, VolumeLister, CapacityReporter
):
    """Volumes, and copies of them."""

    def expand_volume(self, handle: str, size_bytes: int, deadline: Deadline) -> int:
        assert size_bytes % self.size_step_bytes == 0
        assert size_bytes <= self.maximum_size_bytes
        self.cloud.arrive("expand_volume", deadline)
        with self.cloud.lock:
            volume = self.cloud.volumes[handle]
            assert size_bytes > volume.size_bytes, "a cloud call for nothing, or a shrink"
            self.cloud.volumes[handle] = replace(volume, size_bytes=size_bytes)
        self.cloud.answer("expand_volume", deadline)
        return size_bytes

    def create_snapshot(self, name: str, source_handle: str, deadline: Deadline) -> Snapshot:
        assert 0 < len(name.encode()) <= 128
        self.cloud.arrive("create_snapshot", deadline)
        handle = "snap-" + hashlib.sha256(name.encode()).hexdigest()[:40]
        with self.cloud.lock:
            if handle not in self.cloud.snapshots:
                if source_handle not in self.cloud.volumes:
                    raise VolumeNotFoundError(source_handle)
                source = self.cloud.volumes[source_handle]
                self.cloud.snapshots[handle] = Snapshot(
                    handle=handle,
                    name=name,
                    source_handle=source_handle,
                    size_bytes=source.size_bytes,
                    created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
                    ready=True,
                    encryption=source.encryption,
                    fs_type=source.fs_type,
                )
            snapshot = self.cloud.snapshots[handle]
        self.cloud.answer("create_snapshot", deadline)
        return snapshot

    def delete_snapshot(self, handle: str, deadline: Deadline) -> None:
        if not _is_handle(handle, "snap-"):
            return
        self.cloud.arrive("delete_snapshot", deadline)
        with self.cloud.lock:
            self.cloud.snapshots.pop(handle, None)

    def get_snapshot(self, handle: str, deadline: Deadline) -> Snapshot:
        if not _is_handle(handle, "snap-"):
            raise SnapshotNotFoundError(handle)
        self.cloud.arrive("get_snapshot", deadline)
        with self.cloud.lock:
            if handle not in self.cloud.snapshots:
                raise SnapshotNotFoundError(handle)
            return self.cloud.snapshots[handle]

    def list_snapshots(
        self, source_handle: str | None, max_entries: int, token: str, deadline: Deadline
    ) -> Page[Snapshot]:
        self.cloud.arrive("list_snapshots", deadline)
        with self.cloud.lock:
            found = [
                self.cloud.snapshots[handle]
                for handle in sorted(self.cloud.snapshots)
                if source_handle in (None, self.cloud.snapshots[handle].source_handle)
            ]
        return _page(found, max_entries, token)

    def list_volumes(self, max_entries: int, token: str, deadline: Deadline) -> Page[Volume]:
        self.cloud.arrive("list_volumes", deadline)
        with self.cloud.lock:
            found = [self.cloud.volumes[handle] for handle in sorted(self.cloud.volumes)]
        return _page(found, max_entries, token)

    def available_bytes(self, parameters: Mapping[str, str], deadline: Deadline) -> int:
        self.validate_parameters(parameters)
        self.cloud.arrive("available_bytes", deadline)
        return 100 * GIB


class CloudyProvider(MemoryProvider, ZonedVolumes, VolumeFence, VolumeModifier, VolumeHealth):
    """Everything that the driver can use."""

    mutable_parameter_names: ClassVar[frozenset[str]] = frozenset({"memoryType"})

    def _make(self, handle: str, request: VolumeRequest) -> Volume:
        if "zone-full" in request.zones[:1]:
            raise QuotaExceededError("zone-full has no room")
        return replace(super()._make(handle, request), zones=request.zones[:1] or ("zone-1",))

    def modify_volume(self, handle: str, parameters: Mapping[str, str], deadline: Deadline) -> None:
        assert parameters
        assert set(parameters) <= self.mutable_parameter_names
        self.validate_parameters(parameters)
        self.cloud.arrive("modify_volume", deadline)
        with self.cloud.lock:
            self.cloud.types[handle] = parameters["memoryType"]
        self.cloud.answer("modify_volume", deadline)

    def set_published_node(self, handle: str, node_id: str, replacing: str, deadline: Deadline) -> None:
        self.cloud.arrive("set_published_node", deadline)
        with self.cloud.lock:
            volume = self.cloud.volumes[handle]
            if volume.published_node_id != replacing:
                raise OutcomeUnknownError("the note was changed by another")
            self.cloud.volumes[handle] = replace(volume, published_node_id=node_id)
        self.cloud.answer("set_published_node", deadline)

    def volume_conditions(
        self, volumes: Sequence[Volume], deadline: Deadline
    ) -> Mapping[str, VolumeCondition]:
        assert volumes
        self.cloud.arrive("volume_conditions", deadline)
        wanted = {volume.handle for volume in volumes}
        return {handle: one for handle, one in self.cloud.conditions.items() if handle in wanted}


def _is_handle(handle: str, prefix: str) -> bool:
    return handle.startswith(prefix) and len(handle) == len(prefix) + 40


def _page(found: list[Item], max_entries: int, token: str) -> Page[Item]:
    if token and not (token.startswith("after-") and token[6:].isdecimal()):
        raise InvalidTokenError("not a token of this provider")
    start = int(token[6:]) if token else 0
    end = start + max_entries if max_entries else len(found)
    return Page(tuple(found[start:end]), f"after-{end}" if end < len(found) else "")
