"""The provider of Azure managed disks: from the driver's requests to disks and snapshots."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from azure.core.credentials import TokenCredential
from azure.core.pipeline.transport import HttpTransport
from azure.identity import DefaultAzureCredential

from providers.azure import disk_types, handles, resources
from providers.azure import tags as tag_keys
from providers.azure.class_rules import LOCATION, RESOURCE_GROUP, SUBSCRIPTION, AzureClassRules
from providers.azure.copies import Snapshots
from providers.azure.diagnosis import AzureDiagnosis, Diagnosed
from providers.azure.disk_types import GIB, SKUS, DiskType
from providers.azure.health import condition, refusal
from providers.azure.places import Place, labels_of, normalized_location
from providers.azure.records import DELETING, FAILED, DiskRecord, SnapshotRecord
from providers.azure.sending import Json
from providers.azure.settings import MORE_RESOURCE_GROUPS, Settings
from providers.azure.volumes import Volumes, check_created_as
from providers.deadline import Deadline
from providers.errors import (
    InvalidParameterError,
    OutcomeUnknownError,
    ProviderError,
    SizeOutOfRangeError,
    SnapshotNotFoundError,
    UnavailableError,
    VolumeNotFoundError,
)
from providers.interface import (
    BackendCheck,
    BlockVolumeProvider,
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
from providers.paging import page

#: A node's topology label: ``westeurope-1``, or a fault domain's number if its machine is in no zone.
_ZONE = re.compile(r"([a-z0-9]+)-([1-9])", re.ASCII)
_FAULT_DOMAIN = re.compile(r"[0-9]{1,2}", re.ASCII)

#: From so many volumes on, one listing tells more cheaply about their health.
_MANY = 4


class AzureProvider(
    AzureClassRules,
    BlockVolumeProvider,
    VolumeExpander,
    VolumeSnapshotter,
    VolumeCloner,
    VolumeLister,
    VolumeModifier,
    ZonedVolumes,
    VolumeFence,
    VolumeHealth,
    BackendCheck,
    AzureDiagnosis,
):
    """Managed disks in the resource groups of ``settings``."""

    def __init__(
        self,
        settings: Settings,
        credential: TokenCredential,
        transport: Callable[[], HttpTransport[Any, Any]] | None = None,
    ) -> None:
        self._settings = settings
        self._credential = credential
        self._labels = labels_of(settings.places)
        self._places = {place.folded: place for place in settings.places}
        self._subscriptions = resources.Subscriptions(settings, credential, transport)
        self._disks = resources.disks(self._subscriptions)
        self._snapshot_resources = resources.snapshots(self._subscriptions)
        self._volumes = Volumes(self._disks)
        self._snapshots = Snapshots(self._snapshot_resources)

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        return cls(Settings.from_environment(settings), DefaultAzureCredential())

    def validate_parameters(self, parameters: Mapping[str, str]) -> None:
        super().validate_parameters(parameters)
        self._place(parameters)

    def handle_for_name(self, name: str) -> str:
        return str(handles.handle(handles.volume_name(name), self._settings.place))

    def handle_for_request(self, name: str, parameters: Mapping[str, str]) -> str:
        return str(handles.handle(handles.volume_name(name), self._place(parameters)))

    def create_volume(self, request: VolumeRequest, deadline: Deadline) -> Volume:
        self.validate_parameters(request.parameters)
        deadline.check()
        disk_type = DiskType.parse(request.parameters)
        place = self._place(request.parameters)
        record = self._volumes.existing(place, request, deadline)
        if record is not None and record.provisioning_state == FAILED:
            record = self._volumes.repair(record, deadline)
        if record is None:
            if request.size_bytes % GIB:
                raise SizeOutOfRangeError(f"{request.size_bytes} bytes are not a whole number of GiB")
            sku = disk_type.sku or disk_types.DEFAULT_SKU
            disk_type.check_size(sku, request.size_bytes // GIB)
            source_id, source_location = self._source(request, deadline)
            location, zones = self._location(request, sku, source_location)
            try:
                record = self._volumes.create(
                    place,
                    request,
                    disk_type,
                    location=location,
                    zones=zones,
                    source_id=source_id,
                    deadline=deadline,
                )
            except UnavailableError:
                self._source(request, deadline)  # the source may be what Azure did not find
                raise
        check_created_as(record, disk_type, normalized_location(request.parameters.get(LOCATION, "")))
        return record.volume()

    def delete_volume(self, handle: str, deadline: Deadline) -> None:
        record = self._find_volume(handle, deadline)
        if record is not None:
            self._volumes.delete(record, deadline)

    def check_backend(self, deadline: Deadline) -> str | None:
        found = (refusal(self._subscriptions.arm(place), place, deadline) for place in self._settings.places)
        return next(filter(None, found), None)

    def get_volume_info(self, handle: str, deadline: Deadline) -> Volume:
        return self._volume(handle, deadline).volume()

    def volume_exists(self, handle: str, deadline: Deadline) -> bool:
        record = self._find_volume(handle, deadline)
        return record is not None and record.provisioning_state != DELETING

    def expand_volume(self, handle: str, size_bytes: int, deadline: Deadline) -> int:
        record = self._volume(handle, deadline)
        size_gib = -(-size_bytes // GIB)
        if record.size_gib < size_gib:
            if record.sku in SKUS:
                DiskType(None, None, None, None).check_size(record.sku, size_gib)
            record = self._change(record, "expanding", {"properties": {"diskSizeGB": size_gib}}, deadline)
        return record.size_gib * GIB

    def modify_volume(self, handle: str, parameters: Mapping[str, str], deadline: Deadline) -> None:
        wanted = DiskType.parse(parameters)
        record = self._volume(handle, deadline)
        sku = wanted.sku or record.sku
        if sku in SKUS:
            wanted.check_performance(sku)
            wanted.check_size(sku, record.size_gib)
        body: Json = {"sku": {"name": sku}} if sku != record.sku else {}
        properties = {
            name: value
            for name, value, now in (
                ("diskIOPSReadWrite", wanted.iops, record.iops),
                ("diskMBpsReadWrite", wanted.mbps, record.mbps),
            )
            if value is not None and value != now
        }
        if properties:
            body["properties"] = properties
        if body:
            self._change(record, "modifying", body, deadline)

    def create_snapshot(self, name: str, source_handle: str, deadline: Deadline) -> Snapshot:
        for place in self._settings.places:
            existing = self._snapshots.existing(place, name, deadline)
            if existing is not None:
                return existing.snapshot()
        source = self._settled_volume(source_handle, deadline)
        return self._snapshots.create(name, source, deadline).snapshot()

    def delete_snapshot(self, handle: str, deadline: Deadline) -> None:
        record = self._find_snapshot(handle, deadline)
        if record is not None:
            self._snapshots.delete(record, deadline)

    def get_snapshot(self, handle: str, deadline: Deadline) -> Snapshot:
        return self._snapshot(handle, deadline).snapshot()

    def list_snapshots(
        self, source_handle: str | None, max_entries: int, token: str, deadline: Deadline
    ) -> Page[Snapshot]:
        found = {
            snapshot.handle: snapshot
            for place in self._settings.places
            for snapshot in (
                record.snapshot()
                for record in self._snapshot_resources.list(place, deadline)
                if record.is_made
            )
            if source_handle in (None, snapshot.source_handle)
        }
        return page(lambda text: handles.snapshot(text) is not None, found, found.get, max_entries, token)

    def list_volumes(self, max_entries: int, token: str, deadline: Deadline) -> Page[Volume]:
        found = {
            record.handle: record.volume()
            for place in self._settings.places
            for record in self._disks.list(place, deadline)
            if record.provisioning_state != DELETING
        }
        return page(lambda text: handles.volume(text) is not None, found, found.get, max_entries, token)

    def set_published_node(self, handle: str, node_id: str, replacing: str, deadline: Deadline) -> None:
        record = self._volume(handle, deadline)
        if record.facts.node_id == node_id:
            return
        if record.facts.node_id != replacing:
            raise OutcomeUnknownError(f"the disk {record.name} was published by another call; call again")
        tags = {key: value for key, value in record.tags.items() if key != tag_keys.NODE}
        if node_id:
            tags[tag_keys.NODE] = node_id
        self._change(record, "noting the node on", {"tags": tags}, deadline)

    def volume_conditions(
        self, volumes: Sequence[Volume], deadline: Deadline
    ) -> Mapping[str, VolumeCondition]:
        wanted = [volume.handle for volume in volumes]
        if len(wanted) >= _MANY:
            records = [
                record for place in self._settings.places for record in self._disks.list(place, deadline)
            ]
        else:
            found = [self._find_volume(handle, deadline) for handle in wanted]
            records = [record for record in found if record is not None]
        return {record.handle: condition(record) for record in records if record.handle in wanted}

    def _diagnosed(self) -> Diagnosed:
        places = [(place, self._subscriptions.arm(place)) for place in self._settings.places]
        return Diagnosed(self._credential, self._settings.endpoint, places)

    def _find_volume(self, handle: str, deadline: Deadline) -> DiskRecord | None:
        deadline.check()
        parsed = handles.volume(handle)
        if parsed is None or parsed.name.lower().startswith(handles.SNAPSHOT_PREFIX):
            return None
        return self._disks.find(self._labeled(parsed.label), parsed.name, deadline)

    def _volume(self, handle: str, deadline: Deadline) -> DiskRecord:
        record = self._find_volume(handle, deadline)
        if record is None or record.provisioning_state == DELETING:
            raise _no_volume()
        return record

    def _settled_volume(self, handle: str, deadline: Deadline) -> DiskRecord:
        """The volume once nothing is being done to it: before that Azure copies nothing from it."""
        record = self._disks.settled(self._volume(handle, deadline), deadline)
        if record is None:
            raise _no_volume()
        return record

    def _find_snapshot(self, handle: str, deadline: Deadline) -> SnapshotRecord | None:
        deadline.check()
        parsed = handles.snapshot(handle)
        if parsed is None:
            return None
        return self._snapshot_resources.find(self._labeled(parsed.label), parsed.name, deadline)

    def _snapshot(self, handle: str, deadline: Deadline) -> SnapshotRecord:
        record = self._find_snapshot(handle, deadline)
        if record is None or not record.is_made:
            raise SnapshotNotFoundError("Azure has no such snapshot")
        return record

    def _change(self, record: DiskRecord, action: str, body: Json, deadline: Deadline) -> DiskRecord:
        changed = self._volumes.change(record, action, body, deadline)
        if changed is None:
            raise _no_volume()
        return changed

    def _labeled(self, label: str) -> Place:
        """The resource group with this label.

        Raises:
            UnavailableError: this controller knows none; whether the disk exists can't be told.
        """
        if label not in self._labels:
            raise UnavailableError(
                f"the volume is in the resource group {label!r}, which this controller does not know; "
                f"add it to {MORE_RESOURCE_GROUPS}"
            )
        return self._labels[label]

    def _place(self, parameters: Mapping[str, str]) -> Place:
        usual = self._settings.place
        asked = Place(
            parameters.get(SUBSCRIPTION, usual.subscription), parameters.get(RESOURCE_GROUP, usual.group)
        )
        if asked.folded not in self._places:
            raise InvalidParameterError(
                f"{SUBSCRIPTION} {asked.subscription[:40]!r}, {RESOURCE_GROUP} {asked.group[:90]!r}: not a "
                f"resource group of this controller; add it to {MORE_RESOURCE_GROUPS} (docs/azure.md)"
            )
        return self._places[asked.folded]

    def _source(self, request: VolumeRequest, deadline: Deadline) -> tuple[str, str]:
        """ARM id and location of what is copied; both empty for a blank disk."""
        if request.source is None:
            return "", ""
        if request.source.kind is SourceKind.VOLUME:
            disk = self._settled_volume(request.source.handle, deadline)
            _check_source_fits(disk.size_gib, request)
            return disk.resource_id, disk.location
        snapshot = self._snapshot(request.source.handle, deadline)
        if not snapshot.ready:
            percent = f"{snapshot.completion_percent or 0:.0f} %"
            raise UnavailableError(
                f"the snapshot {snapshot.name} is still being copied, {percent} are done; call again"
            )
        _check_source_fits(snapshot.size_gib, request)
        return snapshot.resource_id, ""

    def _location(
        self, request: VolumeRequest, sku: str, source_location: str
    ) -> tuple[str, tuple[str, ...]]:
        """Region and zone numbers of a new disk, the best first; none for one in no zone or in all."""
        asked = normalized_location(request.parameters.get(LOCATION, ""))
        location = asked or source_location or self._settings.location
        numbers: list[str] = []
        outside_zones = not request.zones
        for zone in request.zones:
            form = _ZONE.fullmatch(zone)
            if form is None:
                outside_zones = outside_zones or _FAULT_DOMAIN.fullmatch(zone) is not None
            elif form[1] == (location or form[1]):
                location = form[1]
                numbers.append(form[2])
        if not location:
            raise InvalidParameterError(
                f"the region is not known: set {LOCATION} in the StorageClass, or "
                "CONFIDENTIAL_CSI_AZURE_LOCATION for the controller"
            )
        if SKUS[sku].zone_redundant:
            return location, ()
        if numbers:
            return location, tuple(dict.fromkeys(numbers))
        if not outside_zones:
            raise InvalidParameterError(
                f"no zone of {location} is among {', '.join(request.zones)[:200]}; allow one, or choose "
                f"another {LOCATION}"
            )
        usual = location == self._settings.location and not request.zones and self._settings.zone
        return location, (usual,) if usual else ()


def _check_source_fits(size_gib: int, request: VolumeRequest) -> None:
    if size_gib * GIB > request.size_bytes:
        raise SizeOutOfRangeError(
            f"the source has {size_gib} GiB, more than the {request.size_bytes // GIB} of the new volume; "
            "ask for more"
        )


def _no_volume() -> ProviderError:
    return VolumeNotFoundError("Azure has no such volume")
