"""Stands in for a worker: its Node object, and the pods of the chart that the scheduler puts on it.

It does to the API server what kubelet does (heartbeats, the status of pods, restarts of containers, the end
of deleted pods, CSINode from the plugin's own answers), and runs the chart's containers as confined
processes. Of other pods it only notes that they are there: the real controllers attach their volumes.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import grpc
import requests

from proto import csi_pb2, csi_pb2_grpc
from tests.cluster.api import Api, Object, Refused
from tests.cluster.containers import NOT_TO_BE_HAD, PodSandbox, image_name, run_container
from tests.cluster.control_plane import ControlPlane
from tests.cluster.processes import STOP_SECONDS, Running

_DRIVER = "caa-csi-block.csi.confidentialcontainers.io"
_PART_OF = "confidential-csi"

#: How the API server words a refusal for want of rights.
FORBIDDEN = re.compile(r"cannot [a-z]+ resource [^ ]+ in API group [^ ]+")

_HEARTBEAT_SECONDS = 8.0
_RESTART_SECONDS = 1.0
_ANSWER_SECONDS = 5.0
#: Owner of a pod's own directories, as its fsGroup would have it.
_GROUP = 65532

_addresses = itertools.count(1)


@dataclass
class _Pod:
    """A pod of the chart that runs here."""

    sandbox: PodSandbox
    containers: list[Object]
    running: dict[str, Running] = field(default_factory=dict)
    is_reported: bool = False
    """Whether its readiness was told, since a container was last started."""
    not_before: float = 0.0
    killed_at: float | None = None
    """When those get SIGKILL that are still there, once the pod is about to end."""

    @property
    def name(self) -> str:
        name: str = self.sandbox.pod["metadata"]["name"]
        return name

    @property
    def namespace(self) -> str:
        namespace: str = self.sandbox.pod["metadata"]["namespace"]
        return namespace


class StandInWorker:
    """A worker, within a ``with`` block.

    ``claims`` are the directories of PersistentVolumeClaims that pods of the chart mount, ``arguments`` what
    replaces an argument of a container here (what the instance metadata would tell).
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        name: str,
        folder: Path,
        *,
        claims: Mapping[str, Path] | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.root = folder / name / "root"
        """The worker's own root directory, for host paths."""
        self._control_plane = control_plane
        user = control_plane.authority.issue(f"stand-in-{name}", "system:masters")
        self._api = Api(control_plane.url, str(control_plane.authority.pair.certificate), user)
        self._folder = folder / name
        self._claims = dict(claims or {})
        self._arguments = dict(arguments or {})
        self._pods: dict[str, _Pod] = {}
        self._seen: set[str] = set()
        self._forgiven: set[str] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"worker {name}", daemon=True)
        self._heartbeat_due = 0.0
        self._problem: BaseException | None = None

    def __enter__(self) -> StandInWorker:
        for path in ("var/lib/kubelet/plugins_registry", "var/lib/kubelet/pods"):
            (self.root / path).mkdir(parents=True)
        node: Object = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": self.name}}
        node["metadata"]["labels"] = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"}
        node["metadata"]["annotations"] = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
        self._api.create(node)
        csi_node: Object = {"kind": "CSINode", "apiVersion": "storage.k8s.io/v1"}
        self._api.create({**csi_node, "metadata": {"name": self.name}, "spec": {"drivers": []}})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        for pod in self._pods.values():
            for running in pod.running.values():
                running.kill()
        for kind_of_node in ("CSINode", "Node"):
            self._api.delete(kind_of_node, self.name)
        self.check()

    def crash(self, pod_name: str) -> None:
        """If the pod is here: every process of it gets SIGKILL, and it is gone, as with a lost machine."""
        with self._lock:
            for pod in [one for one in self._pods.values() if one.name == pod_name]:
                self._remove(pod)

    def check(self) -> None:
        """That it works, and no driver ended by itself.

        Raises:
            AssertionError: it ended by a problem.
        """
        assert self._problem is None, repr(self._problem)

    def log(self, pod_name: str, container: str) -> str:
        """The log of a container that runs here; empty if there is none."""
        with self._lock:  # or a pod's folder could go meanwhile
            files = [
                pod.sandbox.folder / f"{container}.log" for pod in self._pods.values() if pod.name == pod_name
            ]
            return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def forbidden(self) -> set[str]:
        """What the API server forbade containers that run here to do."""
        with self._lock:
            logs = [log for pod in self._pods.values() for log in pod.sandbox.folder.glob("*.log")]
            found = {one for log in logs for one in FORBIDDEN.findall(log.read_text(errors="replace"))}
        return found - self._forgiven

    def forgive(self) -> None:
        """Count nothing that was forbidden so far: an API server that starts knows no roles yet."""
        self._forgiven |= self.forbidden()

    def logs(self) -> str:
        """The ends of all logs, for a failed test."""
        with self._lock:
            running = [
                (pod.name, name, one) for pod in self._pods.values() for name, one in pod.running.items()
            ]
            return "\n".join(f"--- {pod}/{name}\n{one.tail()}" for pod, name, one in running)

    def _work(self) -> None:
        while not self._ended.wait(0.2):
            try:
                with self._lock:
                    self._heartbeat()
                    self._step()
            except requests.RequestException:  # the control plane is down for a while
                continue
            except Refused as refused:
                if refused.status < 500:
                    self._problem = refused
                    return
            except BaseException as problem:
                self._problem = problem
                return

    def _heartbeat(self) -> None:
        if time.monotonic() < self._heartbeat_due:
            return
        capacity = {"cpu": "64", "memory": "256Gi", "pods": "2000"}
        ready = {"type": "Ready", "status": "True", "reason": "StandIn", "lastHeartbeatTime": _now()}
        status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
        self._api.patch("Node", self.name, {"status": status}, part="status")
        self._heartbeat_due = time.monotonic() + _HEARTBEAT_SECONDS

    def _step(self) -> None:
        mine = self._api.list("Pod", fieldSelector=f"spec.nodeName={self.name}")
        for found in mine:
            with _changed_meanwhile():
                self._look_at(found)
        present = {found["metadata"]["uid"] for found in mine}
        for uid, pod in list(self._pods.items()):
            with _changed_meanwhile():
                if uid not in present:
                    self._remove(pod)
                elif pod.killed_at is None:
                    self._keep_running(pod)

    def _look_at(self, found: Object) -> None:
        uid = found["metadata"]["uid"]
        if "deletionTimestamp" in found["metadata"]:
            self._end(uid, found)
        elif uid not in self._seen:
            self._begin(uid, found)

    def _begin(self, uid: str, found: Object) -> None:
        if found["metadata"].get("labels", {}).get("app.kubernetes.io/name") != _PART_OF:
            self._seen.add(uid)
            return
        folder = self._folder / uid
        folder.mkdir(exist_ok=True)
        number, port = next(_addresses), self._control_plane.port
        sandbox = PodSandbox(
            pod=found,
            folder=folder,
            volumes={one["name"]: self._volume(found, folder, one) for one in found["spec"]["volumes"]},
            # No other cluster on this machine has this port, so nobody else's pod has this address.
            address=f"127.{port >> 8}.{port & 255}.{number % 250 + 1}",
            api_port=self._control_plane.port,
            arguments=self._arguments,
        )
        containers = [one for one in found["spec"]["containers"] if image_name(one) not in NOT_TO_BE_HAD]
        self._pods[uid] = _Pod(sandbox, containers)
        self._seen.add(uid)

    def _keep_running(self, pod: _Pod) -> None:
        if time.monotonic() < pod.not_before:
            return
        for container in pod.containers:
            name = container["name"]
            if name in pod.running and not pod.running[name].has_ended():
                continue
            pod.is_reported = False
            if name in pod.running:
                # Sidecars end when they lose their lease.
                assert name != "driver", f"the driver ended: {pod.running[name].tail()}"
                pod.not_before = time.monotonic() + _RESTART_SECONDS
            pod.running[name] = run_container(self._control_plane.programs, pod.sandbox, container)
        if not pod.is_reported and self._answers(pod):
            self._report(pod)
            pod.is_reported = True

    def _answers(self, pod: _Pod) -> bool:
        """Ready means here what the chart's liveness probe asks for: the driver answers.

        Not waited for long: the node's heartbeat must go on while containers start.
        """
        try:
            self._ask(pod)
        except grpc.RpcError:
            return False
        return True

    def _ask(self, pod: _Pod) -> None:
        with _short_path(pod.sandbox.volumes["socket"]) as folder, _channel(folder / "csi.sock") as channel:
            probe = csi_pb2_grpc.IdentityStub(channel).Probe
            probe(csi_pb2.ProbeRequest(), wait_for_ready=True, timeout=_ANSWER_SECONDS)
            if pod.sandbox.pod["metadata"]["labels"].get("app.kubernetes.io/component") == "node":
                node = csi_pb2_grpc.NodeStub(channel)
                self._register(node.NodeGetInfo(csi_pb2.NodeGetInfoRequest(), timeout=_ANSWER_SECONDS))

    def _register(self, info: csi_pb2.NodeGetInfoResponse) -> None:
        segments = dict(info.accessible_topology.segments)
        driver = {"name": _DRIVER, "nodeID": info.node_id, "topologyKeys": sorted(segments)}
        self._api.patch("Node", self.name, {"metadata": {"labels": segments}})
        self._api.patch("CSINode", self.name, {"spec": {"drivers": [driver]}})

    def _report(self, pod: _Pod) -> None:
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": _now()}
            for kind in ("Initialized", "ContainersReady", "Ready")
        ]
        status = {
            "phase": "Running",
            "startTime": _now(),
            "conditions": conditions,
            "podIP": pod.sandbox.address,
        }
        self._api.patch("Pod", pod.name, {"status": status}, pod.namespace, part="status", form="strategic")

    def _end(self, uid: str, found: Object) -> None:
        """Pods may end side by side, and the heartbeat goes on."""
        pod = self._pods.get(uid)
        if pod is None:
            self._delete(found)
        elif pod.killed_at is None:
            pod.killed_at = time.monotonic() + STOP_SECONDS
            for running in pod.running.values():
                running.terminate()
        elif time.monotonic() > pod.killed_at or not any(one.is_there() for one in pod.running.values()):
            self._remove(pod)

    def _remove(self, pod: _Pod) -> None:
        for running in pod.running.values():
            running.kill()
        self._pods.pop(pod.sandbox.pod["metadata"]["uid"], None)
        shutil.rmtree(pod.sandbox.folder, ignore_errors=True)
        self._delete(pod.sandbox.pod)

    def _delete(self, found: Object) -> None:
        metadata = found["metadata"]
        self._api.delete("Pod", metadata["name"], metadata["namespace"], gracePeriodSeconds="0")

    def _volume(self, found: Object, folder: Path, volume: Object) -> Path:
        """The directory of a pod's volume."""
        if "hostPath" in volume:
            path: Path = self.root / volume["hostPath"]["path"].lstrip("/")
            assert path.is_dir() or volume["hostPath"]["type"] == "DirectoryOrCreate", f"{path} is missing"
            path.mkdir(parents=True, exist_ok=True)
            return path
        if "persistentVolumeClaim" in volume:
            return self._claims[volume["persistentVolumeClaim"]["claimName"]]
        own: Path = folder / "volumes" / volume["name"]
        own.mkdir(parents=True, exist_ok=True)  # a step may be tried again
        if "projected" in volume:
            metadata, account = found["metadata"], found["spec"]["serviceAccountName"]
            token = self._control_plane.token(account, metadata["namespace"])
            (own / "token").write_text(token)
            (own / "namespace").write_text(metadata["namespace"])
            shutil.copyfile(self._control_plane.authority.pair.certificate, own / "ca.crt")
        else:
            assert "emptyDir" in volume, volume
        if "fsGroup" in found["spec"]["securityContext"]:
            os.chown(own, 0, _GROUP)
            own.chmod(0o2770)
        return own


@contextmanager
def _changed_meanwhile() -> Iterator[None]:
    """What was changed or deleted under our hands is looked at again in the next step."""
    try:
        yield
    except Refused as refused:
        if refused.status not in (404, 409):
            raise


@contextmanager
def _short_path(directory: Path) -> Iterator[Path]:
    """Another name for it: the path of a socket holds 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "link"
        link.symlink_to(directory)
        yield link


def _channel(socket: Path) -> grpc.Channel:
    return grpc.insecure_channel(f"unix://{socket}")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
