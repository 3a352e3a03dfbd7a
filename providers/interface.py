"""The seam between the CSI driver and the places where disks live.

A provider implements :class:`BlockVolumeProvider` and whichever optional interfaces its backend can
honour; the capabilities that the driver advertises follow from that. It is found through the
``confidential_csi.providers`` entry point (``providers/registry.py``), so a third party can add one
without touching this repository.

Rules for every method:

* The backend is the database. Names and tags are pure functions of the CSI name; nothing that matters
  is kept in memory or beside the backend. A call can be killed at any instruction, and a replay by
  another process finishes the work or finds it done.
* Sizes are integers in bytes.
* "Could not be asked" (:class:`~providers.errors.UnavailableError`) is never reported as "not found".
* Every wait ends at the deadline with :class:`~providers.errors.DeadlineError`.
* Handles are this provider's own names for its objects (at most 100 bytes, printable ASCII without
  spaces). A handle from outside is untrusted text: one that the provider could not have made is simply
  unknown, and reaches neither a file system nor a cloud API.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import ClassVar, Generic, Self, TypeVar

from providers.deadline import Deadline

Item = TypeVar("Item")


@dataclass(frozen=True)
class Encryption:
    """How the guest opens the volume. Both values are public: a type, and the *path* of a key."""

    encrypt_type: str
    kbs_key_id: str


class SourceKind(Enum):
    """What a volume's first content is copied from."""

    SNAPSHOT = "snapshot"
    VOLUME = "volume"


@dataclass(frozen=True)
class ContentSource:
    """A volume's or snapshot's handle whose content a new volume starts with."""

    kind: SourceKind
    handle: str


