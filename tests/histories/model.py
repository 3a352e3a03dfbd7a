"""What a provider should hold after a list of calls: a few dictionaries. Sizes are in a unit of the rig's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from providers.errors import (
    ProviderError,
    SizeOutOfRangeError,
    SnapshotNotFoundError,
    VolumeNotFoundError,
)
from providers.interface import ContentSource, Encryption, SourceKind
from providers.names import backend_name


@dataclass(frozen=True)
class Create:
    """CreateVolume, blank or from ``source``."""

    name: str
    size: int
    encryption: Encryption | None
    source: ContentSource | None


@dataclass(frozen=True)
class Delete:
    """DeleteVolume."""

    name: str


@dataclass(frozen=True)
class Expand:
    """ControllerExpandVolume."""

    name: str
    size: int


@dataclass(frozen=True)
class TakeSnapshot:
    """CreateSnapshot."""

    name: str
    volume: str


@dataclass(frozen=True)
class DeleteSnapshot:
    """DeleteSnapshot."""

    name: str


@dataclass(frozen=True)
class Write:
    """The guest writes ``mark`` at the start of block ``block`` (of 64 KiB) of its disk."""

    name: str
    block: int
    mark: int


Call = Create | Delete | Expand | TakeSnapshot | DeleteSnapshot
Operation = Call | Write


def volume_handle(name: str) -> str:
    """The handle of the volume of that CSI name."""
    return backend_name("csi-vol-", name)


def snapshot_handle(name: str) -> str:
    """The handle of the snapshot of that CSI name."""
    return backend_name("csi-snap-", name)


@dataclass(frozen=True)
class ModelVolume:
    """A volume; ``marks`` is what the guest wrote, by block."""

    name: str
    size: int
    created_size: int
    encryption: Encryption | None
    source: ContentSource | None
    marks: dict[int, int]


@dataclass(frozen=True)
class ModelSnapshot:
    """A snapshot."""

    name: str
    source_handle: str
    size: int
    encryption: Encryption | None
    marks: dict[int, int]


@dataclass(frozen=True)
class Model:
    """All objects by handle. Immutable: an operation yields another model."""

    volumes: dict[str, ModelVolume] = field(default_factory=dict)
    snapshots: dict[str, ModelSnapshot] = field(default_factory=dict)

    def after(self, operation: Operation) -> Model:
        """The state that ``operation`` leads to.

        Raises:
            ProviderError: of the class that the provider must raise; the state stays.
        """
        match operation:
            case Create():
                return self._after_create(operation)
            case Delete(name):
                return self._with_volume(volume_handle(name), None)
            case Expand(name, size):
                volume = self._volume(volume_handle(name))
                return self._with_volume(volume_handle(name), replace(volume, size=max(volume.size, size)))
            case TakeSnapshot(name, volume_name):
                return self._after_snapshot(name, volume_handle(volume_name))
            case DeleteSnapshot(name):
                left = {
                    handle: one for handle, one in self.snapshots.items() if handle != snapshot_handle(name)
                }
                return replace(self, snapshots=left)
            case Write(name, block, mark):
                if volume_handle(name) not in self.volumes:
                    return self
                volume = self._volume(volume_handle(name))
                return self._with_volume(
                    volume_handle(name), replace(volume, marks={**volume.marks, block: mark})
                )

    def _after_create(self, create: Create) -> Model:
        handle = volume_handle(create.name)
        if handle in self.volumes:
            return self
        marks: dict[int, int] = {}
        if create.source is not None:
            source = self._source(create.source)
            if source.size > create.size:
                raise SizeOutOfRangeError
            marks = source.marks
        volume = ModelVolume(create.name, create.size, create.size, create.encryption, create.source, marks)
        return self._with_volume(handle, volume)

    def _after_snapshot(self, name: str, source_handle: str) -> Model:
        if snapshot_handle(name) in self.snapshots:
            return self
        volume = self._volume(source_handle)
        snapshot = ModelSnapshot(name, source_handle, volume.size, volume.encryption, volume.marks)
        return replace(self, snapshots={**self.snapshots, snapshot_handle(name): snapshot})

    def _source(self, source: ContentSource) -> ModelVolume | ModelSnapshot:
        if source.kind is SourceKind.VOLUME:
            return self._volume(source.handle)
        if source.handle not in self.snapshots:
            raise SnapshotNotFoundError
        return self.snapshots[source.handle]

    def _volume(self, handle: str) -> ModelVolume:
        if handle not in self.volumes:
            raise VolumeNotFoundError
        return self.volumes[handle]

    def _with_volume(self, handle: str, volume: ModelVolume | None) -> Model:
        volumes = {other: one for other, one in self.volumes.items() if other != handle}
        return replace(self, volumes=volumes if volume is None else {**volumes, handle: volume})


def expected(model: Model, operation: Operation) -> tuple[Model, type[ProviderError] | None]:
    """The state after ``operation``, and the class of the error that it ends with."""
    try:
        return model.after(operation), None
    except ProviderError as error:
        return model, type(error)
