"""ControllerPublish and -Unpublish: the fence that keeps two nodes from starting PodVMs with one disk.

cloud-api-adaptor attaches disks to PodVMs; nothing is attached or detached here. A publish leaves a note on
the disk, and an unpublish waits until no machine has the disk before it removes the note. So a pod that
moves to another node waits while its old PodVM lives, instead of failing when the new one starts.
"""

from __future__ import annotations

import time

import grpc

from driver.capabilities import check_capability
from driver.controller_base import ControllerBase
from driver.errors import FailedPrecondition, InvalidArgument, NotFound, Unimplemented, change_may_be_sent
from driver.mountinfo import CLOUD_PROVIDER, CLOUD_VOLUME_PATH
from driver.node_id import is_node_id
from proto import csi_pb2
from providers.deadline import Deadline
from providers.interface import Volume, VolumeFence

#: Seconds between two looks at a disk that a machine still has.
POLL_SECONDS = 2.0


class PublishRpcs(ControllerBase):
    """ControllerPublishVolume, ControllerUnpublishVolume; offered when the provider is a fence."""

    def ControllerPublishVolume(
        self, request: csi_pb2.ControllerPublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerPublishVolumeResponse:
        """Note the node on the disk, unless another node's PodVM has the disk."""
        fence = self._fence
        if not request.HasField("volume_capability"):
            raise InvalidArgument("volume_capability is missing; it is required")
        if not is_node_id(request.node_id):
            raise NotFound(f"no node of this driver has the id {request.node_id[:64]!r}")
        deadline = self._deadline(context)
        with self._locks.hold(f"publication of {request.volume_id}"):
            volume = self._volume(request.volume_id, deadline)
            check_capability(request.volume_capability, encrypted=volume.encryption is not None)
            noted = volume.published_node_id
            if noted not in ("", request.node_id) and volume.attached_to:
                raise FailedPrecondition(
                    f"volume {request.volume_id!r} is published to {noted!r}, and the machine "
                    f"{volume.attached_to!r} has its disk; it can move when that machine is gone: wait, or "
                    "delete the machine if no pod belongs to it any more"
                )
            if noted != request.node_id:
                with change_may_be_sent(f"publishing volume {request.volume_id!r}"):
                    fence.set_published_node(volume.handle, request.node_id, noted, deadline)
        return csi_pb2.ControllerPublishVolumeResponse(
            publish_context={CLOUD_VOLUME_PATH: volume.disk_id, CLOUD_PROVIDER: self._provider.name}
        )

    def ControllerUnpublishVolume(
        self, request: csi_pb2.ControllerUnpublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerUnpublishVolumeResponse:
        """Remove the note once no machine has the disk. An empty node id means whichever node."""
        fence = self._fence
        deadline = self._deadline(context)
        handle = self._ids.volume_handle(request.volume_id)
        if handle is not None:
            with self._locks.hold(f"publication of {request.volume_id}"):
                noted = self._wait_until_free(handle, request, deadline)
                if noted:
                    with change_may_be_sent(f"unpublishing volume {request.volume_id!r}"):
                        fence.set_published_node(handle, "", noted, deadline)
        return csi_pb2.ControllerUnpublishVolumeResponse()

    @property
    def _fence(self) -> VolumeFence:
        if not isinstance(self._provider, VolumeFence):
            raise Unimplemented(f"provider {self._provider.name!r} does not note where volumes are published")
        return self._provider

    def _wait_until_free(
        self, handle: str, request: csi_pb2.ControllerUnpublishVolumeRequest, deadline: Deadline
    ) -> str:
        """The note to remove; empty when there is none, or the volume is gone or published elsewhere.

        Raises:
            FailedPrecondition: a machine still has the disk as the deadline draws near.
        """
        while True:
            volume = self._find(handle, deadline)
            if volume is None or not _is_published_to(volume, request.node_id):
                return ""
            if not volume.attached_to:
                return volume.published_node_id
            if deadline.remaining() <= 2 * POLL_SECONDS:
                raise FailedPrecondition(
                    f"the machine {volume.attached_to!r} still has the disk of volume {request.volume_id!r}; "
                    "if no pod belongs to it any more, delete it"
                )
            time.sleep(POLL_SECONDS)


def _is_published_to(volume: Volume, node_id: str) -> bool:
    return bool(volume.published_node_id) and node_id in ("", volume.published_node_id)