@dataclass(frozen=True)
class VolumeRequest:
    """One validated CreateVolume, as a provider sees it."""

    name: str
    """The CSI name: 1 to 128 bytes of UTF-8, no control characters; otherwise any text."""
    size_bytes: int
    """Size to create: a multiple of the provider's step, within its limits, at least the source's size."""
    encryption: Encryption | None
    """Recorded with the disk; None means that the volume is not encrypted."""
    fs_type: str
    """File system the guest will make. Recorded with the disk; never made on the host."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """The StorageClass parameters that this provider declared, as ``validate_parameters`` accepted them."""
    source: ContentSource | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """PVC and PV names, for people who look at the backend; no decision rests on them."""
    zones: tuple[str, ...] = ()
    """Where the volume may be, the best first; empty: wherever the provider puts it. Only
    :class:`ZonedVolumes` get any."""


@dataclass(frozen=True)
class Volume:
    """A volume as the backend knows it."""

    handle: str
    name: str
    """The CSI name it was created for."""
    size_bytes: int
    """Its real size now."""
    created_size_bytes: int
    """Its size when it was created, so that a replayed create still matches after an expansion."""
    encryption: Encryption | None
    fs_type: str
    source: ContentSource | None
    disk_id: str
    """What attaches it to a PodVM (CAA's ``cloud-volume-path``); never the path of a file on a node."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """More public facts for the PV's attributes, under the names users know (``ebs-volume-id`` …)."""
    older_id: str = field(default="", compare=False)
    """The volume id under which a PV of the older Go driver knows it; empty for any other volume."""
    zones: tuple[str, ...] = ()
    """Zones whose machines can use it; empty: any machine can, or the provider knows no zones."""
    published_node_id: str = ""
    """The note of :class:`VolumeFence` on the disk; empty when there is none."""
    attached_to: str = field(default="", compare=False)
    """The machine that has the disk now, by the backend's name for it; empty when it is free. Only a
    :class:`VolumeFence` fills it. Not part of what the volume is, so volumes are equal without it."""


@dataclass(frozen=True)
class Snapshot:
    """A point-in-time, crash-consistent copy of a volume."""

    handle: str
    name: str
    source_handle: str
    """Handle of the volume it was taken from; that volume may be gone."""
    size_bytes: int
    """Smallest size of a volume restored from it."""
    created_at: datetime
    """Timezone-aware, UTC."""
    ready: bool
    encryption: Encryption | None
    """The source's: the copied LUKS header opens with the source's key."""
    fs_type: str


@dataclass(frozen=True)
class VolumeCondition:
    """What the backend says about a disk's health."""

    abnormal: bool
    message: str
    """For people; never empty."""


@dataclass(frozen=True)
class Page(Generic[Item]):
    """One page of a listing."""

    items: tuple[Item, ...]
    next_token: str
    """Give this back for the next page; empty on the last one."""


class StorageClassRules(ABC):
    """What a cloud's StorageClasses can say, and how large its volumes can be: all that needs neither
    settings nor the backend, nor the cloud's SDK. ``confidential-csi lint`` loads only this part."""

    name: ClassVar[str]
    """As in ``cloudProvider`` and ``--provider``."""
    size_step_bytes: ClassVar[int]
    """Sizes are multiples of this."""
    minimum_size_bytes: ClassVar[int]
    maximum_size_bytes: ClassVar[int]
    parameter_names: ClassVar[frozenset[str]]
    """StorageClass parameters that are this provider's own."""
    mutable_parameter_names: ClassVar[frozenset[str]] = frozenset()
    """Those of ``parameter_names`` that :class:`VolumeModifier` can change."""

    @abstractmethod
    def validate_parameters(self, parameters: Mapping[str, str]) -> None:
        """Check values of this provider's own parameters, without asking the backend.

        Raises:
            InvalidParameterError: a value, or a combination, can't work; the message names the parameter.
        """

    def size_limits(self, parameters: Mapping[str, str]) -> tuple[int, int]:
        """The least and the greatest size, in bytes, of a volume with these (valid) parameters."""
        del parameters
        return self.minimum_size_bytes, self.maximum_size_bytes

    def zone_follows_pod(self, parameters: Mapping[str, str]) -> bool:
        """Whether a volume with these (valid) parameters is in one zone, and the pod's node chooses which."""
        del parameters
        return False


class BlockVolumeProvider(StorageClassRules):
    """Creates and deletes raw disks. Thread-safe."""

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        """The provider as the process environment ``settings`` describes it; other variables are ignored.

        Raises:
            ConfigurationError: a setting is missing or can't work; the message names the variable.
        """

    @abstractmethod
    def handle_for_name(self, name: str) -> str:
        """The handle that a volume of this CSI name has or would have.

        It serves PVs of the older Go driver, whose volume handle is the bare CSI name. The volume itself
        may report another handle, that finds it faster; this one keeps finding it too.
        """

    def handle_for_request(self, name: str, parameters: Mapping[str, str]) -> str:
        """The handle under which a create of that name with these parameters finds an earlier one.

        It differs from :meth:`handle_for_name` where a parameter chooses the location (region, pool …).
        """
        del parameters
        return self.handle_for_name(name)

    @abstractmethod
    def create_volume(self, request: VolumeRequest, deadline: Deadline) -> Volume:
        """Create the volume of that name, or return the one there is, unchanged, whatever its size,
        encryption or source: the caller compares these.

        Two callers with one name, in one process or two, end with one volume.

        Raises:
            AlreadyExistsError: the existing one differs in a parameter of this provider's own, from what it
                was created with.
            VolumeNotFoundError, SnapshotNotFoundError: the source does not exist (nothing was created).
            InvalidParameterError, SizeOutOfRangeError, QuotaExceededError: nothing was created.
            UnavailableError: nothing was sent. OutcomeUnknownError, DeadlineError: it may exist.
        """

    @abstractmethod
    def delete_volume(self, handle: str, deadline: Deadline) -> None:
        """Delete the volume; one that does not exist is a success.

        Raises:
            InUseError: something uses the disk; nothing was changed.
            UnavailableError: it could not be asked or deleted; call again.
        """

    @abstractmethod
    def get_volume_info(self, handle: str, deadline: Deadline) -> Volume:
        """The volume as it is now.

        Raises:
            VolumeNotFoundError: there is none. UnavailableError: the backend could not be asked.
        """

    @abstractmethod
    def volume_exists(self, handle: str, deadline: Deadline) -> bool:
        """Whether the volume exists.

        Raises:
            UnavailableError: the backend could not be asked.
        """


class VolumeExpander(ABC):
    """Can make a volume larger, attached or not."""

    @abstractmethod
    def expand_volume(self, handle: str, size_bytes: int, deadline: Deadline) -> int:
        """Make it at least ``size_bytes`` (a multiple of the step) and return its real size in bytes.

        A volume that is large enough already is left alone; none is ever made smaller.

        Raises:
            VolumeNotFoundError, QuotaExceededError: nothing was changed.
            UnavailableError, OutcomeUnknownError, DeadlineError: call again.
        """


class VolumeSnapshotter(ABC):
    """Can take snapshots, and create volumes whose source is one."""

    @abstractmethod
    def create_snapshot(self, name: str, source_handle: str, deadline: Deadline) -> Snapshot:
        """Take the snapshot of that name, or return the one there is; the caller compares its source.

        Raises:
            VolumeNotFoundError: no such source, nothing was created. QuotaExceededError: likewise.
            UnavailableError: nothing was sent. OutcomeUnknownError, DeadlineError: it may exist.
        """

    @abstractmethod
    def delete_snapshot(self, handle: str, deadline: Deadline) -> None:
        """Delete the snapshot; one that does not exist is a success. Volumes made from it are untouched.

        Raises:
            InUseError, UnavailableError: as for volumes.
        """

    @abstractmethod
    def get_snapshot(self, handle: str, deadline: Deadline) -> Snapshot:
        """The snapshot as it is now.

        Raises:
            SnapshotNotFoundError: there is none. UnavailableError: the backend could not be asked.
        """

    @abstractmethod
    def list_snapshots(
        self, source_handle: str | None, max_entries: int, token: str, deadline: Deadline
    ) -> Page[Snapshot]:
        """Snapshots in a stable order, of one source if given; ``max_entries`` 0 means no bound.

        Raises:
            InvalidTokenError: the token is not one of ours. UnavailableError: could not be asked.
        """


class VolumeCloner(ABC):
    """``create_volume`` accepts a source of kind :attr:`SourceKind.VOLUME`."""


class VolumeLister(ABC):
    """Can list the volumes this driver made."""

    @abstractmethod
    def list_volumes(self, max_entries: int, token: str, deadline: Deadline) -> Page[Volume]:
        """Volumes in a stable order; ``max_entries`` 0 means no bound.

        Raises:
            InvalidTokenError: the token is not one of ours. UnavailableError: could not be asked.
        """


class CapacityReporter(ABC):
    """Knows how much can still be created."""

    @abstractmethod
    def available_bytes(self, parameters: Mapping[str, str], deadline: Deadline) -> int:
        """Bytes available for new volumes with these parameters.

        Raises:
            UnavailableError: the backend could not be asked.
        """


class VolumeModifier(ABC):
    """Can change properties of a volume, attached or not (VolumeAttributesClass): those of
    :attr:`StorageClassRules.mutable_parameter_names`."""

    @abstractmethod
    def modify_volume(self, handle: str, parameters: Mapping[str, str], deadline: Deadline) -> None:
        """Give the volume these properties; those not named stay. ``parameters`` holds mutable ones only,
        whose values nobody has checked yet.

        A volume that has them already is left alone.

        Raises:
            InvalidParameterError: a value can't work, or not for this volume. Nothing was changed.
            VolumeNotFoundError, QuotaExceededError: nothing was changed.
            UnavailableError, OutcomeUnknownError, DeadlineError: call again.
        """


class ZonedVolumes(ABC):
    """Volumes have zones: ``create_volume`` obeys :attr:`VolumeRequest.zones`.

    It raises InvalidParameterError when no zone fits the parameters, QuotaExceededError when the backend
    can't make one in a zone now (so that the scheduler tries another). Nothing was created then.
    """


class VolumeFence(ABC):
    """Keeps a note on each disk of the node it is published to, and sees whether a machine has the disk.

    It fills :attr:`Volume.published_node_id` and :attr:`Volume.attached_to`, and attaches nothing.
    """

    @abstractmethod
    def set_published_node(self, handle: str, node_id: str, replacing: str, deadline: Deadline) -> None:
        """Note ``node_id`` (printable ASCII without spaces, at most 192 bytes; empty: remove the note).

        Readers see the note when this returns. ``replacing`` is the note that the caller saw.

        Raises:
            VolumeNotFoundError: there is no such volume.
            OutcomeUnknownError: the note is another one by now, so nothing was changed; or it may have been
                written. Call again.
            UnavailableError, DeadlineError: call again.
        """


class VolumeHealth(ABC):
    """Can tell what the backend says about the health of disks."""

    @abstractmethod
    def volume_conditions(
        self, volumes: Sequence[Volume], deadline: Deadline
    ) -> Mapping[str, VolumeCondition]:
        """The condition of each volume, by handle; one that the backend says nothing about is left out.

        Raises:
            UnavailableError: the backend could not be asked.
        """


class BackendCheck(ABC):
    """Can tell whether the backend serves this process, with the credentials and settings that it has."""

    @abstractmethod
    def check_backend(self, deadline: Deadline) -> str | None:
        """None if the backend answers, else what a person must mend: credentials, a permission, a setting.

        One cheap question that changes nothing; it is asked once a minute.

        Raises:
            UnavailableError, DeadlineError: it could not be asked, which passes by itself.
        """


class VolumeAttacher(ABC):
    """Can attach disks to PodVMs, by serial, where cloud-api-adaptor does not.

    Each worker node is an ``owner`` (any text) and sees only what it attached itself: several of them share
    a hypervisor. What is attached, to what and by whom is kept by the backend, with the machine.
    """

    @abstractmethod
    def attached_serials(self, owner: str, deadline: Deadline) -> Mapping[str, frozenset[str]]:
        """The running machines, by name, and the serials of the disks that ``owner`` attached to each.

        Raises:
            UnavailableError: the backend could not be asked.
        """

    @abstractmethod
    def attach_disk(self, disk_id: str, machine: str, owner: str, deadline: Deadline) -> None:
        """Attach the disk, under the serial :func:`providers.serial.disk_serial`; attached already is fine.

        Raises:
            VolumeNotFoundError: there is no such volume. InUseError: another machine, or another owner, has
                attached it, or the machine has a disk with that serial.
            UnavailableError: the machine is gone, or the backend could not be asked. DeadlineError.
        """

    @abstractmethod
    def detach_disk(self, serial: str, machine: str, owner: str, deadline: Deadline) -> None:
        """Detach what ``owner`` attached under that serial; not attached, or no such machine, is a success.

        Raises:
            UnavailableError: the backend could not be asked. DeadlineError: the guest has not let go of it.
        """


@dataclass(frozen=True)
class Permission:
    """One thing that the backend allows or forbids these credentials."""

    name: str
    """As the backend names it, so that it can be put into a role (``ec2:CreateVolume``)."""
    granted: bool | None
    """None: it could not be tried."""
    detail: str = ""
    """Public words about it: why it could not be tried, which call needs it."""


class BackendDiagnosis(ABC):
    """Can tell a person why the backend does not do what it should. Nothing here changes anything."""

    @abstractmethod
    def identity(self, deadline: Deadline) -> str:
        """Whom the backend takes this process for, by a public name.

        Raises:
            UnavailableError: it does not accept the credentials, there are none, or it could not be asked.
        """

    @abstractmethod
    def permissions(self, deadline: Deadline) -> tuple[Permission, ...]:
        """All that the driver needs, each tried without doing it.

        Raises:
            UnavailableError: the backend could not be asked.
        """

    @abstractmethod
    def backend_time(self, deadline: Deadline) -> float | None:
        """The backend's clock, in seconds since the epoch; None if its answers do not tell.

        Raises:
            UnavailableError: the backend could not be asked.
        """
