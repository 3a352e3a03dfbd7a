"""A worker node: the real kubelet with containerd and runc, in namespaces of its own.

A peer pod's runtime class is here served by runc: containers run on the worker, and no PodVM is made. All
that happens before Kata is the same.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from tests.cluster.api import Object, until
from tests.cluster.cgroups import own_group
from tests.cluster.control_plane import ControlPlane
from tests.cluster.namespaces import CommandFailed, Inside, Namespaces
from tests.cluster.oci import Image, layer_of_files, write_archive
from tests.cluster.processes import Running

PEER_POD_HANDLER = "kata-remote"
BUSYBOX = "confidential-csi.test/busybox:1"

#: The API server's address for pods. The network is the worker's own, so it stands for the real one.
_SERVICE = "10.96.0.1"
_PODS = ipaddress.ip_network("10.88.0.0/24")
_ADDRESS = "10.88.1.1"
_CONTAINERD = "/run/containerd/containerd.sock"
#: Its port without TLS, for figures.
_FIGURES_PORT = 10255

#: Sleeps until SIGTERM; without a handler, it would not reach the first process of a container.
_SLEEP = "trap 'exit 0' TERM; busybox sleep 1000000000 & wait"

_CONTAINERD_SETTINGS = """\
version = 2
root = "{folder}/scratch/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Lower scores need a capability that may be missing.
  restrict_oom_score_adj = true
  # Its profile would be loaded into the machine's kernel.
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{handler}]
    runtime_type = "io.containerd.runc.v2"
