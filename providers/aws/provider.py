"""The provider of AWS EBS volumes: from the driver's requests to one region's volumes and snapshots."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import boto3
from botocore.config import Config

from providers.aws import disk_types, handles
from providers.aws import tags as tag_keys
from providers.aws.calls import Ec2
from providers.aws.class_rules import REGION, ZONE, AwsClassRules, check_zone
from providers.aws.diagnosis import AwsDiagnosis, Diagnosed
from providers.aws.disk_types import GIB
from providers.aws.failures import NO_VOLUME, NoAnswer, Refused, as_provider_error
from providers.aws.handles import Handle
from providers.aws.health import conditions, refusal
from providers.aws.modifications import Change, Modifications
from providers.aws.records import SnapshotRecord, VolumeRecord
from providers.aws.region import Region
from providers.aws.settings import Settings
from providers.aws.snapshots import COMPLETED, Snapshots
from providers.aws.volumes import Volumes, check_created_as, may_exist
from providers.deadline import Deadline
from providers.errors import (
    CorruptStateError,
    InvalidParameterError,
    OutcomeUnknownError,
    SizeOutOfRangeError,
    SnapshotNotFoundError,
    VolumeNotFoundError,
)
from providers.interface import (
    BackendCheck,
    BlockVolumeProvider,
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
from providers.paging import page

_log = logging.getLogger(__name__)

_CONNECTIONS = 100
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 30

MakeClient = Callable[[str], Any]
"""A boto3 client of that region."""


def default_clients(service: str = "ec2") -> MakeClient:
    """Clients with credentials from the SDK's default chain: IRSA, pod identity, instance profile …"""
    session: Any = boto3.Session()
    # Retries are ours (``calls.py``).
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        max_pool_connections=_CONNECTIONS,
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_ANSWER_SECONDS,
        user_agent_extra="confidential-csi",
    )
    return lambda region: session.client(service, region_name=region, config=config)


def existing_regions() -> frozenset[str]:
    """Every region that the SDK knows."""
    session = boto3.Session()
    return frozenset(
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions("ec2", partition)
    )


