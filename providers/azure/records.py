"""Disks and snapshots as Azure describes them, in this provider's terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from providers.azure import handles
from providers.azure import tags as tag_keys
from providers.azure.disk_types import GIB
from providers.azure.places import Place, normalized_location
from providers.azure.sending import Json
from providers.errors import CorruptStateError
from providers.interface import ContentSource, Snapshot, SourceKind, Volume

SUCCEEDED = "Succeeded"
FAILED = "Failed"
DELETING = "Deleting"
#: A provisioning state that is none of these will change by itself.
SETTLED = frozenset({"", SUCCEEDED, FAILED, "Canceled"})


@dataclass(frozen=True)
class DiskRecord:
    """A managed disk."""

    place: Place
    name: str
    location: str
    zones: tuple[str, ...]
    """Numbers; empty for a disk that is in no zone or in all."""
    sku: str
    size_gib: int
    iops: int | None
    mbps: int | None
    encryption_set: str
    disk_state: str
    provisioning_state: str
    attached_to: str
    """Name of the virtual machine that has it; empty if none has."""
    tags: Mapping[str, str]
    facts: tag_keys.Facts

    @classmethod
    def read(cls, place: Place, document: Json) -> DiskRecord:
        """The disk that Azure described.

        Raises:
            CorruptStateError: its tags are not what this driver wrote.
        """
        properties = document.get("properties", {})
        tags = document.get("tags") or {}
        owners = [document.get("managedBy") or "", *(document.get("managedByExtended") or ())]
        return cls(
            place=place,
            name=document["name"],
            location=normalized_location(document["location"]),
            zones=tuple(document.get("zones") or ()),
            sku=(document.get("sku") or {}).get("name", ""),
            size_gib=properties.get("diskSizeGB", 0),
            iops=properties.get("diskIOPSReadWrite"),
            mbps=properties.get("diskMBpsReadWrite"),
            encryption_set=(properties.get("encryption") or {}).get("diskEncryptionSetId") or "",
            disk_state=properties.get("diskState") or "",
            provisioning_state=properties.get("provisioningState") or "",
            attached_to=next((owner.rpartition("/")[2] for owner in owners if owner), ""),
            tags=tags,
            facts=tag_keys.read(tags, tag_keys.VOLUME),
        )

    @property
    def handle(self) -> str:
        """Its one handle."""
        return str(handles.handle(self.name, self.place))

    @property
    def resource_id(self) -> str:
        """What attaches it; spelled as in the settings, as Azure's own spelling varies."""
        return self.place.resource_id("disks", self.name)

    def volume(self) -> Volume:
        """The disk as a volume."""
        size_bytes = self.size_gib * GIB
        return Volume(
            handle=self.handle,
            name=self.facts.name or self.name,
            size_bytes=size_bytes,
            created_size_bytes=self.facts.created_bytes or size_bytes,
            encryption=self.facts.encryption,
            fs_type=self.facts.fs_type,
            source=self.facts.source or self._go_source(),
            disk_id=self.resource_id,
            older_id=self.facts.name if self.facts.created_as is None else "",
            attributes={"azure-disk-name": self.name, "azure-resource-id": self.resource_id},
            zones=tuple(f"{self.location}-{number}" for number in self.zones),
            published_node_id=self.facts.node_id,
            attached_to=self.attached_to,
        )

    def _go_source(self) -> ContentSource | None:
        if self.facts.go_source is None:
            return None
        kind, name = self.facts.go_source
        prefix = handles.VOLUME_PREFIX if kind is SourceKind.VOLUME else handles.SNAPSHOT_PREFIX
        return ContentSource(kind, str(handles.handle(handles.go_name(prefix, name), self.place)))


@dataclass(frozen=True)
class SnapshotRecord:
    """A snapshot."""

    place: Place
    name: str
    size_gib: int
    provisioning_state: str
    completion_percent: float | None
    created_at: datetime
    source_handle: str
    tags: Mapping[str, str]
    facts: tag_keys.Facts

    @classmethod
    def read(cls, place: Place, document: Json) -> SnapshotRecord:
        """The snapshot that Azure described.

        Raises:
            CorruptStateError: its tags are not what this driver wrote.
        """
        properties = document.get("properties", {})
        tags = document.get("tags") or {}
        facts = tag_keys.read(tags, tag_keys.SNAPSHOT)
        source = facts.source.handle if facts.source is not None else ""
        if not source and tags.get(tag_keys.VOLUME):  # the Go driver's
            name = handles.go_name(handles.VOLUME_PREFIX, tags[tag_keys.VOLUME])
            source = str(handles.handle(name, place))
        return cls(
            place=place,
            name=document["name"],
            size_gib=properties.get("diskSizeGB", 0),
            provisioning_state=properties.get("provisioningState") or "",
            completion_percent=properties.get("completionPercent"),
            created_at=_time(properties.get("timeCreated")),
            source_handle=source,
            tags=tags,
            facts=facts,
        )

    @property
    def resource_id(self) -> str:
        """Its full ARM id."""
        return self.place.resource_id("snapshots", self.name)

    @property
    def is_made(self) -> bool:
        """Whether it is one: not what a failed creation left, or what is being deleted."""
        return self.provisioning_state not in (FAILED, DELETING)

    @property
    def ready(self) -> bool:
        """Whether a disk can be made from it: its data may still be copied in the background."""
        copied = self.completion_percent is None or self.completion_percent >= 100
        return self.provisioning_state == SUCCEEDED and copied

    def snapshot(self) -> Snapshot:
        """The snapshot in the interface's terms."""
        return Snapshot(
            handle=str(handles.handle(self.name, self.place)),
            name=self.facts.name,
            source_handle=self.source_handle,
            size_bytes=self.size_gib * GIB,
            created_at=self.created_at,
            ready=self.ready,
            encryption=self.facts.encryption,
            fs_type=self.facts.fs_type,
        )


def _time(text: object) -> datetime:
    if isinstance(text, datetime):
        return text.astimezone(UTC)
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except ValueError as error:
        raise CorruptStateError(f"Azure gave {str(text)[:40]!r} as a snapshot's time") from error