"""


class Worker:
    """A node that is ready, within a ``with`` block.

    Args:
        images: archives of images, besides busybox, that its pods use.
        services: what else pods reach: address and port, by their name for it, to a port of this machine's
            loopback.
    """

    def __init__(
        self, control_plane: ControlPlane, images: Sequence[Path], services: Mapping[str, int] | None = None
    ) -> None:
        self.name = "worker-1"
        self._control_plane = control_plane
        self._images = images
        self._services = {f"{_SERVICE}:443": control_plane.port, **(services or {})}
        self._ends = ExitStack()

    def __enter__(self) -> Worker:
        with self._ends:
            # Removed last, when nothing runs in it.
            self._cgroup = self._ends.enter_context(own_group())
            kubelet = self._control_plane.programs["kubelet"]
            addresses = {_ADDRESS, *(service.partition(":")[0] for service in self._services)}
            self._inside = self._ends.enter_context(Namespaces([kubelet], sorted(addresses)))
            self.folder = self._inside.folder
            self._connect()
            self._start_containerd()
            self._kubelet = self._start_kubelet()
            self.wait_until_ready()
            self._ends = self._ends.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    def outside(self, path: str) -> Path:
        """A file below the worker's ``/run`` or ``/var``, as others find it."""
        return self._inside.outside(path)

    def run(self, *arguments: str | Path) -> str:
        """Run a program on the worker, as its root; its standard output.

        Raises:
            CommandFailed: its exit code is not 0.
        """
        return self._inside.run(*arguments)

    def restart_kubelet(self) -> None:
        """SIGTERM to kubelet, and another one; containers go on."""
        with self.without_kubelet():
            pass

    @contextmanager
    def without_kubelet(self) -> Iterator[None]:
        """Within the block kubelet does not run; containers do."""
        self._kubelet.terminate()
        yield
        self._kubelet = self._start_kubelet()
        # Its lease is young, so the node stays ready all the time: another sign is needed.
        until(lambda: _answers(lambda: self._figures("/healthz")), what="kubelet works")

    def wait_until_ready(self) -> None:
        """Wait for kubelet's word that pods can be started."""
        until(self._is_ready, what=f"the node is ready; {self._kubelet.log} says more")

    def figures(self) -> dict[str, float]:
        """kubelet's metrics about volumes, by their names with labels."""
        lines = self._figures("/metrics").splitlines()
        volumes = (line.rpartition(" ") for line in lines if line.startswith("kubelet_volume_stats_"))
        return {name: float(value) for name, _, value in volumes}

    def sandbox_id(self, pod_uid: str) -> str:
        """The id of a pod's sandbox, as its runtime is told it."""
        wanted = f'labels."io.kubernetes.pod.uid"=={pod_uid},labels."io.cri-containerd.kind"==sandbox'
        return self._runtime("containers", "ls", "--quiet", wanted).strip()

    def process_status(self, pod: Object, container: str) -> dict[str, str]:
        """What the kernel says of a container's first process (``/proc/PID/status``)."""
        statuses = pod["status"]["containerStatuses"]
        (wanted,) = (one["containerID"] for one in statuses if one["name"] == container)
        tasks = dict(line.split()[:2] for line in self._runtime("tasks", "ls").splitlines())
        status = self._inside.run("cat", f"/proc/{tasks[wanted.removeprefix('containerd://')]}/status")
        return {
            name: value.strip() for name, _, value in (line.partition(":") for line in status.splitlines())
        }

    def container_log(self, pod: Object, container: str) -> Iterator[str]:
        """The lines that a container of a pod printed, also before it was restarted."""
        metadata = pod["metadata"]
        folder = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        for file in sorted(self.outside(f"/var/log/pods/{folder}/{container}").glob("*.log")):
            for line in file.read_text().splitlines(keepends=True):
                # Before each stand its time, stream, and whether it is complete; the last may not be.
                if line.endswith("\n"):
                    yield line.rstrip("\n").split(" ", 3)[3]

    def _figures(self, path: str) -> str:
        url = f"http://127.0.0.1:{_FIGURES_PORT}{path}"
        return self._inside.run("busybox", "wget", "-q", "-O", "-", url)

    def _runtime(self, *arguments: str | Path) -> str:
        return self._inside.run("ctr", "--address", _CONTAINERD, "--namespace", "k8s.io", *arguments)

    def _connect(self) -> None:
        """Lead pods and kubelet to services out of their network, by way of sockets."""
        for service, port in self._services.items():
            address, _, inner_port = service.partition(":")
            way = self.folder / f"{address}-{inner_port}.sock"
            outer = ["socat", f"UNIX-LISTEN:{way},fork", f"TCP:127.0.0.1:{port}"]
            self._ends.callback(Running(outer, self.folder / "outer.log").kill)
            listen = f"TCP-LISTEN:{inner_port},bind={address},fork,reuseaddr"
            self._inside.start("inner", "socat", listen, f"UNIX-CONNECT:{way}")

    def _start_containerd(self) -> None:
        network = self.folder / "cni" / "10-worker.conflist"
        network.parent.mkdir()
        network.write_text(json.dumps(_network()))
        settings = self.folder / "containerd.toml"
        settings.write_text(
            _CONTAINERD_SETTINGS.format(
                folder=self.folder, socket=_CONTAINERD, pause=BUSYBOX, handler=PEER_POD_HANDLER
            )
        )
        containerd = self._inside.start("containerd", "containerd", "--config", settings)
        until(
            lambda: _answers(lambda: self._runtime("version")),
            what=f"containerd works; {containerd.log} says more",
        )
        busybox = self.folder / "busybox.tar"
        layer = layer_of_files(
            self.folder / "busybox-layer.tar", {"/usr/bin/busybox": Path("/usr/bin/busybox")}
        )
        write_archive(busybox, [Image(BUSYBOX, [layer], ["/usr/bin/busybox", "sh", "-c", _SLEEP])])
        # containerd unpacks several at once.
        with ThreadPoolExecutor() as imports:
            list(
                imports.map(
                    lambda archive: self._runtime("images", "import", archive), [busybox, *self._images]
                )
            )

    def _start_kubelet(self) -> Inside:
        settings = self.folder / "kubelet.json"
        settings.write_text(json.dumps(_kubelet_settings(self._cgroup)))
        user = f"system:node:{self.name}"
        pair = self._control_plane.authority.issue(user, "system:nodes")
        kubeconfig = json.loads(self._control_plane.kubeconfig_for(user, pair).read_text())
        kubeconfig["clusters"][0]["cluster"]["server"] = f"https://{_SERVICE}:443"
        access = self.folder / "kubelet.kubeconfig"
        access.write_text(json.dumps(kubeconfig))
        return self._inside.start(
            "kubelet",
            self.folder / "bin" / "kubelet",
            f"--config={settings}",
            f"--kubeconfig={access}",
            f"--hostname-override={self.name}",
            f"--node-ip={_ADDRESS}",
            "-v=2",
        )

    def _is_ready(self) -> bool:
        assert self._kubelet.is_running(), f"kubelet ended:\n{self._kubelet.log.read_text()[-4000:]}"
        node = self._control_plane.api.find("Node", self.name)
        return node is not None and _is_ready(node)


def _is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _answers(question: Callable[[], str]) -> bool:
    try:
        return bool(question())
    except CommandFailed:
        return False


def _network() -> Mapping[str, object]:
    """Each pod gets a link of its own to the worker; nothing leaves that, so no address is translated."""
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{"subnet": str(_PODS)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugin = {"type": "ptp", "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": "worker", "plugins": [plugin]}


def _kubelet_settings(cgroup: str) -> Mapping[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{_CONTAINERD}",
        # The machine may have cgroups of version 1, and gives no rights to divide itself up.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        # How full the machine is says nothing here.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "readOnlyPort": _FIGURES_PORT,
        "resolvConf": "",
        # The default is a minute.
        "volumeStatsAggPeriod": "1s",
        # Whether a volume is in use is told with the status; the default is ten seconds.
        "nodeStatusUpdateFrequency": "2s",
        # Growth of volumes in use is looked for at each synchronization of a pod; the default is a minute.
        "syncFrequency": "2s",
        # The condition of volumes among the metrics, too.
        "featureGates": {"CSIVolumeHealth": True},
    }
