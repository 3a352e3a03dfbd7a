"""The node plugin's budgets, measured on the real process: ``python -m tests.bench.node``.

Start to ready, resident memory after 200 publishes, and the time of a NodePublishVolume over its socket,
fsync included, next to a baseline from the same run: the same bytes written durably by this process.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType

import grpc

from driver.direct_volumes import directory_name
from proto import csi_pb2, csi_pb2_grpc
from tests.bench.table import Row, machine, print_table
from tests.fakes.kubernetes_api import cluster_api
from tests.peers.authority import Authority

PUBLISHES = 200
READY_BUDGET_SECONDS = 0.5
MEMORY_BUDGET_MB = 55.0
PUBLISH_BUDGET_SECONDS = 0.0025

POD_UID = "11111111-2222-3333-4444-555555555555"
POD_NAMESPACE, POD_NAME = "default", "bench-0"
_VOLUMES = f"pods/{POD_UID}/volumes/kubernetes.io~csi"
_START_TIMEOUT_SECONDS = 30.0


class NodeProcess:
    """A running ``confidential-csi node`` on directories of its own; stopped at the end of the block.

    Args:
        options: further ones of the command.
        environment: further variables.
    """

    def __init__(
        self, folder: Path, *options: str, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.root = folder / "dv"
        self.root.mkdir()
        self.parent = folder / _VOLUMES
        self.parent.mkdir(parents=True)
        self.socket = folder / "csi.sock"
        self.log = folder / "log"
        self.command = [
            str(Path(sys.executable).parent / "confidential-csi"),
            "node",
            "--node-id=bench",
            f"--endpoint=unix://{self.socket}",
            f"--direct-volumes-root={self.root}",
            *options,
        ]
        self._environment = {**os.environ, **environment}

    def __enter__(self) -> NodeProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        self._process.terminate()
        self._process.wait(timeout=30)

    def start(self) -> None:
        """Start the process and wait until it answers a Probe.

        ``ready_seconds`` is how long that took, ``queued_seconds`` how much of it the process spent
        runnable, waiting for a CPU that others used.
        """
        started = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self._environment)
        try:
            self._wait_for_socket(started + _START_TIMEOUT_SECONDS)
            self._channel = grpc.insecure_channel(f"unix:{self.socket}")
            if not self.probe():
                raise RuntimeError(f"the node plugin is not ready: {self.log.read_text()}")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        self.ready_seconds = time.monotonic() - started
        self.queued_seconds = int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[1]) / 1e9
        self.stub = csi_pb2_grpc.NodeStub(self._channel)

    def kill(self) -> None:
        """SIGKILL; call :meth:`start` again."""
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def probe(self) -> bool:
        """Whether the plugin says that it is ready."""
        stub = csi_pb2_grpc.IdentityStub(self._channel)
        return stub.Probe(csi_pb2.ProbeRequest(), timeout=10).ready.value

    def target(self, number: int) -> str:
        """The target path of volume ``number``, as kubelet's."""
        return str(self.parent / f"pvc-{number}")

    def request(self, number: int) -> csi_pb2.NodePublishVolumeRequest:
        """A publish of volume ``number``."""
        modes = csi_pb2.VolumeCapability.AccessMode
        return csi_pb2.NodePublishVolumeRequest(
            volume_id=f"local:vol-{number}",
            target_path=self.target(number),
            volume_capability=csi_pb2.VolumeCapability(
                mount=csi_pb2.VolumeCapability.MountVolume(fs_type="ext4"),
                access_mode=modes(mode=modes.SINGLE_NODE_WRITER),
            ),
            volume_context={
                "cloud-volume-path": f"disk-{number}",
                "encrypt-type": "luks2",
                "kbs-key-id": f"default/key/vol-{number}",
                "cloud-provider": "local",
                "csi.storage.k8s.io/pod.namespace": POD_NAMESPACE,
                "csi.storage.k8s.io/pod.name": POD_NAME,
                "csi.storage.k8s.io/pod.uid": POD_UID,
            },
        )

    def publish(self, number: int) -> float:
        """Publish volume ``number``; the seconds that the call took."""
        request = self.request(number)
        started = time.perf_counter()
        self.stub.NodePublishVolume(request, timeout=10)
        return time.perf_counter() - started

    def record(self, number: int) -> Path:
        """The mountInfo.json of volume ``number``."""
        return self.root / directory_name(self.target(number)) / "mountInfo.json"

    def resident_mb(self) -> float:
        """Resident memory of the process, in units of 10**6 bytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024 / 1e6

    def _wait_for_socket(self, until: float) -> None:
        while True:
            with socket.socket(socket.AF_UNIX) as client:
                try:
                    client.connect(str(self.socket))
                except (FileNotFoundError, ConnectionRefusedError):
                    if time.monotonic() > until or self._process.poll() is not None:
                        raise RuntimeError(f"no node plugin: {self.log.read_text()}") from None
                    time.sleep(0.002)
                else:
                    return


@contextmanager
def guarded(folder: Path) -> Iterator[NodeProcess]:
    """A node plugin that asks a Kubernetes API (in this process) whether the pod is a peer pod, as it is."""
    node, authority = folder / "guarded", folder / "authority"
    node.mkdir()
    authority.mkdir()
    with cluster_api(Authority(authority, "cluster")) as api:
        api.add_pod(POD_NAMESPACE, POD_NAME, POD_UID, "kata-remote")
        options = (
            "--peer-pod-handlers=kata-remote",
            f"--service-account={api.credentials}",
            "--one-pod-with-volumes",
        )
        with NodeProcess(node, *options, environment=api.environment()) as process:
            yield process


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder on tmpfs, like /run, where Kata's root is on a worker."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def write_durably(folder: Path, content: bytes) -> float:
    """The baseline: temporary file, fsync, rename, fsync of the directory. Seconds taken."""
    started = time.perf_counter()
    descriptor, temporary = tempfile.mkstemp(dir=folder)
    os.write(descriptor, content)
    os.fsync(descriptor)
    os.close(descriptor)
    Path(temporary).rename(folder / "record")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)
    return time.perf_counter() - started


def main() -> int:
    """Measure, print the table, and return 1 if a budget is exceeded."""
    with temporary_folder() as folder:
        with NodeProcess(folder) as node:
            command = " ".join(node.command)
            ready, queued = node.ready_seconds, node.queued_seconds
            times = [node.publish(number) for number in range(PUBLISHES)]
            memory = node.resident_mb()
            content = node.record(0).read_bytes()
        with guarded(folder) as node:
            guarded_times = [node.publish(number) for number in range(PUBLISHES)]
            guarded_memory = node.resident_mb()
        baseline = [write_durably(folder, content) for _ in range(PUBLISHES)]
    median, bare = statistics.median(times), statistics.median(baseline)
    p95, bare_p95 = _p95(times), _p95(baseline)
    rows = [
        Row("start to ready", ready * 1e3, "ms", None),
        Row("  without waiting for a CPU", (ready - queued) * 1e3, "ms", READY_BUDGET_SECONDS * 1e3),
        Row(f"resident memory after {PUBLISHES} publishes", memory, "MB", MEMORY_BUDGET_MB),
        Row("NodePublishVolume, median", median * 1e3, "ms", PUBLISH_BUDGET_SECONDS * 1e3, bare * 1e3),
        Row("NodePublishVolume, 95th percentile", p95 * 1e3, "ms", None, bare_p95 * 1e3),
        Row("  with both guards, median", statistics.median(guarded_times) * 1e3, "ms", None, bare * 1e3),
        Row("  with both guards, resident memory", guarded_memory, "MB", MEMORY_BUDGET_MB),
        Row("baseline: the same bytes, median", bare * 1e3, "ms", None),
    ]
    print("Node plugin")
    print(f"machine   {machine()}")
    print(f"command   {command}")
    print(
        "baseline  temporary file, fsync, rename, fsync of the directory, in this process, on tmpfs as well"
    )
    print_table(rows)
    return 0 if all(row.holds() for row in rows) else 1


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


if __name__ == "__main__":
    sys.exit(main())