class AwsProvider(
    AwsClassRules,
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
    AwsDiagnosis,
):
    """EBS volumes of one account, in any region."""

    def __init__(self, settings: Settings, make_client: MakeClient, regions: Iterable[str] = ()) -> None:
        """``regions`` are those, besides the configured ones, that exist: nothing else is ever asked."""
        self._settings = settings
        self._make_client = make_client
        self._existing = frozenset({settings.region, *settings.more_regions, *regions})
        self._lock = threading.Lock()
        self._regions: dict[str, _RegionParts] = {}

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Self:
        return cls(Settings.from_environment(settings), default_clients(), existing_regions())

    def validate_parameters(self, parameters: Mapping[str, str]) -> None:
        super().validate_parameters(parameters)
        region = parameters.get(REGION, self._settings.region)
        if region not in self._existing:
            raise InvalidParameterError(
                f"{REGION} {region[:40]!r} is not a region that the SDK knows; a newer one must be among the "
                "controller's settings"
            )
        if ZONE in parameters:
            check_zone(parameters[ZONE], region)

    def handle_for_name(self, name: str) -> str:
        return str(handles.of_name(self._settings.region, name))

    def handle_for_request(self, name: str, parameters: Mapping[str, str]) -> str:
        region = parameters.get(REGION, self._settings.region)
        return str(Handle(region, key=tag_keys.volume_key(name)))

    def create_volume(self, request: VolumeRequest, deadline: Deadline) -> Volume:
        self.validate_parameters(request.parameters)
        disk_type = disk_types.parse(request.parameters)
        parts = self._region(request.parameters.get(REGION, self._settings.region))
        key = tag_keys.volume_key(request.name)
        record = parts.volumes.find_by_key(key, deadline)
        if record is None:
            if request.size_bytes % GIB or not (
                self.minimum_size_bytes <= request.size_bytes <= self.maximum_size_bytes
            ):
                raise SizeOutOfRangeError(
                    f"{request.size_bytes} bytes: an EBS volume has 1 to 65536 whole GiB"
                )
            disk_type.check_size(request.size_bytes // GIB)
            zones = self._zones(parts.region.name, request)
            try:
                snapshot_id = self._source_snapshot(parts, request, deadline)
            except OutcomeUnknownError:
                # Of two calls for one clone the other ended first, and dropped the snapshot that both used.
                record = parts.volumes.find_by_key(key, deadline)
                if record is None:
                    raise
                record = parts.volumes.wait_until_usable(record, deadline)
            else:
                record = parts.volumes.create(request, disk_type, zones, snapshot_id, deadline)
        else:
            with may_exist("the volume"):
                record = parts.volumes.wait_until_usable(record, deadline)
        if request.source is not None and request.source.kind is SourceKind.VOLUME:
            with may_exist("the volume"):
                parts.snapshots.drop_temporary(key, deadline)
        check_created_as(record, disk_type, request.parameters.get(ZONE, ""))
        return _volume(parts.region.name, record)

    def delete_volume(self, handle: str, deadline: Deadline) -> None:
        parsed = self._parsed(handles.volume, handle)
        if parsed is None:
            return
        parts = self._region(parsed.region)
        record = parts.volumes.find(parsed, deadline)
        parts.volumes.delete(parsed, record, deadline)
        # A clone's creation that was given up may have left its temporary snapshot.
        key = record.tags.get(tag_keys.VOLUME_KEY, "") if record is not None else parsed.key
        source = record.facts.source if record is not None else None
        if key and (record is None or (source is not None and source.kind is SourceKind.VOLUME)):
            parts.snapshots.drop_temporary(key, deadline)

    def get_volume_info(self, handle: str, deadline: Deadline) -> Volume:
        region, record = self._record(handle, deadline)
        return _volume(region, record)

    def volume_exists(self, handle: str, deadline: Deadline) -> bool:
        try:
            self._record(handle, deadline)
        except VolumeNotFoundError:
            return False
        return True

    def expand_volume(self, handle: str, size_bytes: int, deadline: Deadline) -> int:
        region, record = self._record(handle, deadline)
        change = Change(size_gib=-(-size_bytes // GIB))
        return self._region(region).modifications.apply(record.volume_id, change, deadline) * GIB

    def modify_volume(self, handle: str, parameters: Mapping[str, str], deadline: Deadline) -> None:
        region, record = self._record(handle, deadline)
        name, iops, throughput = disk_types.parse_figures(parameters)
        change = Change(volume_type=name, iops=iops, throughput=throughput)
        self._region(region).modifications.apply(record.volume_id, change, deadline)

    def create_snapshot(self, name: str, source_handle: str, deadline: Deadline) -> Snapshot:
        parsed = self._parsed(handles.volume, source_handle)
        if parsed is None:
            raise _no_volume()
        parts = self._region(parsed.region)
        record = parts.snapshots.find(name, deadline)
        if record is None:
            source = parts.volumes.find(parsed, deadline)
            if source is None:
                raise _no_volume()
            record = parts.snapshots.take(name, source, deadline)
        return _snapshot(parts.region.name, record)

    def delete_snapshot(self, handle: str, deadline: Deadline) -> None:
        parsed = self._parsed(handles.snapshot, handle)
        if parsed is not None:
            self._region(parsed.region).snapshots.delete(parsed.object_id, deadline)

    def get_snapshot(self, handle: str, deadline: Deadline) -> Snapshot:
        region, record = self._snapshot_record(handle, deadline)
        return _snapshot(region, record)

    def list_snapshots(
        self, source_handle: str | None, max_entries: int, token: str, deadline: Deadline
    ) -> Page[Snapshot]:
        deadline.check()
        filters: dict[str, str] = {}
        regions = self._listed_regions()
        if source_handle is not None:
            parsed = self._parsed(handles.volume, source_handle)
            if parsed is None:
                regions = []
            else:
                regions = [self._region(parsed.region)]
                filters = (
                    {"volume-id": parsed.object_id}
                    if parsed.object_id
                    else {f"tag:{tag_keys.VOLUME_KEY}": parsed.key}
                )
        found = {
            f"{parts.region.name}/{record.snapshot_id}": (parts.region.name, record)
            for parts in regions
            for record in parts.region.all_snapshots(filters, deadline)
        }

        def load(handle: str) -> Snapshot | None:
            return _unless_corrupt(lambda: _snapshot(*found[handle]))

        return page(lambda text: handles.snapshot(text) is not None, found, load, max_entries, token)

    def list_volumes(self, max_entries: int, token: str, deadline: Deadline) -> Page[Volume]:
        deadline.check()
        found = {
            f"{parts.region.name}/{record.volume_id}": (parts.region.name, record)
            for parts in self._listed_regions()
            for record in parts.region.all_volumes(deadline)
        }

        def load(handle: str) -> Volume | None:
            return _unless_corrupt(lambda: _volume(*found[handle]))

        return page(lambda text: handles.volume(text) is not None, found, load, max_entries, token)

    def set_published_node(self, handle: str, node_id: str, replacing: str, deadline: Deadline) -> None:
        region, record = self._record(handle, deadline)
        noted = record.facts.node_id
        if noted == node_id:
            return
        if noted != replacing:
            raise OutcomeUnknownError(f"the volume is published to {noted!r} by now; call again")
        ec2 = self._region(region).region.ec2
        tag = {"Key": tag_keys.NODE, "Value": node_id or replacing}
        # With its value given, DeleteTags leaves another value alone.
        action = "create_tags" if node_id else "delete_tags"
        try:
            ec2.change(action, deadline, repeatable=True, Resources=[record.volume_id], Tags=[tag])
        except NoAnswer as error:
            raise OutcomeUnknownError(f"{action}: {error}; it may have been done, call again") from error
        except Refused as error:
            if error.code in NO_VOLUME:
                raise _no_volume() from error
            raise as_provider_error(action, error) from error
        with may_exist("the note"):
            while self._record(handle, deadline)[1].facts.node_id != node_id:
                pass  # not seen yet; the questions pace themselves

    def volume_conditions(
        self, volumes: Sequence[Volume], deadline: Deadline
    ) -> Mapping[str, VolumeCondition]:
        ids: dict[str, list[str]] = {}
        for volume in volumes:
            parsed = self._parsed(handles.volume, volume.handle)
            if parsed is not None and parsed.object_id:
                ids.setdefault(parsed.region, []).append(parsed.object_id)
        return {
            f"{region}/{volume_id}": condition
            for region, wanted in ids.items()
            for volume_id, condition in conditions(self._region(region).region.ec2, wanted, deadline).items()
        }

    def check_backend(self, deadline: Deadline) -> str | None:
        return refusal(self._region(self._settings.region).region.ec2, deadline)

    def _diagnosed(self) -> Diagnosed:
        region = self._settings.region
        return Diagnosed(
            self._region(region).region.ec2,
            lambda: Ec2(region, default_clients("sts")(region)),
            self._settings.zone or f"{region}a",
        )

    def _parsed(self, parse: Callable[[str], Handle | None], handle: str) -> Handle | None:
        """The handle, if its region exists: another one would have a host asked that nobody knows."""
        parsed = parse(handle)
        return parsed if parsed is not None and parsed.region in self._existing else None

    def _record(self, handle: str, deadline: Deadline) -> tuple[str, VolumeRecord]:
        deadline.check()
        parsed = self._parsed(handles.volume, handle)
        record = None if parsed is None else self._region(parsed.region).volumes.find(parsed, deadline)
        if parsed is None or record is None:
            raise _no_volume()
        return parsed.region, record

    def _snapshot_record(self, handle: str, deadline: Deadline) -> tuple[str, SnapshotRecord]:
        deadline.check()
        parsed = self._parsed(handles.snapshot, handle)
        record = None
        if parsed is not None:
            record = self._region(parsed.region).region.snapshots_by_id.get(parsed.object_id, deadline)
        if parsed is None or record is None:
            raise SnapshotNotFoundError("EC2 says that there is no such snapshot")
        return parsed.region, record

    def _source_snapshot(self, parts: _RegionParts, request: VolumeRequest, deadline: Deadline) -> str | None:
        """The snapshot that the volume starts with, ready for it."""
        source = request.source
        if source is None:
            return None
        region = parts.region.name
        if source.kind is SourceKind.SNAPSHOT:
            found_in, snapshot = self._snapshot_record(source.handle, deadline)
            _check_source(source, found_in, region, snapshot.size_gib, request)
            return parts.snapshots.wait_until_completed(snapshot, deadline).snapshot_id
        key = tag_keys.volume_key(request.name)
        try:
            found_in, volume = self._record(source.handle, deadline)
            _check_source(source, found_in, region, volume.size_gib, request)
        except (VolumeNotFoundError, SizeOutOfRangeError):
            parts.snapshots.drop_temporary(key, deadline)  # of an attempt when it could still be cloned
            raise
        return parts.snapshots.temporary(key, volume, deadline).snapshot_id

    def _zones(self, region: str, request: VolumeRequest) -> list[str]:
        chosen = request.parameters.get(ZONE, "")
        zones = [zone for zone in request.zones if zone.startswith(region)]
        if request.zones and not zones:
            raise InvalidParameterError(
                f"no zone of {', '.join(request.zones)[:200]} is in the region {region!r}; set {REGION}"
            )
        if not chosen and not zones:
            chosen = self._settings.zone if self._settings.zone.startswith(region) else ""
            if not chosen:
                raise InvalidParameterError(
                    f"no zone is known for the volume; set {ZONE}, or the nodes' --zone, or a default zone"
                )
        if chosen and zones and chosen not in zones:
            raise InvalidParameterError(
                f"{ZONE} is {chosen}, and the pod can only run in {', '.join(zones)[:200]}; leave {ZONE} out"
            )
        return [chosen] if chosen else zones

    def _listed_regions(self) -> list[_RegionParts]:
        names = dict.fromkeys([self._settings.region, *self._settings.more_regions])
        return [self._region(name) for name in names]

    def _region(self, name: str) -> _RegionParts:
        with self._lock:
            if name not in self._regions:
                self._regions[name] = _RegionParts(Region(Ec2(name, self._make_client(name)), self._settings))
            return self._regions[name]


class _RegionParts:
    """A region, and what works on it."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.volumes = Volumes(region)
        self.snapshots = Snapshots(region)
        self.modifications = Modifications(region)


def _check_source(
    source: ContentSource, found_in: str, region: str, size_gib: int, request: VolumeRequest
) -> None:
    if found_in != region:
        raise InvalidParameterError(
            f"the {source.kind.value} is in {found_in} and the volume would be in {region}; set {REGION}"
        )
    if size_gib * GIB > request.size_bytes:
        raise SizeOutOfRangeError(
            f"the source has {size_gib} GiB, more than the {request.size_bytes // GIB} of the new volume"
        )


def _volume(region: str, record: VolumeRecord) -> Volume:
    facts = record.facts
    size = record.size_gib * GIB
    return Volume(
        handle=f"{region}/{record.volume_id}",
        name=facts.name or record.volume_id,
        size_bytes=size,
        created_size_bytes=facts.created_bytes or size,
        encryption=facts.encryption,
        fs_type=facts.fs_type,
        source=facts.source,
        disk_id=record.volume_id,
        older_id=facts.key if facts.key and tag_keys.FORMAT not in record.tags else "",
        attributes={"ebs-volume-id": record.volume_id, "availability-zone": record.zone},
        zones=(record.zone,) if record.zone else (),
        published_node_id=facts.node_id,
        attached_to=record.attached_to,
    )


def _snapshot(region: str, record: SnapshotRecord) -> Snapshot:
    facts = record.facts
    return Snapshot(
        handle=f"{region}/{record.snapshot_id}",
        name=facts.name or record.snapshot_id,
        source_handle=f"{region}/{record.volume_id}",
        size_bytes=record.size_gib * GIB,
        created_at=record.started_at,
        ready=record.state == COMPLETED,
        encryption=facts.encryption,
        fs_type=facts.fs_type,
    )


def _unless_corrupt(load: Callable[[], Item]) -> Item | None:
    # One object that a person must look at doesn't hide the others; asking for it by handle reports it.
    try:
        return load()
    except CorruptStateError as error:
        _log.warning("left out of a listing: %s", error)
        return None


def _no_volume() -> VolumeNotFoundError:
    return VolumeNotFoundError("EC2 says that there is no such volume")
