"""The controller's volume RPCs: from a PVC to one raw disk at the provider, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from driver.capabilities import MountAccess, UnsupportedCapability, check_capabilities
from driver.controller_modify import ModifyRpcs
from driver.controller_publish import PublishRpcs
from driver.controller_snapshots import SnapshotRpcs
from driver.encryption import KBS_KEY_ID
from driver.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    OutOfRange,
    Unavailable,
    Unimplemented,
    change_may_be_sent,
)
from driver.parameters import VolumeSpec, parse_parameters
from driver.sizes import SizeRange, size_rules
from driver.topology import wanted_zones
from driver.volume_id import check_name
from proto import csi_pb2
from providers.deadline import Deadline
from providers.interface import (
    CapacityReporter,
    ContentSource,
    Encryption,
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

_Rpc = csi_pb2.ControllerServiceCapability.RPC


@dataclass(frozen=True)
class _Content:
    """What a new volume's content is copied from, and what that dictates."""

    size_bytes: int
    encryption: Encryption | None
    fs_type: str


class ControllerService(SnapshotRpcs, PublishRpcs, ModifyRpcs):
    """The Controller service of one provider; what it offers follows from the provider's interfaces."""

    def ControllerGetCapabilities(
        self, _request: csi_pb2.ControllerGetCapabilitiesRequest, _context: grpc.ServicerContext
    ) -> csi_pb2.ControllerGetCapabilitiesResponse:
        offered = {
            _Rpc.CREATE_DELETE_VOLUME: True,
            _Rpc.GET_VOLUME: True,
            _Rpc.LIST_VOLUMES: isinstance(self._provider, VolumeLister),
            _Rpc.GET_CAPACITY: isinstance(self._provider, CapacityReporter),
            _Rpc.EXPAND_VOLUME: isinstance(self._provider, VolumeExpander),
            _Rpc.CREATE_DELETE_SNAPSHOT: isinstance(self._provider, VolumeSnapshotter),
            _Rpc.LIST_SNAPSHOTS: isinstance(self._provider, VolumeSnapshotter),
            _Rpc.CLONE_VOLUME: isinstance(self._provider, VolumeCloner),
            _Rpc.MODIFY_VOLUME: isinstance(self._provider, VolumeModifier),
            _Rpc.PUBLISH_UNPUBLISH_VOLUME: isinstance(self._provider, VolumeFence),
            _Rpc.LIST_VOLUMES_PUBLISHED_NODES: isinstance(self._provider, VolumeFence)
            and isinstance(self._provider, VolumeLister),
            _Rpc.VOLUME_CONDITION: isinstance(self._provider, VolumeHealth),
        }
        capability = csi_pb2.ControllerServiceCapability
        return csi_pb2.ControllerGetCapabilitiesResponse(
            capabilities=[capability(rpc=_Rpc(type=rpc)) for rpc, is_offered in offered.items() if is_offered]
        )

    def CreateVolume(
        self, request: csi_pb2.CreateVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.CreateVolumeResponse:
        check_name(request.name)
        spec = self._spec(request.parameters)
        encryption = spec.encryption_of_new()
        # Of two classes that name one property, the VolumeAttributesClass wins (CSI "CreateVolume").
        parameters = {
            **spec.provider_parameters,
            **self._mutable_parameters(request.mutable_parameters),
        }
        self._provider.validate_parameters(parameters)
        fs_type = _fs_type(request.volume_capabilities, spec)
        sizes = _size_range(request.capacity_range)
        zones: tuple[str, ...] = ()
        if isinstance(self._provider, ZonedVolumes):
            zones = wanted_zones(request.accessibility_requirements)
        deadline = self._deadline(context)
        handle = self._provider.handle_for_request(request.name, parameters)
        with self._locks.hold(handle):
            # A copy is looked up first because a replay must find it even if the source is gone by now.
            # What makes creation idempotent is the provider.
            has_source = request.HasField("volume_content_source")
            existing = self._find(handle, deadline) if has_source else None
            source = None
            source_bytes = 0
            if has_source:
                source = self._source(request.volume_content_source)
                if existing is None:
                    content = self._content(source, deadline)
                    encryption = spec.encryption_of_copy(content.encryption)
                    _check_content(content, encryption, fs_type)
                    source_bytes = content.size_bytes
                else:
                    # The source may be gone; the copy itself remembers its key.
                    encryption = spec.encryption_of_copy(existing.encryption)
            if existing is not None:
                _check_matches(existing, sizes, encryption, fs_type, source, zones=zones)
            wanted = VolumeRequest(
                name=request.name,
                size_bytes=sizes.choose(
                    size_rules(self._provider, parameters, encrypted=encryption is not None), source_bytes
                ),
                encryption=encryption,
                fs_type=fs_type,
                parameters=parameters,
                source=source,
                labels=spec.labels,
                zones=zones,
            )
            with change_may_be_sent(f"creating volume {request.name!r}"):
                volume = self._provider.create_volume(wanted, deadline)
                _check_matches(volume, sizes, encryption, fs_type, source, zones=zones)
                described = self._describe(volume)
        for key, value in spec.context.items():
            described.volume_context[key] = value
        if encryption is not None:
            described.volume_context[KBS_KEY_ID] = encryption.kbs_key_id
        return csi_pb2.CreateVolumeResponse(volume=described)

    def DeleteVolume(
        self, request: csi_pb2.DeleteVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.DeleteVolumeResponse:
        handle = self._ids.volume_handle(request.volume_id)
        if handle is not None:
            with self._locks.hold(handle):
                self._provider.delete_volume(handle, self._deadline(context))
        return csi_pb2.DeleteVolumeResponse()

    def ValidateVolumeCapabilities(
        self, request: csi_pb2.ValidateVolumeCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        if not request.volume_capabilities:
            raise InvalidArgument("volume_capabilities is empty; it needs at least one capability")
        volume = self._volume(request.volume_id, self._deadline(context))
        response = csi_pb2.ValidateVolumeCapabilitiesResponse()
        try:
            accesses = check_capabilities(
                request.volume_capabilities, encrypted=volume.encryption is not None
            )
        except UnsupportedCapability as refusal:
            response.message = str(refusal)
            return response
        differing = {access.fs_type for access in accesses} - {volume.fs_type}
        if differing:
            response.message = f"the volume's file system is {volume.fs_type!r}, not {min(differing)!r}"
            return response
        if request.parameters and self._wanted_encryption(request.parameters, volume) != volume.encryption:
            response.message = "the parameters' encrypt-type and kbs-key-id are not the volume's"
            return response
        response.confirmed.volume_context.update(request.volume_context)
        response.confirmed.volume_capabilities.extend(request.volume_capabilities)
        response.confirmed.parameters.update(request.parameters)
        return response

    def ControllerGetVolume(
        self, request: csi_pb2.ControllerGetVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerGetVolumeResponse:
        deadline = self._deadline(context)
        volume = self._volume(request.volume_id, deadline)
        status = csi_pb2.ControllerGetVolumeResponse.VolumeStatus(published_node_ids=_published(volume))
        condition = self._conditions([volume], deadline).get(volume.handle)
        if condition is not None:
            status.volume_condition.CopyFrom(_condition(condition))
        return csi_pb2.ControllerGetVolumeResponse(
            volume=self._describe(volume, request.volume_id), status=status
        )

    def ListVolumes(
        self, request: csi_pb2.ListVolumesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ListVolumesResponse:
        if not isinstance(self._provider, VolumeLister):
            raise Unimplemented(f"provider {self._provider.name!r} can't list volumes")
        if request.max_entries < 0:
            raise InvalidArgument(f"max_entries is {request.max_entries}; it can't be negative")
        deadline = self._deadline(context)
        page = self._provider.list_volumes(request.max_entries, request.starting_token, deadline)
        conditions = self._conditions(page.items, deadline)
        response = csi_pb2.ListVolumesResponse(next_token=page.next_token)
        for volume in page.items:
            # By the id that its PersistentVolume has: sidecars compare ids as they are.
            entry = response.entries.add(volume=self._describe(volume, volume.older_id or None))
            entry.status.published_node_ids.extend(_published(volume))
            if volume.handle in conditions:
                entry.status.volume_condition.CopyFrom(_condition(conditions[volume.handle]))
        return response

    def GetCapacity(
        self, request: csi_pb2.GetCapacityRequest, context: grpc.ServicerContext
    ) -> csi_pb2.GetCapacityResponse:
        if not isinstance(self._provider, CapacityReporter):
            raise Unimplemented(f"provider {self._provider.name!r} does not know its capacity")
        spec = self._spec(request.parameters)
        response = csi_pb2.GetCapacityResponse()
        if request.volume_capabilities:
            try:
                check_capabilities(request.volume_capabilities, encrypted=spec.encryption is not None)
            except UnsupportedCapability:
                return response
        rules = size_rules(self._provider, spec.provider_parameters, encrypted=spec.encryption is not None)
        response.available_capacity = self._provider.available_bytes(
            spec.provider_parameters, self._deadline(context)
        )
        response.maximum_volume_size.value = rules.round_down(rules.maximum)
        response.minimum_volume_size.value = rules.round_up(rules.minimum)
        return response

    def ControllerExpandVolume(
        self, request: csi_pb2.ControllerExpandVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerExpandVolumeResponse:
        if not isinstance(self._provider, VolumeExpander):
            raise Unimplemented(f"provider {self._provider.name!r} can't expand volumes")
        sizes = _size_range(request.capacity_range)
        if not sizes.required:
            raise InvalidArgument(
                "capacity_range.required_bytes is missing; say how large the volume has to be"
            )
        deadline = self._deadline(context)
        volume = self._volume(request.volume_id, deadline)
        encrypted = volume.encryption is not None
        if request.HasField("volume_capability"):
            check_capabilities([request.volume_capability], encrypted=encrypted)
        with self._locks.hold(volume.handle):
            size = volume.size_bytes
            if 0 < sizes.limit < size:
                raise OutOfRange(
                    f"limit_bytes {sizes.limit} is below the volume's {size}; volumes are never made smaller"
                )
            if size < sizes.required:
                target = sizes.choose(size_rules(self._provider, {}, encrypted=encrypted))
                with change_may_be_sent(f"expanding volume {request.volume_id!r}"):
                    size = self._provider.expand_volume(volume.handle, target, deadline)
        return csi_pb2.ControllerExpandVolumeResponse(capacity_bytes=size, node_expansion_required=True)

    def _conditions(self, volumes: Sequence[Volume], deadline: Deadline) -> Mapping[str, VolumeCondition]:
        if not volumes or not isinstance(self._provider, VolumeHealth):
            return {}
        return self._provider.volume_conditions(volumes, deadline)

    def _spec(self, parameters: Mapping[str, str]) -> VolumeSpec:
        return parse_parameters(parameters, self._provider, self._installed)

    def _wanted_encryption(self, parameters: Mapping[str, str], volume: Volume) -> Encryption | None:
        spec = self._spec(parameters)
        return (
            spec.encryption_of_new() if volume.source is None else spec.encryption_of_copy(volume.encryption)
        )

    def _source(self, message: csi_pb2.VolumeContentSource) -> ContentSource:
        """Where the content comes from; that it exists is not known yet."""
        if message.HasField("snapshot"):
            if not isinstance(self._provider, VolumeSnapshotter):
                raise InvalidArgument(f"provider {self._provider.name!r} can't restore snapshots")
            kind, source_id = SourceKind.SNAPSHOT, message.snapshot.snapshot_id
            handle = self._ids.snapshot_handle(source_id)
        elif message.HasField("volume"):
            if not isinstance(self._provider, VolumeCloner):
                raise InvalidArgument(f"provider {self._provider.name!r} can't clone volumes")
            kind, source_id = SourceKind.VOLUME, message.volume.volume_id
            handle = self._ids.volume_handle(source_id) if source_id else None
        else:
            raise InvalidArgument("volume_content_source is neither a snapshot nor a volume")
        if not source_id:
            raise InvalidArgument(f"volume_content_source: the {kind.value}'s id is empty")
        if handle is None:
            raise NotFound(f"volume_content_source: no {kind.value} {source_id[:128]!r}")
        return ContentSource(kind, handle)

    def _content(self, source: ContentSource, deadline: Deadline) -> _Content:
        if source.kind is SourceKind.VOLUME:
            volume = self._provider.get_volume_info(source.handle, deadline)
            return _Content(volume.size_bytes, volume.encryption, volume.fs_type)
        snapshot = self._snapshotter.get_snapshot(source.handle, deadline)
        if not snapshot.ready:
            raise Unavailable(f"snapshot {snapshot.name!r} is not ready to use yet; call again")
        return _Content(snapshot.size_bytes, snapshot.encryption, snapshot.fs_type)


def _published(volume: Volume) -> list[str]:
    return [volume.published_node_id] if volume.published_node_id else []


def _condition(condition: VolumeCondition) -> csi_pb2.VolumeCondition:
    return csi_pb2.VolumeCondition(abnormal=condition.abnormal, message=condition.message)


def _size_range(message: csi_pb2.CapacityRange) -> SizeRange:
    return SizeRange(required=message.required_bytes, limit=message.limit_bytes)


def _fs_type(capabilities: Sequence[csi_pb2.VolumeCapability], spec: VolumeSpec) -> str:
    """The one file system type that all capabilities, and the deprecated parameter, ask for."""
    accesses: tuple[MountAccess, ...] = check_capabilities(
        capabilities, encrypted=spec.encryption is not None
    )
    fs_types = {access.fs_type for access in accesses}
    if len(fs_types) > 1:
        raise InvalidArgument(f"volume_capabilities ask for different file systems: {sorted(fs_types)}")
    fs_type = fs_types.pop()
    if spec.fs_type not in (None, fs_type):
        raise InvalidArgument(
            f"parameter fsType is {spec.fs_type!r:.64}, but the volume capability asks for {fs_type!r}; set "
            "csi.storage.k8s.io/fstype instead"
        )
    return fs_type


def _check_content(content: _Content, encryption: Encryption | None, fs_type: str) -> None:
    """Refuse what would not open: a copy carries its source's LUKS header and file system.

    Raises:
        InvalidArgument: encryption or file system are not the source's.
    """
    if content.encryption != encryption:
        raise InvalidArgument(
            f"the source is {_shown(content.encryption)}, and the copy would be {_shown(encryption)}; a copy "
            "carries its source's LUKS header, so use a StorageClass with the source's values"
        )
    if content.fs_type != fs_type:
        raise InvalidArgument(
            f"the source's file system is {content.fs_type!r}, not {fs_type!r}; use that one"
        )


def _check_matches(
    volume: Volume,
    sizes: SizeRange,
    encryption: Encryption | None,
    fs_type: str,
    source: ContentSource | None,
    *,
    zones: tuple[str, ...],
) -> None:
    """Refuse a volume of the request's name that is not what it describes.

    Sizes are compared as ranges, with the size at creation too: it may have been expanded since.

    Raises:
        AlreadyExists: it differs.
    """
    if not (sizes.contains(volume.size_bytes) or sizes.contains(volume.created_size_bytes)):
        difference = f"has {volume.size_bytes} bytes, not {sizes.required} to {sizes.limit or 'any'}"
    elif volume.encryption != encryption:
        difference = f"is {_shown(volume.encryption)}, not {_shown(encryption)}"
    elif volume.fs_type != fs_type:
        difference = f"is for file system {volume.fs_type!r}, not {fs_type!r}"
    elif volume.source != source:
        difference = "was made from another source"
    elif zones and volume.zones and not set(zones) & set(volume.zones):
        difference = f"is in {', '.join(volume.zones)}, not in {', '.join(zones)}"
    else:
        return
    raise AlreadyExists(f"volume {volume.name!r} exists and {difference}; use another name, or ask for that")


def _shown(encryption: Encryption | None) -> str:
    if encryption is None:
        return "unencrypted"
    return f"encrypted ({encryption.encrypt_type}, kbs-key-id {encryption.kbs_key_id})"
