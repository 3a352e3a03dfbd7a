"""The controller's snapshot RPCs."""

from __future__ import annotations

import grpc

from driver.controller_base import ControllerBase
from driver.errors import Aborted, AlreadyExists, InvalidArgument, NotFound, Unimplemented, change_may_be_sent
from driver.volume_id import check_name
from proto import csi_pb2
from providers.deadline import Deadline
from providers.errors import SnapshotNotFoundError
from providers.interface import Snapshot, VolumeSnapshotter


class SnapshotRpcs(ControllerBase):
    """CreateSnapshot, DeleteSnapshot, ListSnapshots; offered when the provider is a snapshotter."""

    def CreateSnapshot(
        self, request: csi_pb2.CreateSnapshotRequest, context: grpc.ServicerContext
    ) -> csi_pb2.CreateSnapshotResponse:
        check_name(request.name)
        if request.parameters:
            raise InvalidArgument(
                f"parameter {min(request.parameters)[:64]!r}: a VolumeSnapshotClass of this driver takes none"
            )
        deadline = self._deadline(context)
        source_handle = self._ids.volume_handle(request.source_volume_id)
        if source_handle is None:
            raise NotFound(f"no volume {request.source_volume_id[:128]!r} to take a snapshot of")
        with self._locks.hold(f"snapshot {request.name}"):
            with change_may_be_sent(f"creating snapshot {request.name!r}"):
                snapshot = self._snapshotter.create_snapshot(request.name, source_handle, deadline)
            if snapshot.source_handle != source_handle and (
                snapshot.source_handle != self._reported_handle(source_handle, deadline)
            ):
                other = self._ids.format(snapshot.source_handle)
                raise AlreadyExists(f"snapshot {request.name!r} exists, and is one of volume {other!r}")
        return csi_pb2.CreateSnapshotResponse(snapshot=self._describe_snapshot(snapshot))

    def DeleteSnapshot(
        self, request: csi_pb2.DeleteSnapshotRequest, context: grpc.ServicerContext
    ) -> csi_pb2.DeleteSnapshotResponse:
        handle = self._ids.snapshot_handle(request.snapshot_id)
        if handle is not None:
            with self._locks.hold(f"snapshot {handle}"):
                self._snapshotter.delete_snapshot(handle, self._deadline(context))
        return csi_pb2.DeleteSnapshotResponse()

    def ListSnapshots(
        self, request: csi_pb2.ListSnapshotsRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ListSnapshotsResponse:
        if request.max_entries < 0:
            raise InvalidArgument(f"max_entries is {request.max_entries}; it can't be negative")
        deadline = self._deadline(context)
        source_handle = None
        if request.source_volume_id:
            source_handle = self._ids.volume_handle(request.source_volume_id)
            if source_handle is None:
                return csi_pb2.ListSnapshotsResponse()
        if request.snapshot_id:
            if request.starting_token:
                raise Aborted("starting_token: a listing by snapshot_id has one page; start without a token")
            found = self._snapshot_or_none(request.snapshot_id, deadline)
            matches = found is not None and source_handle in (None, found.source_handle)
            return self._page((found,) if found is not None and matches else (), "")
        page = self._snapshotter.list_snapshots(
            source_handle, request.max_entries, request.starting_token, deadline
        )
        return self._page(page.items, page.next_token)

    @property
    def _snapshotter(self) -> VolumeSnapshotter:
        if not isinstance(self._provider, VolumeSnapshotter):
            raise Unimplemented(f"provider {self._provider.name!r} has no snapshots")
        return self._provider

    def _snapshot_or_none(self, snapshot_id: str, deadline: Deadline) -> Snapshot | None:
        handle = self._ids.snapshot_handle(snapshot_id)
        if handle is None:
            return None
        try:
            return self._snapshotter.get_snapshot(handle, deadline)
        except SnapshotNotFoundError:
            return None

    def _reported_handle(self, handle: str, deadline: Deadline) -> str | None:
        """The handle that the volume itself reports; None when it is gone."""
        volume = self._find(handle, deadline)
        return None if volume is None else volume.handle

    def _page(self, snapshots: tuple[Snapshot, ...], next_token: str) -> csi_pb2.ListSnapshotsResponse:
        entry = csi_pb2.ListSnapshotsResponse.Entry
        return csi_pb2.ListSnapshotsResponse(
            entries=[entry(snapshot=self._describe_snapshot(snapshot)) for snapshot in snapshots],
            next_token=next_token,
        )

    def _describe_snapshot(self, snapshot: Snapshot) -> csi_pb2.Snapshot:
        described = csi_pb2.Snapshot(
            snapshot_id=self._ids.format(snapshot.handle),
            source_volume_id=self._ids.format(snapshot.source_handle),
            size_bytes=snapshot.size_bytes,
            ready_to_use=snapshot.ready,
        )
        described.creation_time.FromDatetime(snapshot.created_at)
        return described
