"""``make demo``: a claim becomes an encrypted volume that outlives its pod, in real VMs, with proof.

Real: the driver's three processes and their sockets, the VMs (QEMU through libvirt), the agent, cryptsetup,
dm-crypt, ext4. Played by this program: Kubernetes, cloud-api-adaptor, the data hub and the key broker.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from tests.demo.kubernetes import ControlPlane, Kubelet, Manifest, PersistentVolume, load_manifest
from tests.demo.peer_pod import PeerPod, Worker
from tests.demo.report import Report
from tests.demo.scan import contains, files_changed_since, process_leaks, spellings
from tests.lab.caa import Caa
from tests.lab.hypervisor import Hypervisor
from tests.lab.kbs import Kbs
from tests.tools.driver_process import METRICS_ON, DriverProcess, attaching, running
from tests.tools.prometheus import scraping

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_POOL = "volumes"
_MIB = 2**20
_GROWN_BYTES = 128 * _MIB
_GROWN_ONLINE_BYTES = 192 * _MIB
_FILE = "/data/ledger.txt"
_COPY = "/restored/ledger.txt"
_ROLES = ("controller", "node")
_CALLS_METRIC = "confidential_csi_rpc_duration_seconds_count"
#: What the story makes of them.
_CALLS = {
    "Controller/CreateVolume": 2,
    "Controller/CreateSnapshot": 1,
    "Controller/DeleteVolume": 2,
    "Node/NodePublishVolume": 4,
    "Node/NodeUnpublishVolume": 4,
}
_SCRAPE_SECONDS = 60.0
#: contracts of Kata and cloud-api-adaptor: all that mountInfo.json may hold.
_MOUNT_INFO_KEYS = {"volume-type", "device", "fstype", "metadata", "options"}
_METADATA_KEYS = {"cloud-volume-path", "cloud-volume-id", "cloud-provider", "encrypt-type", "kbs-key-id"}


class Demo:
    """The story, chapter by chapter."""

    def __init__(self, report: Report, stack: ExitStack) -> None:
        self._report = report
        folder = _temporary_folder(stack, "/tmp")
        # Kata's directory is on tmpfs, so are this one and kubelet's. Short, as the encoded path has a limit.
        run = _temporary_folder(stack, "/dev/shm")
        self._disks = folder / "disks"
        self._keys = folder / "key-broker"
        self._direct_volumes = run / "direct-volumes"
        pods = run / "pods"
        for directory in (self._disks, self._keys, self._direct_volumes, pods):
            directory.mkdir()
        self._began = time.time()
        self._storage_class = load_manifest(_EXAMPLES / "storageclass.yaml")
        self._claim = load_manifest(_EXAMPLES / "pvc.yaml")
        self._pod = load_manifest(_EXAMPLES / "pod.yaml")
        self._policy = (_EXAMPLES / "volumes.toml").read_text()
        self._key = secrets.token_bytes(32)
        self._new_key = secrets.token_bytes(32)
        self._line = f"only the guest may read this: {secrets.token_hex(16)}\n".encode()

        report.title("Set up: one worker, its driver, a key in the key broker")
        with report.step("start libvirt, make a storage pool"):
            hypervisor = stack.enter_context(Hypervisor())
            hypervisor.make_pool(_POOL, self._disks)
        with report.step("start confidential-csi controller, node and attach-libvirt"):
            settings = {"LIBVIRT_URI": hypervisor.uri, "LIBVIRT_POOL": _POOL}
            worker = ("--node-id", "worker-1", "--direct-volumes-root", str(self._direct_volumes))
            self._plugins: tuple[DriverProcess, ...] = (
                stack.enter_context(
                    running("controller", folder, METRICS_ON, "--provider", "libvirt", env=settings)
                ),
                stack.enter_context(running("node", folder, METRICS_ON, *worker, "--pods-root", str(pods))),
            )
            attacher = stack.enter_context(attaching(folder, *worker, env=settings))
            self._processes = [plugin.process.pid for plugin in self._plugins] + [attacher.pid]
        with report.step("start Prometheus, which scrapes the driver's metrics"):
            targets = {role: one.metrics_address() for role, one in zip(_ROLES, self._plugins, strict=True)}
            self._prometheus = stack.enter_context(scraping(folder, targets))
        self._control_plane = ControlPlane(self._plugins[0].socket)
        self._kbs = Kbs(self._keys)
        self._key_id = self._storage_class["parameters"]["kbs-key-id"]
        with report.step(f"put 32 random bytes into the key broker as {self._key_id}"):
            self._kbs.put(self._key_id, self._key)
        caa = Caa(self._direct_volumes)
        self._kubelet = Kubelet(self._plugins[1].socket, run / "kubelet")
        self._worker = Worker(report, caa, hypervisor, self._kbs, pods_root=pods, folder=folder)

    def run(self) -> None:
        """All chapters, in order."""
        volume = self._provision()
        self._first_pod(volume)
        self._rotate_and_second_pod(volume)
        snapshot_id, restored = self._grow_and_snapshot(volume)
        self._third_pod(volume, restored)
        self._delete([volume, restored], snapshot_id)
        self._compare_metrics()

    def _provision(self) -> PersistentVolume:
        self._report.title("A StorageClass and a claim (examples/) become a raw disk")
        with self._report.step("CreateVolume"):
            volume = self._control_plane.provision(self._storage_class, self._claim)
        self._report.show(
            f"volume {volume.volume_handle}, {volume.capacity_bytes // _MIB} MiB\n"
            f"attributes of the PV: {json.dumps(dict(volume.attributes))}"
        )
        return volume

    def _first_pod(self, volume: PersistentVolume) -> None:
        self._report.title("First pod: the disk is initialized in the guest, and a file written")
        uid = str(uuid.uuid4())
        targets = self._publish(uid, {"/data": volume})
        self._check_mount_info()
        with self._worker.run(self._pod, "detached-header", {"/data": volume}, targets, self._policy) as pod:
            with self._report.step(f"write {_FILE} (4 MiB of one line), sync"):
                pod.exec(
                    *("sh", "-ec", 'yes "$(cat)" | head -c 4194304 > "$0"; sync "$0"', _FILE),
                    stdin=self._line,
                )
            owner = pod.exec("stat", "--format=%g %a", "/data").decode().strip()
            self._small_bytes = pod.file_system_bytes("/data")
            self._report.show(
                f"group and mode of /data: {owner}; size in the guest: {self._small_bytes // _MIB} MiB"
            )
            group = self._pod["spec"]["securityContext"]["fsGroup"]
            self._report.verdict("fsGroup (from the policy) is applied", owner == f"{group} 2775", owner)
        self._unpublish(volume, targets["/data"])

    def _rotate_and_second_pod(self, volume: PersistentVolume) -> None:
        self._report.title("A new key; second pod, a new VM, an older data hub: the file is still there")
        previous = f"{self._key_id}-previous"
        with self._report.step(f"key broker: the old key to {previous}, a new one to {self._key_id}"):
            self._kbs.put(previous, self._key)
            self._kbs.put(self._key_id, self._new_key)
        named = f'key = "{self._key_id}"'
        policy = self._policy.replace(named, f'{named}\nprevious-key = "{previous}"')
        targets = self._publish(str(uuid.uuid4()), {"/data": volume})
        mounts = {"/data": volume}
        with self._worker.run(self._pod, "header-on-disk", mounts, targets, policy) as pod:
            with self._report.step(f"read {_FILE}"):
                content = pod.exec("cat", _FILE)
            self._verdict_of_content("data survived a new VM and a new key (CDH before v0.18.0)", content)
        self._unpublish(volume, targets["/data"])
        self._kbs.remove(previous)
        (disk,) = (file for file in self._disks.iterdir() if file.suffix == ".raw")
        old, new = (_opens(disk, key) for key in (self._key, self._new_key))
        self._report.verdict(
            "after rotation the new key opens the disk, the old one does not",
            new and not old,
            f"cryptsetup with the new key: {new}, with the old one: {old}",
        )

    def _grow_and_snapshot(self, volume: PersistentVolume) -> tuple[str, PersistentVolume]:
        self._report.title("Snapshot it, restore the snapshot, grow the original")
        with self._report.step("CreateSnapshot"):
            snapshot = self._control_plane.snapshot(volume)
        with self._report.step("CreateVolume from the snapshot"):
            restored = self._control_plane.provision(self._storage_class, self._claim, snapshot.snapshot_id)
        with self._report.step(f"ControllerExpandVolume to {_GROWN_BYTES // _MIB} MiB"):
            expanded = self._control_plane.expand(volume, _GROWN_BYTES)
        self._report.show(
            f"capacity {expanded.capacity_bytes // _MIB} MiB, "
            f"node expansion required: {expanded.node_expansion_required}"
        )
        return snapshot.snapshot_id, restored

    def _third_pod(self, volume: PersistentVolume, restored: PersistentVolume) -> None:
        self._report.title("Third pod: both volumes in one VM, the original grown in the guest")
        mounts = {"/data": volume, "/restored": restored}
        targets = self._publish(str(uuid.uuid4()), mounts)
        with self._report.step("NodeExpandVolume before the sandbox exists: OK, the guest grows at mount"):
            self._kubelet.expand(volume, targets["/data"], _GROWN_BYTES)
        policy = f'{self._policy}\n[volumes."/restored"]\nkey = "{self._key_id}"\nformat = "never"\n'
        with self._worker.run(self._pod, "detached-header", mounts, targets, policy) as pod:
            with self._report.step(f"read {_FILE} and {_COPY}"):
                content, copy = pod.exec("cat", _FILE), pod.exec("cat", _COPY)
            self._verdict_of_content("data survived a new VM (CDH since v0.18.0)", content)
            self._verdict_of_content("a restored snapshot holds the same data", copy)
            grown = pod.file_system_bytes("/data")
            self._report.verdict(
                "capacity grew inside the guest at the mount",
                self._small_bytes + (_GROWN_BYTES - volume.capacity_bytes) * 0.9 <= grown < _GROWN_BYTES,
                f"{self._small_bytes // _MIB} MiB, then {grown // _MIB} MiB",
            )
            self._grow_in_use(volume, targets["/data"], pod, grown)
            self._show_usage(targets["/data"], volume, pod)
            self._search_for_plaintext()
            self._search_for_key()
            with self._report.step("RemoveContainer, DestroySandbox: the agent unmounts and closes"):
                pod.end()
        for path, one in mounts.items():
            self._unpublish(one, targets[path])

    def _grow_in_use(self, volume: PersistentVolume, target: str, pod: PeerPod, before: int) -> None:
        with self._report.step(f"ControllerExpandVolume to {_GROWN_ONLINE_BYTES // _MIB} MiB while it runs"):
            self._control_plane.expand(volume, _GROWN_ONLINE_BYTES)
        with self._report.step("NodeExpandVolume: the agent grows mapping and file system"):
            self._kubelet.expand(volume, target, _GROWN_ONLINE_BYTES)
        after = pod.file_system_bytes("/data")
        self._report.verdict(
            "a volume in use had grown when Kubernetes was told so",
            before + (_GROWN_ONLINE_BYTES - _GROWN_BYTES) * 0.9 <= after < _GROWN_ONLINE_BYTES,
            f"{before // _MIB} MiB, then {after // _MIB} MiB",
        )

    def _show_usage(self, target: str, volume: PersistentVolume, pod: PeerPod) -> None:
        with self._report.step("NodeGetVolumeStats"):
            stats = self._kubelet.stats(volume, target)
        used, inodes = stats.usage
        self._report.show(
            f"{used.used // _MIB} of {used.total // _MIB} MiB used, {inodes.used} of {inodes.total} inodes; "
            f"condition: {stats.volume_condition.message}"
        )
        total = pod.file_system_bytes("/data")
        self._report.verdict(
            "usage is what the container sees, and the volume is well",
            used.total == total and used.used >= 4 * _MIB and not stats.volume_condition.abnormal,
            f"{used.total} bytes in Kubernetes, {total} in the container",
        )

    def _delete(self, volumes: Iterable[PersistentVolume], snapshot_id: str) -> None:
        self._report.title("Delete everything")
        with self._report.step("DeleteVolume, DeleteSnapshot"):
            for volume in volumes:
                self._control_plane.delete(volume)
            self._control_plane.delete_snapshot(snapshot_id)
        left = [str(path) for path in self._disks.rglob("*") if path.is_file()]
        left += [str(path) for path in self._direct_volumes.iterdir() if path.is_dir()]
        self._report.verdict(
            "nothing is left of what was deleted", not left, ", ".join(left) or "no disk, no record"
        )

    def _compare_metrics(self) -> None:
        with self._report.step("ask Prometheus what it has counted"):
            counted: dict[str, int] = {}
            give_up = time.monotonic() + _SCRAPE_SECONDS
            while counted != _CALLS and time.monotonic() < give_up:
                found = self._prometheus.query(f'{_CALLS_METRIC}{{code="OK",method=~"{"|".join(_CALLS)}"}}')
                counted = {one["metric"]["method"]: int(float(one["value"][1])) for one in found}
                time.sleep(0.1)
        self._report.verdict(
            "metrics in a real Prometheus count what was done",
            counted == _CALLS,
            ", ".join(f"{method.partition('/')[2]} {count}" for method, count in sorted(counted.items())),
        )

    def _publish(self, pod_uid: str, mounts: dict[str, PersistentVolume]) -> dict[str, str]:
        with self._report.step("NodePublishVolume"):
            return {path: self._kubelet.publish(self._pod, pod_uid, one) for path, one in mounts.items()}

    def _unpublish(self, volume: PersistentVolume, target: str) -> None:
        with self._report.step("NodeUnpublishVolume"):
            self._kubelet.unpublish(volume, target)

    def _check_mount_info(self) -> None:
        (file,) = self._direct_volumes.glob("*/mountInfo.json")
        text = file.read_text()
        self._report.show(f"mountInfo.json:\n{json.dumps(json.loads(text), indent=2)}")
        info: Manifest = json.loads(text)
        metadata = info["metadata"]
        self._report.verdict(
            "mountInfo.json holds the contract's keys only",
            set(info) == _MOUNT_INFO_KEYS
            and set(metadata) <= _METADATA_KEYS
            and all(isinstance(value, str) for value in metadata.values()),
            ", ".join(sorted(metadata)),
        )

    def _verdict_of_content(self, claim: str, content: bytes) -> None:
        expected = (self._line * (4 * _MIB // len(self._line) + 1))[: 4 * _MIB]
        seen = "4 MiB, each byte as written" if content == expected else f"{len(content)} other bytes"
        self._report.verdict(claim, content == expected, seen)

    def _search_for_plaintext(self) -> None:
        images = [path for path in self._disks.rglob("*") if path.is_file()]
        with self._report.step(f"search {len(images)} files of the disk folder for the plaintext"):
            found = [str(image) for image in images if contains(image, [self._line.strip()])]
        self._report.verdict(
            "no plaintext on any disk or snapshot",
            not found,
            ", ".join(found) or f"{len(images)} files searched",
        )

    def _search_for_key(self) -> None:
        needles = [*spellings(self._key), *spellings(self._new_key)]
        with self._report.step("search every file changed since the start, and every process, for the key"):
            searched = 0
            found = process_leaks(needles, self._processes)
            for file in files_changed_since(self._began, [self._keys]):
                try:
                    searched += 1
                    if contains(file, needles):
                        found.append(str(file))
                except OSError:  # gone meanwhile
                    continue
        self._report.verdict(
            "no key, old or new, outside the guest and the key broker",
            not found,
            ", ".join(found) or f"{searched} files searched",
        )


def _opens(disk: Path, key: bytes) -> bool:
    """Whether the header that stands on the disk opens with the key."""
    command = ["cryptsetup", "open", "--test-passphrase", "--key-file", "-", str(disk)]
    return subprocess.run(command, input=key, capture_output=True, check=False).returncode == 0


def _temporary_folder(stack: ExitStack, parent: str) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="demo-", dir=parent)))


def main() -> int:
    """Run the demo; 0 when every line of the table holds."""
    if os.geteuid() != 0:
        print("make demo needs root: it boots VMs through a libvirt of its own", file=sys.stderr)
        return 1
    report = Report()
    with ExitStack() as stack:
        try:
            Demo(report, stack).run()
        except Exception:
            traceback.print_exc()
            report.verdict("the demo ran to its end", False, "see the traceback above")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
