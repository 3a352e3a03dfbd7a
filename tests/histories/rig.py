"""What histories need to know of a provider: where its objects are, and what faults befall its calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import ClassVar, Generic, TypeVar

from providers.deadline import Deadline
from providers.interface import BlockVolumeProvider, ContentSource, VolumeLister, VolumeSnapshotter
from tests.histories.model import Call, Model, ModelSnapshot, ModelVolume

Fault = TypeVar("Fault")

GIB = 1 << 30
SECONDS = 60.0
"""That a call may take."""


class Rig(ABC, Generic[Fault]):
    """A place where disks live, empty at first, seen from behind the provider's back."""

    unit_bytes: ClassVar[int]
    """Bytes that the model counts as a size of one."""
    repetitions: ClassVar[int] = 0
    """How often a call may ask to be called again though no fault befell it."""
    copies_late: ClassVar[bool] = False
    """What is written to the source of a copy that was begun may still be in the copy."""

    @abstractmethod
    def connected(self, fault: Fault | None) -> AbstractContextManager[BlockVolumeProvider]:
        """A provider for one call, as another process would have it after a crash; ``fault`` befalls it.

        A fault that ends the process raises :class:`tests.fakes.crash.Crash`.
        """

    @abstractmethod
    def has_struck(self) -> bool:
        """Whether the fault of the last call has come."""

    @abstractmethod
    def placed(self, name: str) -> str:
        """The provider's handle for the model's."""

    @abstractmethod
    def bare(self, handle: str) -> str:
        """The model's handle for the provider's."""

    @abstractmethod
    def marks(self, name: str) -> dict[int, int]:
        """The marks on the disk of a volume or snapshot, by block."""

    @abstractmethod
    def mark(self, name: str, block: int, mark: int) -> None:
        """Write as the guest would."""

    @abstractmethod
    def check_end(self, model: Model) -> None:
        """Fail unless there is nothing but the objects of ``model``: no leftovers either."""

    def stored(self) -> Model:
        """What is there now; what a fault left half-made and no reader sees is left out."""
        return self.listed()

    def pause_before(self, call: Call) -> None:
        """A sidecar's pause before it makes ``call`` again."""

    def can_be_left(self, faults: tuple[Fault, ...]) -> bool:
        """Whether other calls can be made while a call that met ``faults`` is not replayed."""
        del faults
        return True

    def listed(self) -> Model:
        """What the provider lists, and what is written on each disk."""
        deadline = Deadline.after(SECONDS)
        with self.connected(None) as provider:
            assert isinstance(provider, VolumeLister)
            volumes = provider.list_volumes(0, "", deadline).items
            assert isinstance(provider, VolumeSnapshotter)
            snapshots = provider.list_snapshots(None, 0, "", deadline).items
        model = Model(
            {
                self.bare(volume.handle): ModelVolume(
                    name=volume.name,
                    size=volume.size_bytes // self.unit_bytes,
                    created_size=volume.created_size_bytes // self.unit_bytes,
                    encryption=volume.encryption,
                    source=self.bare_source(volume.source),
                    marks=self.marks(self.bare(volume.handle)),
                )
                for volume in volumes
            },
            {
                self.bare(snapshot.handle): ModelSnapshot(
                    name=snapshot.name,
                    source_handle=self.bare(snapshot.source_handle),
                    size=snapshot.size_bytes // self.unit_bytes,
                    encryption=snapshot.encryption,
                    marks=self.marks(self.bare(snapshot.handle)),
                )
                for snapshot in snapshots
            },
        )
        assert (len(model.volumes), len(model.snapshots)) == (len(volumes), len(snapshots)), "two of one name"
        return model

    def bare_source(self, source: ContentSource | None) -> ContentSource | None:
        """``source`` with the model's handle."""
        return None if source is None else replace(source, handle=self.bare(source.handle))
