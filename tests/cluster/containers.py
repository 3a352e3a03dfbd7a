"""Runs a container of the chart as a confined process: its arguments, environment, volumes and user.

There is no container engine and no image here. What an image would bring is the machine's own ``/usr`` and
the programs; what the pod's specification says is what the process gets: a read-only root with just the
volumes that it mounts, its user, no capabilities. Pods share loopback: each has an address of its own there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.api import Object
from tests.cluster.processes import Running
from tests.cluster.programs import SIDECARS, Programs

_REPOSITORY = Path(__file__).parents[2]
_ENVIRONMENT = Path(sys.prefix)

#: The roles in our images (the Dockerfile's entry points).
_ROLES = {"confidential-csi-node": "node"}
_CONTROLLER = "confidential-csi-controller"

#: What the module proxy does not serve (docs/cluster-tests.md).
NOT_TO_BE_HAD = frozenset({"csi-node-driver-registrar", "livenessprobe"})


@dataclass(frozen=True)
class PodSandbox:
    """What the containers of one pod share."""

    pod: Object
    folder: Path
    volumes: Mapping[str, Path]
    """Name of the pod's volume to the directory on this machine."""
    address: str
    """An address of loopback that is the pod's own."""
    api_port: int
    arguments: Mapping[str, str]
    """Arguments that are other ones on this worker: what the instance metadata would say."""


def image_name(container: Object) -> str:
    """The image's name without registry and tag."""
    name: str = container["image"].rpartition("/")[2].partition(":")[0]
    return name


def run_container(programs: Programs, sandbox: PodSandbox, container: Object) -> Running:
    """Start it; its log is ``NAME.log`` in the pod's folder."""
    command = [*_confinement(programs, sandbox, container), *_command(sandbox, container)]
    return Running(command, sandbox.folder / f"{container['name']}.log")


def _command(sandbox: PodSandbox, container: Object) -> list[str]:
    image = image_name(container)
    arguments = [_argument(sandbox, container, one) for one in container.get("args", [])]
    if image in SIDECARS:
        return [f"/programs/{image}", *arguments]
    role = _ROLES.get(image) or "controller"
    assert role == "node" or image.startswith(_CONTROLLER), f"no program for the image {container['image']}"
    return [str(_ENVIRONMENT / "bin" / "confidential-csi"), role, *arguments]


def _argument(sandbox: PodSandbox, container: Object, argument: str) -> str:
    for name, value in _variables(sandbox, container).items():
        argument = argument.replace(f"$({name})", value)
    option, _, value = argument.partition("=")
    if option in ("--http-endpoint", "--metrics-address") and value.startswith(":"):
        return f"{option}={sandbox.address}{value}"
    return sandbox.arguments.get(argument, argument)


def _variables(sandbox: PodSandbox, container: Object) -> dict[str, str]:
    fields = {"spec.nodeName": sandbox.pod["spec"]["nodeName"]}
    return {
        one["name"]: one.get("value") or fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container.get("env", [])
    }


def _confinement(programs: Programs, sandbox: PodSandbox, container: Object) -> list[str]:
    pod, own = sandbox.pod["spec"].get("securityContext", {}), container.get("securityContext", {})
    assert own["capabilities"] == {"drop": ["ALL"]}, container["name"]
    command = ["bwrap", "--die-with-parent", "--unshare-ipc", "--unshare-uts", "--clearenv", "--chdir", "/"]
    command += ["--hostname", sandbox.pod["metadata"]["name"]]  # sidecars that elect a leader go by it
    for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):  # given up again below
        command += ["--cap-add", capability]
    command += ["--dev", "/dev", "--proc", "/proc"]
    # A Python below /usr, or with the repository, is bound with it; to bind it twice does no harm.
    for tree in dict.fromkeys(("/usr", "/etc", sys.base_prefix, str(_REPOSITORY), sys.prefix)):
        command += _bind(Path(tree), tree, read_only=True)
    for link in ("bin", "lib", "lib64", "sbin"):
        command += ["--symlink", f"usr/{link}", f"/{link}"]
    if image_name(container) in SIDECARS:
        program = programs[image_name(container)]
        command += _bind(program, f"/programs/{program.name}", read_only=True)
    for mount in container.get("volumeMounts", []):
        read_only = mount.get("readOnly", False)
        command += _bind(sandbox.volumes[mount["name"]], mount["mountPath"], read_only=read_only)
    if own.get("readOnlyRootFilesystem"):
        command += ["--remount-ro", "/"]
    variables = {
        "PATH": os.environ["PATH"],
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(sandbox.api_port),
        "PYTHONDONTWRITEBYTECODE": "1",
        **_variables(sandbox, container),
    }
    for name, value in variables.items():
        command += ["--setenv", name, value]
    return [*command, *_as_user(pod["runAsUser"], pod["runAsGroup"], pod.get("fsGroup", 0))]


def _bind(source: Path, target: str, *, read_only: bool) -> list[str]:
    """Bind, below directories that everybody may enter; bubblewrap would make them its own."""
    parents = [str(parent) for parent in reversed(Path(target).parents) if str(parent) != "/"]
    made = [part for parent in parents for part in ("--perms", "0755", "--dir", parent)]
    return [*made, "--ro-bind" if read_only else "--bind", str(source), target]


def _as_user(user: int, group: int, supplementary: int) -> Sequence[str]:
    return (
        "/usr/bin/setpriv",
        "--pdeathsig=KILL",  # bubblewrap's own is lost with the change of user
        f"--reuid={user}",
        f"--regid={group}",
        f"--groups={supplementary}",
        "--inh-caps=-all",
        "--bounding-set=-all",
        "--no-new-privs",
    )
