"""What the controller's RPCs share: the provider, ids, locks, deadlines, and how a volume is described."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from driver.call_time import seconds_left
from driver.errors import NotFound
from driver.locks import InFlight
from driver.parameters import CLOUD_PARAMETERS, CLOUD_PROVIDER
from driver.topology import accessible_topology
from driver.volume_id import Ids
from proto import csi_pb2
from providers.deadline import Deadline
from providers.errors import VolumeNotFoundError
from providers.interface import BlockVolumeProvider, ContentSource, SourceKind, Volume

#: Seconds a call may take when its caller sets no deadline.
_LONGEST_CALL = 120.0


class ControllerBase:
    """State of the controller service. Nothing in it outlives the process or is needed after a restart."""

    def __init__(self, provider: BlockVolumeProvider, installed: Iterable[str] = ()) -> None:
        self._provider = provider
        self._installed = tuple(installed)
        self._ids = Ids(provider, {*self._installed, *CLOUD_PARAMETERS})
        self._locks = InFlight()

    def _deadline(self, context: grpc.ServicerContext) -> Deadline:
        """The caller's deadline, or the driver's own; past as soon as the caller goes away."""
        return Deadline.after(seconds_left(context, _LONGEST_CALL), cancelled=lambda: not context.is_active())

    def _volume(self, volume_id: str, deadline: Deadline) -> Volume:
        """The volume with this id.

        Raises:
            NotFound: there is none.
        """
        handle = self._ids.volume_handle(volume_id)
        volume = None if handle is None else self._find(handle, deadline)
        if volume is None:
            raise NotFound(f"no volume {volume_id[:128]!r} at provider {self._provider.name!r}")
        return volume

    def _find(self, handle: str, deadline: Deadline) -> Volume | None:
        """The volume with this handle; None only when the backend was asked and has none."""
        try:
            return self._provider.get_volume_info(handle, deadline)
        except VolumeNotFoundError:
            return None

    def _describe(self, volume: Volume, volume_id: str | None = None) -> csi_pb2.Volume:
        """The volume in the specification's terms, with the part of its context that rests on it alone.

        ``volume_id`` is the id the caller knows it by, if that is not the usual one.
        """
        described = csi_pb2.Volume(
            volume_id=volume_id or self._ids.format(volume.handle),
            capacity_bytes=volume.size_bytes,
            volume_context={
                **volume.attributes,
                CLOUD_PROVIDER: self._provider.name,
                "cloud-provider": self._provider.name,
                "cloud-volume-path": volume.disk_id,
                "cloud-volume-id": volume.name,
            },
        )
        described.accessible_topology.extend(accessible_topology(volume.zones))
        if volume.source is not None:
            described.content_source.CopyFrom(self._content_source(volume.source))
        return described

    def _content_source(self, source: ContentSource) -> csi_pb2.VolumeContentSource:
        source_id = self._ids.format(source.handle)
        message = csi_pb2.VolumeContentSource()
        if source.kind is SourceKind.SNAPSHOT:
            message.snapshot.snapshot_id = source_id
        else:
            message.volume.volume_id = source_id
        return message
