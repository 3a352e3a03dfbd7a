"""A Kubernetes control plane on loopback: etcd, API server, controller manager and scheduler, all real."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import requests

from tests.cluster.api import Api, Refused, until
from tests.cluster.certificates import Authority, KeyPair
from tests.cluster.processes import Running
from tests.cluster.programs import Programs
from tests.tools.own_folders import own_folder
from tests.tools.ports import free_port

#: Tokens in tests outlive them.
_TOKEN_SECONDS = 4 * 3600


class ControlPlane:
    """The control plane, within a ``with`` block. ``folder`` takes its state and logs."""

    parts: ClassVar[tuple[str, ...]] = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
    """What is started, in this order; stopped in the other."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        self.programs = programs
        self.folder = folder
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        """Of clients: their caches are the cluster's, for its port may have been another one's before."""
        self.authority = Authority(folder)
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._etcd_port, self._peer_port = free_port(), free_port()
        self._serving = self.authority.issue("kube-apiserver")
        self._admin = self.authority.issue("admin", "system:masters")
        self.kubeconfig = self.kubeconfig_for("admin", self._admin)
        self.api = Api(self.url, str(self.authority.pair.certificate), self._admin)
        self._commands = self._all_commands()
        self._running: dict[str, Running] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    def start(self) -> None:
        """Start what is not running, and wait until it works."""
        for name in self.parts:
            if name not in self._running:
                self._running[name] = Running(self._commands[name], self.folder / f"{name}.log")
            if name == "kube-apiserver":
                until(self._is_ready, what="the API server is ready")
                until(lambda: self.api.find("Namespace", "default"), what="it made its namespaces")

    def stop(self) -> None:
        """Stop it all; etcd's data stays for another start."""
        for name in reversed(self.parts):
            if name in self._running:
                self._running.pop(name).stop()

    def _kill(self) -> None:
        """Nobody needs its data any more."""
        while self._running:
            self._running.popitem()[1].kill()

    def kubectl(self, *arguments: str, text: str = "") -> str:
        """Run the real kubectl as the administrator; its output.

        Raises:
            AssertionError: it failed.
        """
        done = subprocess.run(
            [self.programs["kubectl"], f"--kubeconfig={self.kubeconfig}", *arguments],
            input=text,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}"
        return done.stdout + done.stderr

    def apply(self, manifests: str) -> str:
        """``kubectl apply --server-side`` of YAML or JSON."""
        return self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=manifests)

    def define_snapshots(self) -> None:
        """Have the API server know VolumeSnapshot, its content and its class."""
        self.kubectl("create", *(f"--filename={file}" for file in self.programs.snapshot_crds))
        until(self._knows_snapshots, what="snapshots can be made")

    def kubeconfig_for(self, user: str, pair: KeyPair) -> Path:
        """A kubeconfig of somebody with that certificate."""
        embedded = {
            "client-certificate-data": base64.b64encode(pair.certificate.read_bytes()).decode(),
            "client-key-data": base64.b64encode(pair.key.read_bytes()).decode(),
        }
        certificate = base64.b64encode(self.authority.pair.certificate.read_bytes()).decode()
        cluster = {"server": self.url, "certificate-authority-data": certificate}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": user, "user": embedded}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            "current-context": "lab",
        }
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        path.write_text(json.dumps(document))
        return path

    def token(self, service_account: str, namespace: str) -> str:
        """A token of a service account, as kubelet gets for a pod."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _TOKEN_SECONDS},
        }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        token: str = self.api.request("POST", path, request)["status"]["token"]
        return token

    def _is_ready(self) -> bool:
        server = self._running["kube-apiserver"]
        assert not server.has_ended(), server.tail()
        try:
            return self.api.text("/readyz") == "ok"
        except (Refused, requests.RequestException):
            return False

    def _knows_snapshots(self) -> bool:
        try:
            for kind in ("VolumeSnapshot", "VolumeSnapshotContent", "VolumeSnapshotClass"):
                self.api.list(kind)
        except Refused:
            return False
        return True

    def _all_commands(self) -> dict[str, list[str | Path]]:
        ca = self.authority.pair.certificate
        etcd = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{self._peer_port}"
        controllers = self.authority.issue("system:kube-controller-manager")
        scheduler = self.authority.issue("system:kube-scheduler")
        return {
            "etcd": [
                "etcd",
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--log-level=warn",
            ],
            "kube-apiserver": [
                self.programs["kube-apiserver"],
                f"--etcd-servers={etcd}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                f"--secure-port={self.port}",
                f"--tls-cert-file={self._serving.certificate}",
                f"--tls-private-key-file={self._serving.key}",
                f"--client-ca-file={ca}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-signing-key-file={self._serving.key}",
                f"--service-account-key-file={self._serving.key}",
                f"--kubelet-client-certificate={self._admin.certificate}",
                f"--kubelet-client-key={self._admin.key}",
                "--endpoint-reconciler-type=none",
            ],
            "kube-controller-manager": [
                self.programs["kube-controller-manager"],
                f"--kubeconfig={self.kubeconfig_for('system:kube-controller-manager', controllers)}",
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={self._serving.key}",
                f"--root-ca-file={ca}",
                "--secure-port=0",
                "--leader-elect=false",
                # Its twenty a second would be what hundreds of claims wait for.
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            ],
            "kube-scheduler": [
                self.programs["kube-scheduler"],
                f"--kubeconfig={self.kubeconfig_for('system:kube-scheduler', scheduler)}",
                "--secure-port=0",
                "--leader-elect=false",
            ],
        }


class ApiServer(ControlPlane):
    """The API server and its store, and nothing that changes objects by itself: tests write their status."""

    parts = ("etcd", "kube-apiserver")


@contextmanager
def running(programs: Programs) -> Iterator[ControlPlane]:
    """A control plane with the parts of a cluster for snapshots; its state is in memory."""
    with own_folder("cluster") as folder, ControlPlane(programs, folder) as control_plane:
        control_plane.define_snapshots()
        controller: list[str | Path] = [
            programs["snapshot-controller"],
            f"--kubeconfig={control_plane.kubeconfig}",
            "--http-endpoint=127.0.0.1:0",
        ]
        snapshots = Running(controller, control_plane.folder / "snapshot-controller.log")
        yield control_plane
        snapshots.kill()
