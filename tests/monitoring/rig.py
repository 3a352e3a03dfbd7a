"""The driver's real processes with metrics on, and calls that keep them busy."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import grpc

from driver.direct_volumes import directory_name
from driver.node_id import node_id
from proto import csi_pb2, csi_pb2_grpc
from tests.fakes.ec2 import Cloud, Ec2Server
from tests.fakes.ec2.rules import Bucket, Rules
from tests.fakes.memory_provider import GIB
from tests.tools.driver_process import METRICS_ON, DriverProcess, running
from tests.unit.driver.rig import ENCRYPTED, Client, connect, mount

SECRETS = {"AWS_SECRET_ACCESS_KEY": "planted/secret/access/key", "AWS_SESSION_TOKEN": "planted+session+token"}
PLANTED = (*SECRETS.values(), "planted-csi-secret")

_CREATIONS = 6


@dataclass(frozen=True)
class Fleet:
    """A controller of each provider that needs nothing but this machine, and a node plugin."""

    aws: DriverProcess
    local: DriverProcess
    node: DriverProcess
    folder: Path
    rounds: Iterator[int]

    def targets(self) -> Mapping[str, str]:
        """Job to the address of its metrics."""
        return {
            "controller-aws": self.aws.metrics_address(),
            "controller-local": self.local.metrics_address(),
            "node": self.node.metrics_address(),
        }

    def keep_busy(self) -> None:
        """One round of calls, as sidecars and kubelet make them; some fail."""
        number = next(self.rounds)
        with connect(self.aws.target()) as client, ThreadPoolExecutor(_CREATIONS) as pool:
            names = [f"pvc-{number}-{one}" for one in range(_CREATIONS)]
            created = list(
                pool.map(lambda name: client.create(name, parameters=ENCRYPTED, timeout=60), names)
            )
            self._change(client, created[0].volume_id, f"snapshot-{number}")
            client.controller.ListVolumes(csi_pb2.ListVolumesRequest(), timeout=60)
            with suppress(grpc.RpcError):
                client.delete(created[0].volume_id)
        with connect(self.local.target()) as client:
            client.create(f"pvc-{number}", required=1 << 20)
            with suppress(grpc.RpcError):
                client.create("refused", parameters={"kbs-key-ID": "x"})
        self._publish(f"pvc-{number}")

    def meet_what_nobody_planned(self) -> None:
        """A record that holds a directory, which nobody removes by himself."""
        target = f"{self.folder}/strange/mount"
        (self.folder / "records" / directory_name(target) / "foreign").mkdir(parents=True)
        unpublish = csi_pb2.NodeUnpublishVolumeRequest(volume_id="local:strange", target_path=target)
        with grpc.insecure_channel(self.node.target()) as channel, suppress(grpc.RpcError):
            csi_pb2_grpc.NodeStub(channel).NodeUnpublishVolume(unpublish, timeout=30)

    def _change(self, client: Client, volume_id: str, snapshot: str) -> None:
        client.snapshot(snapshot, volume_id)
        client.expand(volume_id, 2 * GIB)
        publish = csi_pb2.ControllerPublishVolumeRequest(
            volume_id=volume_id, node_id=node_id("worker-1"), volume_capability=mount()
        )
        publish.secrets["password"] = PLANTED[2]
        client.controller.ControllerPublishVolume(publish, timeout=60)
        get = csi_pb2.ControllerGetVolumeRequest(volume_id="aws:us-east-1/vol-0123456789abcdef0")
        with suppress(grpc.RpcError):
            client.controller.ControllerGetVolume(get, timeout=60)

    def _publish(self, name: str) -> None:
        with grpc.insecure_channel(self.node.target()) as channel:
            node = csi_pb2_grpc.NodeStub(channel)
            target = f"{self.folder}/{name}/mount"
            Path(target).parent.mkdir()
            publish = csi_pb2.NodePublishVolumeRequest(
                volume_id=f"local:{name}", target_path=target, volume_capability=mount()
            )
            publish.volume_context["cloud-volume-path"] = f"disk-{name}"
            publish.secrets["password"] = PLANTED[2]
            node.NodePublishVolume(publish, timeout=30)
            if name.endswith("0"):  # the others stay
                unpublish = csi_pb2.NodeUnpublishVolumeRequest(volume_id=f"local:{name}", target_path=target)
                node.NodeUnpublishVolume(unpublish, timeout=30)


@contextmanager
def fleet(folder: Path, *options: str) -> Iterator[Fleet]:
    """The processes, on an EC2 that throttles; ``options`` are for all three."""
    rules = Rules(buckets={"CreateVolume": Bucket(burst=2, rate=4.0)})
    disks, records = folder / "disks", folder / "records"
    folders = {role: folder / role for role in ("aws", "local", "node")}
    for directory in (disks, records, *folders.values()):
        directory.mkdir()
    with Ec2Server(Cloud(rules)) as ec2:
        settings = {
            "AWS_ENDPOINT_URL_EC2": ec2.url,
            "AWS_ACCESS_KEY_ID": "AKIAPLANTEDPLANTED00",
            "AWS_REGION": "us-east-1",
            "CONFIDENTIAL_CSI_AWS_ZONE": "us-east-1a",
            **SECRETS,
        }
        local = {"CONFIDENTIAL_CSI_LOCAL_DIRECTORY": str(disks)}
        worker = ("--node-id=worker-1", f"--direct-volumes-root={records}")
        given = (METRICS_ON, *options)
        with (
            running("controller", folders["aws"], "--provider=aws", *given, env=settings) as aws,
            running("controller", folders["local"], "--provider=local", *given, env=local) as on_disk,
            running("node", folders["node"], *worker, *given) as node,
        ):
            yield Fleet(aws, on_disk, node, folder, count())


def metrics_of(process: DriverProcess) -> str:
    """What a process shows to Prometheus."""
    with urllib.request.urlopen(f"http://{process.metrics_address()}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
    return text
