"""CSI Node service: a publish leaves a record that Kata and cloud-api-adaptor act upon, no more.

Nothing is mounted, attached or formatted on the worker, and no cloud is asked. All state is in the
direct-volume root, so a restart of this process changes no answer.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import grpc

from driver import mountinfo
from driver.call_time import seconds_left
from driver.capabilities import MountAccess, UnsupportedCapability, check_capability
from driver.direct_volumes import DirectVolumes, directory_name
from driver.disk_id import cloud_provider, disk_id
from driver.encryption import ENCRYPT_TYPE, KBS_KEY_ID, checked_encryption
from driver.errors import (
    AlreadyExists,
    DriverError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from driver.guests import Guests
from driver.locks import InFlight
from driver.mountinfo import MountInfo
from driver.node_id import node_id
from driver.one_pod import OnePodWithVolumes
from driver.publish_target import PublishTarget
from driver.sizes import SizeRange
from driver.topology import accessible_topology
from proto import csi_pb2

if TYPE_CHECKING:  # loaded only where it is used: TLS and HTTP take memory
    from driver.peer_pods import PeerPodGuard

_Rpc = csi_pb2.NodeServiceCapability.RPC

#: Seconds that a guest may take to let a file system grow, and to tell how full it is.
_LONGEST_GROWTH = 110.0
_LONGEST_STATS = 10.0
#: Seconds that the Kubernetes API may take to tell what kind of pod a volume is published for.
_LONGEST_LOOK = 10.0


class NodeService:
    """Publishes volumes on one worker.

    Methods raise :class:`~driver.errors.DriverError`, which the interceptor turns into a status; it also
    refuses requests whose id or path is empty. Of a volume in use the worker sees an empty directory; its
    file system is the guest's, which is asked about it.

    Args:
        peer_pods: refuses publishes for pods that are no peer pods; without it, nobody asks.
        one_pod: refuses publishes beside another pod's; without it, pods share the node.
    """

    def __init__(
        self,
        node_name: str,
        direct_volumes: DirectVolumes,
        guests: Guests,
        zone: str = "",
        *,
        peer_pods: PeerPodGuard | None = None,
        one_pod: OnePodWithVolumes | None = None,
    ) -> None:
        self._node_name = node_name
        self._zone = zone
        self._volumes = direct_volumes
        self._guests = guests
        self._peer_pods = peer_pods
        self._one_pod = one_pod
        self._in_flight = InFlight()

    def NodePublishVolume(
        self, request: csi_pb2.NodePublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodePublishVolumeResponse:
        """Write the record of a volume and make its target directory.

        A second publish is answered from what is on disk (CSI "NodePublishVolume", the table for drivers
        without SINGLE_NODE_MULTI_WRITER): same target and record OK, other record ALREADY_EXISTS, other
        target FAILED_PRECONDITION. So who the pod is, and what else is on the node, matters the first time.
        """
        target = self._target(request.target_path)
        directory_name(target.text)  # refuses a path too long for a record before anything is done
        info = _mount_info(request)
        with self._in_flight.hold(
            f"volume {request.volume_id}", f"disk {info.device}", f"target path {target.path}"
        ):
            self._volumes.require_ready()
            self._refuse_second_target(request.volume_id, info.device, target)
            if self._is_published(target, info):
                target.create()
                self._volumes.sync(target.text)
                return csi_pb2.NodePublishVolumeResponse()
            if self._peer_pods is not None:
                self._peer_pods.check(request.volume_context, seconds_left(context, _LONGEST_LOOK))
            with nullcontext() if self._one_pod is None else self._one_pod.hold(target.text):
                self._publish(target, info)
        return csi_pb2.NodePublishVolumeResponse()

    def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest, _context: grpc.ServicerContext
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        """Remove the record, then the target directory if it is empty.

        The record goes first and for good: the pod's containers are gone, and CAA counts every record
        that is left for the next PodVM, even when something blocks the target.
        """
        target = self._target(request.target_path)
        with self._in_flight.hold(f"volume {request.volume_id}", f"target path {target.path}"):
            self._volumes.require_ready()
            self._volumes.remove(target.text)
            target.remove()
        return csi_pb2.NodeUnpublishVolumeResponse()

    def NodeExpandVolume(
        self, request: csi_pb2.NodeExpandVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeExpandVolumeResponse:
        """Growing is the guest's work: at mount if no PodVM uses the volume yet, which is then OK here.

        kubelet expands a volume that grew while unmounted before the pod's sandbox exists, and an error
        would block the mount for good. With a sandbox, OK means that the guest said it has grown.
        """
        size = SizeRange(request.capacity_range.required_bytes, request.capacity_range.limit_bytes)
        info, sandboxes = self._published(request.volume_id, request.volume_path)
        if sandboxes:
            # Not the keys of a publish: whatever a guest does, its volume can be unpublished.
            with self._in_flight.hold(f"expansion at {request.volume_path}"):
                self._guests.grow(
                    sandboxes, info.device, size.required, seconds_left(context, _LONGEST_GROWTH)
                )
        return csi_pb2.NodeExpandVolumeResponse(capacity_bytes=size.required)

    def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        """Usage and condition from the guest; before a PodVM can use the volume, a condition alone."""
        info, sandboxes = self._published(request.volume_id, request.volume_path)
        if sandboxes:
            return self._guests.stats(sandboxes, info.device, seconds_left(context, _LONGEST_STATS))
        response = csi_pb2.NodeGetVolumeStatsResponse()
        response.volume_condition.message = "published; no PodVM uses the volume yet"
        return response

    def NodeStageVolume(
        self, request: csi_pb2.NodeStageVolumeRequest, _context: grpc.ServicerContext
    ) -> csi_pb2.NodeStageVolumeResponse:
        """Nothing is staged (and the capability not advertised): validate, for callers that stage anyway."""
        _access(request, encrypted=ENCRYPT_TYPE in request.volume_context)
        return csi_pb2.NodeStageVolumeResponse()

    def NodeUnstageVolume(
        self, _request: csi_pb2.NodeUnstageVolumeRequest, _context: grpc.ServicerContext
    ) -> csi_pb2.NodeUnstageVolumeResponse:
        """Nothing was staged: OK for any id and path."""
        return csi_pb2.NodeUnstageVolumeResponse()

    def NodeGetCapabilities(
        self, _request: csi_pb2.NodeGetCapabilitiesRequest, _context: grpc.ServicerContext
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        """Not SINGLE_NODE_MULTI_WRITER: without it every ReadWriteOnce claim keeps its mode."""
        capability = csi_pb2.NodeServiceCapability
        offered = (_Rpc.EXPAND_VOLUME, _Rpc.GET_VOLUME_STATS, _Rpc.VOLUME_CONDITION)
        return csi_pb2.NodeGetCapabilitiesResponse(
            capabilities=[capability(rpc=_Rpc(type=one)) for one in offered]
        )

    def NodeGetInfo(
        self, _request: csi_pb2.NodeGetInfoRequest, _context: grpc.ServicerContext
    ) -> csi_pb2.NodeGetInfoResponse:
        """The node's id and its PodVMs' zone; no volume limit, because disks attach to PodVMs, not to this
        worker."""
        response = csi_pb2.NodeGetInfoResponse(node_id=node_id(self._node_name), max_volumes_per_node=0)
        if self._zone:
            response.accessible_topology.CopyFrom(accessible_topology([self._zone])[0])
        return response

    def _published(self, volume_id: str, volume_path: str) -> tuple[MountInfo, tuple[str, ...]]:
        """The record of a published volume, and the sandboxes that may have it mounted.

        Raises:
            NotFound: nothing is published at that path.
            Unavailable: the record is damaged, or the root is not ready.
        """
        self._volumes.require_ready()
        try:
            info = self._volumes.read(volume_path)
            if info is None:
                raise NotFound(f"volume {volume_id!r} is not published at {volume_path!r}")
            noted = self._volumes.sandbox_ids(volume_path)
        except mountinfo.Damaged as error:
            raise Unavailable(
                f"the record of {volume_path!r} is damaged ({error}); publishing again repairs it, and "
                "starting the pod again removes what does not belong there"
            ) from error
        if noted:
            return info, noted
        others = self._volumes.sandboxes_of_other_pods(volume_path)
        return info, self._guests.that_may_use(self._volumes.published_at(volume_path), others)

    def _publish(self, target: PublishTarget, info: MountInfo) -> None:
        created = target.create()
        try:
            self._volumes.write(target.text, info)
        except BaseException:
            if created:
                with suppress(DriverError):  # the first error is the one to report
                    target.remove()
            raise

    def _target(self, target_path: str) -> PublishTarget:
        target = PublishTarget.parse(target_path)
        if target.is_below(self._volumes.root):
            raise InvalidArgument(f"target_path {target_path!r} lies in the direct-volume root; it can't")
        return target

    def _refuse_second_target(self, volume_id: str, disk: str, target: PublishTarget) -> None:
        others = [path for path in self._volumes.find(disk) if path != target.text]
        if others:
            raise FailedPrecondition(
                f"volume {volume_id!r} is published at {others[0]!r} on this node already; two pods are two "
                "VMs, and one disk can be in one of them: delete the other pod first"
            )

    def _is_published(self, target: PublishTarget, info: MountInfo) -> bool:
        try:
            existing = self._volumes.read(target.text)
        except mountinfo.Damaged:
            return False  # written anew
        if existing is None:
            return False
        if existing != info:
            raise AlreadyExists(
                f"target_path {target.text!r} is published with other arguments "
                f"({_difference(existing, info)}); unpublish it first"
            )
        return True


def _access(
    request: csi_pb2.NodePublishVolumeRequest | csi_pb2.NodeStageVolumeRequest, *, encrypted: bool
) -> MountAccess:
    if not request.HasField("volume_capability"):
        raise InvalidArgument("volume_capability is missing; it is required")
    try:
        return check_capability(request.volume_capability, encrypted=encrypted)
    except UnsupportedCapability as error:
        # Both RPCs name this code for "exceeds capabilities" (CSI 1.12).
        raise FailedPrecondition(str(error)) from error


def _mount_info(request: csi_pb2.NodePublishVolumeRequest) -> MountInfo:
    """The record that a publish asks for. Context keys that are not ours are dropped, never copied."""
    attributes = dict(request.volume_context)
    # What the controller found at the disk is newer than what the PersistentVolume was made with.
    for key in (mountinfo.CLOUD_VOLUME_PATH, mountinfo.CLOUD_PROVIDER):
        if request.publish_context.get(key):
            attributes[key] = request.publish_context[key]
    encryption = checked_encryption(attributes)
    access = _access(request, encrypted=encryption is not None)
    disk = disk_id(request.volume_id, attributes)
    metadata = {mountinfo.CLOUD_VOLUME_PATH: disk}
    if encryption is not None:
        metadata[ENCRYPT_TYPE], metadata[KBS_KEY_ID] = encryption
    # The CSI name; the id of a statically provisioned volume is all the name it has.
    metadata[mountinfo.CLOUD_VOLUME_ID] = attributes.get(mountinfo.CLOUD_VOLUME_ID) or request.volume_id
    provider = cloud_provider(request.volume_id, attributes, disk)
    if provider is not None:
        metadata[mountinfo.CLOUD_PROVIDER] = provider
    read_only = request.readonly or access.read_only
    options = (*(("ro",) if read_only else ()), *access.mount_flags)
    return MountInfo(device=disk, fs_type=access.fs_type, metadata=metadata, options=options)


def _difference(existing: MountInfo, wanted: MountInfo) -> str:
    """Names of what differs; the values may be long."""
    names = [
        name
        for name, one, other in (
            ("device", existing.device, wanted.device),
            ("fstype", existing.fs_type, wanted.fs_type),
            ("options", existing.options, wanted.options),
            ("metadata", dict(existing.metadata), dict(wanted.metadata)),
        )
        if one != other
    ]
    return ", ".join(names)
