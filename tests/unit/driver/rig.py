"""The driver's server on a real socket, in this process, and clients as the sidecars use them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from driver.controller import ControllerService
from driver.endpoint import Endpoint
from driver.identity import IdentityService
from driver.observation import Observer
from driver.server import CONCURRENT_CALLS, Server
from proto import csi_pb2, csi_pb2_grpc
from providers.interface import BlockVolumeProvider
from tests.fakes.memory_provider import GIB

_Mode = csi_pb2.VolumeCapability.AccessMode

ENCRYPTED = {"encrypt-type": "luks2", "kbs-key-id": "default/key/vol1"}


@dataclass(frozen=True)
class Client:
    """Stubs of one server, and shorthands for its commonest calls."""

    channel: grpc.Channel
    controller: csi_pb2_grpc.ControllerStub
    identity: csi_pb2_grpc.IdentityStub

    def create(
        self,
        name: str = "pvc-1",
        *,
        required: int = GIB,
        limit: int = 0,
        parameters: Mapping[str, str] | None = None,
        source: csi_pb2.VolumeContentSource | None = None,
        capability: csi_pb2.VolumeCapability | None = None,
        timeout: float = 60,
    ) -> csi_pb2.Volume:
        """CreateVolume; a ``required`` and ``limit`` of 0 leave out the capacity range."""
        request = csi_pb2.CreateVolumeRequest(
            name=name,
            volume_capabilities=[capability or mount()],
            parameters=parameters,
            volume_content_source=source,
        )
        if required or limit:
            request.capacity_range.required_bytes = required
            request.capacity_range.limit_bytes = limit
        return self.controller.CreateVolume(request, timeout=timeout).volume

    def delete(self, volume_id: str) -> None:
        """DeleteVolume."""
        self.controller.DeleteVolume(csi_pb2.DeleteVolumeRequest(volume_id=volume_id), timeout=60)

    def snapshot(self, name: str, source: str) -> csi_pb2.Snapshot:
        """CreateSnapshot."""
        request = csi_pb2.CreateSnapshotRequest(name=name, source_volume_id=source)
        return self.controller.CreateSnapshot(request, timeout=60).snapshot

    def delete_snapshot(self, snapshot_id: str) -> None:
        """DeleteSnapshot."""
        self.controller.DeleteSnapshot(csi_pb2.DeleteSnapshotRequest(snapshot_id=snapshot_id), timeout=60)

    def expand(self, volume_id: str, required: int, limit: int = 0) -> csi_pb2.ControllerExpandVolumeResponse:
        """ControllerExpandVolume."""
        size = csi_pb2.CapacityRange(required_bytes=required, limit_bytes=limit)
        request = csi_pb2.ControllerExpandVolumeRequest(volume_id=volume_id, capacity_range=size)
        return self.controller.ControllerExpandVolume(request, timeout=60)


@contextmanager
def connect(target: str) -> Iterator[Client]:
    """A client of the driver at ``target``."""
    with grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield Client(channel, csi_pb2_grpc.ControllerStub(channel), csi_pb2_grpc.IdentityStub(channel))


@contextmanager
def serving(
    services: Mapping[str, object],
    concurrent_calls: int = CONCURRENT_CALLS,
    observer: Observer | None = None,
) -> Iterator[Client]:
    """A server of these services, and a client of it."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = Endpoint(Path(folder) / "csi.sock")
        server = Server(endpoint, services, concurrent_calls, observer)
        server.start()
        try:
            with connect(endpoint.target) as client:
                yield client
        finally:
            server.stop(0)


@contextmanager
def controller(provider: BlockVolumeProvider, installed: tuple[str, ...] = ("memory",)) -> Iterator[Client]:
    """A controller of ``provider``, as started anew."""
    services = {
        "Identity": IdentityService(can_expand=True),
        "Controller": ControllerService(provider, installed),
    }
    with serving(services) as client:
        yield client


def mount(
    mode: csi_pb2.VolumeCapability.AccessMode.Mode.ValueType = _Mode.SINGLE_NODE_WRITER,
    fs_type: str = "",
    flags: tuple[str, ...] = (),
) -> csi_pb2.VolumeCapability:
    """A file-system capability."""
    return csi_pb2.VolumeCapability(
        mount=csi_pb2.VolumeCapability.MountVolume(fs_type=fs_type, mount_flags=flags),
        access_mode=csi_pb2.VolumeCapability.AccessMode(mode=mode),
    )


def from_snapshot(snapshot_id: str) -> csi_pb2.VolumeContentSource:
    """The content source that is a snapshot."""
    source = csi_pb2.VolumeContentSource()
    source.snapshot.snapshot_id = snapshot_id
    return source


def from_volume(volume_id: str) -> csi_pb2.VolumeContentSource:
    """The content source that is a volume."""
    source = csi_pb2.VolumeContentSource()
    source.volume.volume_id = volume_id
    return source


@dataclass
class Refusal:
    """Filled when the block of :func:`refused` ends."""

    message: str = ""


@contextmanager
def refused(code: grpc.StatusCode) -> Iterator[Refusal]:
    """The call in the block must fail with ``code`` and a message of at most 990 bytes."""
    refusal = Refusal()
    try:
        yield refusal
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        refusal.message = error.details() or ""
        assert error.code() is code, f"{error.code()}: {refusal.message}"
        assert len(refusal.message.encode()) < 990
    else:
        raise AssertionError(f"the call succeeded; expected {code}")
