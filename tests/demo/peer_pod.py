"""One peer pod: its VM, the agent in it, and a container that sees the volumes where the pod mounts them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.demo.kubernetes import Manifest, PersistentVolume
from tests.demo.report import Report
from tests.guest.pod import Pod
from tests.guest.sandbox import BUNDLES, FRONT_PORT, UPSTREAM, FrontSandbox, front_command
from tests.lab import caa
from tests.lab.caa import Caa
from tests.lab.cdh_storage import Dialect
from tests.lab.hypervisor import Hypervisor
from tests.lab.kbs import Kbs
from tests.peers.kata import OciMount

_CONTAINER_ID = "ledger"

#: What a container runtime does with bind mounts, then the command. Arguments: source and destination of
#: each, "--", the command.
_CONTAINER = """
while [ "$1" != -- ]; do mkdir -p "$2"; mount --bind "$1" "$2"; shift 2; done
shift
exec "$@"
"""


class PeerPod:
    """A pod that runs in a VM of its own."""

    def __init__(self, sandbox: FrontSandbox, destinations: Mapping[str, PersistentVolume]) -> None:
        self._sandbox = sandbox
        self._binds = [
            part
            for path in destinations
            for part in (f"{BUNDLES}/{_CONTAINER_ID}/{path.strip('/').replace('/', '-')}", path)
        ]

    def exec(self, *command: str, stdin: bytes = b"") -> bytes:
        """Run a command in the container, as ``kubectl exec`` would; its output."""
        argv = ["unshare", "--mount", "sh", "-ec", _CONTAINER, "container", *self._binds, "--", *command]
        return self._sandbox.pod.vm.check(argv, stdin=stdin)

    def file_system_bytes(self, path: str) -> int:
        """Size of the file system that the container sees at ``path``."""
        blocks, size = self.exec("stat", "--file-system", "--format=%b %S", path).split()
        return int(blocks) * int(size)

    def end(self) -> None:
        """What Kata's runtime calls when the pod ends in order; the agent unmounts and closes."""
        for method, answer in (
            ("RemoveContainer", self._sandbox.remove(_CONTAINER_ID)),
            ("DestroySandbox", self._sandbox.call("DestroySandbox", b"")),
        ):
            _require(method, answer.code, answer.message)


class Worker:
    """The node that the pods are scheduled to: Kata and cloud-api-adaptor, and what is below.

    Args:
        pods_root: where cloud-api-adaptor puts the sockets of its pods.
        folder: for the certificates between cloud-api-adaptor and its PodVMs.
    """

    def __init__(
        self, report: Report, caa: Caa, hypervisor: Hypervisor, kbs: Kbs, *, pods_root: Path, folder: Path
    ) -> None:
        self._report = report
        self._caa = caa
        self._hypervisor = hypervisor
        self._kbs = kbs
        self._pods_root = pods_root
        self._folder = folder

    @contextmanager
    def run(
        self,
        pod: Manifest,
        dialect: Dialect,
        mounts: Mapping[str, PersistentVolume],
        targets: Mapping[str, str],
        policy: str,
    ) -> Iterator[PeerPod]:
        """Start a pod whose volumes were published, in a new VM; the plug is pulled at the end.

        Args:
            mounts: path in the container to volume.
            targets: the same paths to kubelet's target paths.
            policy: the volume policy in the PodVM's image.
        """
        sandbox_id = secrets.token_hex(32)
        name = self._caa.podvm_name(pod["metadata"]["name"], sandbox_id)
        with self._report.step(f"boot a new VM as the PodVM ({name})"):
            vm = self._hypervisor.boot(name)
        try:
            with self._report.step(f"start the data hub in it (CDH {_AGE[dialect]})"):
                guest = Pod(vm, self._kbs, dialect)
            with self._report.step("start confidential-csi-agent proxy (mode A, TLS), and what is behind it"):
                folder = self._folder / name
                folder.mkdir()
                guest.sh("mkdir -p /etc/confidential-csi /run/sandbox")
                vm.check(["sh", "-ec", "cat >/etc/confidential-csi/volumes.toml"], stdin=policy.encode())
                vm.call("tests.guest.inside.kata:start", socket_path=UPSTREAM)
                command = list(front_command(guest, folder))
                vm.call("tests.guest.inside.agent:start", argv=command, port=FRONT_PORT)
            sandbox = FrontSandbox(guest)
            with caa.pod_socket(self._pods_root, sandbox_id, _forward(sandbox)):
                with self._report.step("note the sandbox beside the records, write the annotation"):
                    oci_mounts = [caa.OciMount(targets[path], path) for path in mounts]
                    annotation = self._caa.create_container(oci_mounts, sandbox_id=sandbox_id)
                with self._report.step(
                    "CreateContainer: the agent waits for the disk, checks, opens, mounts"
                ):
                    answer = sandbox.create(
                        _CONTAINER_ID, [OciMount(path, targets[path]) for path in mounts], annotation
                    )
                    _require("CreateContainer", answer.code, answer.message)
                yield PeerPod(sandbox, mounts)
        finally:
            with self._report.step(f"destroy the VM ({name})"):
                vm.destroy()


_AGE: Mapping[Dialect, str] = {"header-on-disk": "before v0.18.0", "detached-header": "since v0.18.0"}


def _forward(sandbox: FrontSandbox) -> Callable[[str, bytes], tuple[int, str, bytes]]:
    def call(method: str, payload: bytes) -> tuple[int, str, bytes]:
        answer = sandbox.call(method, payload)
        return answer.code, answer.message, answer.payload

    return call


def _require(method: str, code: int, message: str) -> None:
    if code != 0:
        raise RuntimeError(f"{method} failed with {code}: {message}")
