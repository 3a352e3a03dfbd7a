"""What stands between csi-sanity and the node plugin: the part that a container runtime plays in a cluster.

Calls are passed on byte for byte. Once a volume is published its pod's PodVM starts: Kata notes the sandbox
beside the record, cloud-api-adaptor serves the PodVM's socket, the guest mounts the volume. It is gone before
the volume is unpublished.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from driver.direct_volumes import directory_name
from proto import csi_pb2
from tests.fakes.podvm import PodVm


class Runtime:
    """Starts and stops the PodVMs of published volumes.

    Attributes:
        calls: what guests were asked, in order: method, disk id, size.
    """

    def __init__(self, direct_volumes: Path, pods: Path, disk_size: Callable[[str], int]) -> None:
        self._direct_volumes = direct_volumes
        self._pods = pods
        self._disk_size = disk_size
        self._running: dict[str, ExitStack] = {}
        self._numbers = itertools.count(1)
        self._mutex = threading.Lock()
        self.calls: list[tuple[str, str, int]] = []

    def published(self, target_path: str) -> None:
        """The pod's sandbox and container start, unless they run already."""
        with self._mutex:
            if target_path in self._running:
                return
            record = self._direct_volumes / directory_name(target_path)
            disk = json.loads((record / "mountInfo.json").read_bytes())["device"]
            sandbox = f"sandbox-{next(self._numbers)}"
            (record / sandbox).touch()
            vm = PodVm(self._disk_size, calls=self.calls)
            vm.mount(disk)
            stack = self._running[target_path] = ExitStack()
            stack.enter_context(vm.serving(self._pods, sandbox))

    def unpublishing(self, target_path: str) -> None:
        """The pod is gone."""
        with self._mutex:
            stack = self._running.pop(target_path, None)
            if stack is not None:
                stack.close()

    def stop(self) -> None:
        """All pods are gone."""
        for target_path in list(self._running):
            self.unpublishing(target_path)


class _Passing(grpc.GenericRpcHandler):
    """Hands every call to the plugin, and tells the runtime of those that a pod's life goes with."""

    def __init__(self, plugin: grpc.Channel, runtime: Runtime) -> None:
        self._plugin = plugin
        self._runtime = runtime

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = details.method
        plugin_method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._plugin.unary_unary(method)

        def run(request: bytes, context: grpc.ServicerContext) -> bytes:
            if method.endswith("/NodeUnpublishVolume"):
                self._runtime.unpublishing(csi_pb2.NodeUnpublishVolumeRequest.FromString(request).target_path)
            try:
                answer = plugin_method(request, timeout=60)
            except grpc.RpcError as error:
                assert isinstance(error, grpc.Call)
                context.abort(error.code(), error.details() or "")
            if method.endswith("/NodePublishVolume"):
                self._runtime.published(csi_pb2.NodePublishVolumeRequest.FromString(request).target_path)
            return answer

        return grpc.unary_unary_rpc_method_handler(run)


@contextmanager
def in_between(plugin: str, socket: Path, runtime: Runtime) -> Iterator[str]:
    """The plugin at the endpoint ``plugin``, with a runtime; yields the endpoint to use instead."""
    endpoint = f"unix://{socket}"
    with grpc.insecure_channel(plugin) as channel:
        server = grpc.server(ThreadPoolExecutor(8))
        server.add_generic_rpc_handlers((_Passing(channel, runtime),))
        server.add_insecure_port(endpoint)
        server.start()
        try:
            yield endpoint
        finally:
            server.stop(None).wait()
            runtime.stop()
