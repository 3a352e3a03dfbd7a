"""One peer pod: its VM, the agent in it, and a container that sees the volumes where the pod mounts them."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.demo.kubernetes import Kubelet, Manifest, PersistentVolume
from tests.demo.report import Report
from tests.lab.caa import Caa, OciMount
from tests.lab.cdh_control import Cdh
from tests.lab.cdh_storage import Dialect
from tests.lab.hypervisor import Hypervisor
from tests.lab.kbs import Kbs
from tests.lab.podvm import PodVm

_AGENT = str(Path(sys.executable).parent / "confidential-csi-agent")

#: What a container runtime does with bind mounts, then the command. Arguments: source and destination of
#: each, "--", the command.
_CONTAINER = """
while [ "$1" != -- ]; do mkdir -p "$2"; mount --bind "$1" "$2"; shift 2; done
shift
exec "$@"
"""


class PeerPod:
    """A pod that runs in a VM of its own."""

    def __init__(self, vm: PodVm, sources: Mapping[str, str]) -> None:
        self.vm = vm
        self._binds = [part for destination, source in sources.items() for part in (source, destination)]

    def exec(self, *command: str, stdin: bytes = b"") -> bytes:
        """Run a command in the container, as ``kubectl exec`` would; its output."""
        argv = ["unshare", "--mount", "sh", "-ec", _CONTAINER, "container", *self._binds, "--", *command]
        return self.vm.check(argv, stdin=stdin)

    def file_system_bytes(self, path: str) -> int:
        """Size of the file system that the container sees at ``path``."""
        blocks, size = self.exec("stat", "--file-system", "--format=%b %S", path).split()
        return int(blocks) * int(size)

    def unmount_all(self) -> None:
        """What the agent does when the pod ends in order."""
        self.vm.check([_AGENT, "unmount", "--all"])


class Worker:
    """The node that the pods are scheduled to: kubelet, Kata and cloud-api-adaptor, and what is below."""

    def __init__(self, report: Report, kubelet: Kubelet, caa: Caa, hypervisor: Hypervisor, kbs: Kbs) -> None:
        self._report = report
        self.kubelet = kubelet
        self._caa = caa
        self._hypervisor = hypervisor
        self._kbs = kbs

    @contextmanager
    def run(
        self,
        pod: Manifest,
        dialect: Dialect,
        mounts: Mapping[str, PersistentVolume],
        targets: Mapping[str, str],
    ) -> Iterator[PeerPod]:
        """Start a pod whose volumes were published, in a new VM; the plug is pulled at the end.

        Args:
            mounts: path in the container to volume.
            targets: the same paths to kubelet's target paths.
        """
        sandbox_id = secrets.token_hex(32)
        name = self._caa.podvm_name(pod["metadata"]["name"], sandbox_id)
        with self._report.step(f"boot a new VM as the PodVM ({name})"):
            vm = self._hypervisor.boot(name)
        try:
            with self._report.step(f"start the data hub in it (CDH {_AGE[dialect]})"):
                Cdh(vm, self._kbs, dialect=dialect)
            with self._report.step("note the sandbox beside the records, hand over the annotation"):
                oci_mounts = [OciMount(targets[path], path) for path in mounts]
                annotation = self._caa.create_container(oci_mounts, sandbox_id=sandbox_id)
            fs_group = pod["spec"]["securityContext"]["fsGroup"]
            with self._report.step("confidential-csi-agent mount: wait for the disk, check, open, mount"):
                output = vm.check(
                    [_AGENT, "mount", "--annotation", "-"],
                    stdin=_with_fs_group(annotation, fs_group),
                    timeout=120,
                )
            mounted = json.loads(output)["volumes"]
            yield PeerPod(vm, {volume["mount_point"]: volume["source"] for volume in mounted})
        finally:
            with self._report.step(f"destroy the VM ({name})"):
                vm.destroy()


_AGE: Mapping[Dialect, str] = {"header-on-disk": "before v0.18.0", "detached-header": "since v0.18.0"}


def _with_fs_group(annotation: str, fs_group: int) -> bytes:
    """Add the pod's fsGroup, which CAA's annotation has a field for and CAA does not fill yet."""
    volumes = json.loads(annotation)
    return json.dumps(
        {name: {**volume, "fs_group": str(fs_group)} for name, volume in volumes.items()}
    ).encode()
