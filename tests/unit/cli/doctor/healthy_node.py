"""A node on which nothing is wrong, made of real parts: files, sockets, and our node plugin's process."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.doctor.catalog import CHECKS
from cli.doctor.model import Result, Verdict, run
from cli.scene import Paths, Scene
from driver.direct_volumes import DirectVolumes, directory_name
from driver.mountinfo import MountInfo
from tests.tools.driver_process import running

POD_UID = "11111111-2222-3333-4444-555555555555"
OTHER_POD = "99999999-0000-0000-0000-000000000000"
SANDBOX = "ab" * 32

#: Checks of what is on this machine.
NODE_CHECKS = tuple(
    check for check in CHECKS[: next(n for n, one in enumerate(CHECKS) if one.id == "cluster-api")]
)


@dataclass(frozen=True)
class Node:
    """The places of one node; ``paths`` is what the doctor is told of them."""

    paths: Paths

    def target(self, volume: str = "pvc-1", pod_uid: str = POD_UID) -> str:
        """A target path of kubelet's, its pod there."""
        parent = self.paths.kubelet_root / "pods" / pod_uid / "volumes" / "kubernetes.io~csi" / volume
        parent.mkdir(parents=True, exist_ok=True)
        return str(parent / "mount")

    def publish(
        self, volume: str = "pvc-1", pod_uid: str = POD_UID, *, noted: bool = True, device: str = ""
    ) -> Path:
        """A record as the driver writes it, perhaps with Kata's note of the sandbox; its directory."""
        target = self.target(volume, pod_uid)
        disk_id = device or f"vol-0{volume}"
        info = MountInfo(disk_id, "ext4", {"cloud-volume-path": disk_id})
        DirectVolumes(self.paths.direct_volumes).write(target, info)
        directory = self.paths.direct_volumes / directory_name(target)
        if noted:
            (directory / SANDBOX).touch()
        return directory

    def stale(self, *, noted: bool = False, device: str = "") -> Path:
        """A record whose pod is gone."""
        directory = self.publish("pvc-2", OTHER_POD, noted=noted, device=device)
        shutil.rmtree(self.paths.kubelet_root / "pods" / OTHER_POD)
        return directory

    def scene(self) -> Scene:
        """For the doctor; no cluster, no cloud."""
        return Scene(self.paths, cluster="no cluster in this test", cloud="no cloud in this test")

    def examine(self) -> list[Result]:
        """What the checks of a node say."""
        scene = self.scene()
        return [result for check in NODE_CHECKS for result in run(check, scene)]

    def problems(self) -> dict[str, Result]:
        """What is neither fine nor skipped, by check."""
        return {one.check: one for one in self.examine() if one.verdict in (Verdict.WARN, Verdict.FAIL)}


@contextmanager
def listening(path: Path) -> Iterator[None]:
    """Somebody accepts connections there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield


@contextmanager
def node_plugin(folder: Path) -> Iterator[Path]:
    """Our node plugin, as the process that it is; its socket."""
    root = folder / "plugin-root"
    root.mkdir()
    with running("node", folder, "--node-id", "worker-1", "--direct-volumes-root", str(root)) as driver:
        yield driver.socket


@contextmanager
def healthy_node(plugin: Path) -> Iterator[Node]:
    """A node with one published volume; on tmpfs, as Kata's directory is."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="doctor-") as folder:
        top = Path(folder)
        paths = Paths(
            plugin,
            top / "kubelet",
            top / "direct-volumes",
            top / "hypervisor.sock",
            (top / "missing.toml", top / "configuration-remote.toml"),
            top / "proc",
        )
        for directory in (paths.kubelet_root / "plugins", paths.direct_volumes, paths.proc):
            directory.mkdir(parents=True)
        paths.direct_volumes.chmod(0o755)
        os.chown(paths.direct_volumes, 0, 0)
        paths.kata_configs[1].write_text(
            f'[hypervisor.remote]\nremote_hypervisor_socket = "{paths.hypervisor_socket}"\n'
        )
        node = Node(paths)
        node.publish()
        with listening(paths.hypervisor_socket):
            yield node
