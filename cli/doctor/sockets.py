"""The sockets on this machine: the driver's own, and cloud-api-adaptor's for Kata."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Final

import grpc

from cli.doctor.model import Finding, fail, ok
from cli.scene import DRIVER, Scene, Skipped
from proto import csi_pb2, csi_pb2_grpc

_SECONDS: Final = 10.0


def csi_socket(scene: Scene) -> Iterable[Finding]:
    """The driver's socket is there, and this driver answers on it."""
    path = _socket_here(scene)
    wrong = _not_listening(path)
    if wrong is not None:
        return [
            fail(
                wrong,
                "look at the driver's pod on this node (kubectl get pods -A -l app.kubernetes.io/name="
                "confidential-csi) and at its log; its hostPath must be this directory",
            )
        ]
    name, running, ready = _ask(path)
    if name != DRIVER:
        return [fail(f"{path} is served by the driver {name!r}", f"give the socket of {DRIVER}: --endpoint")]
    if not ready:
        return [
            fail(
                f"the driver on {path} says that it is not ready",
                "its log says why; the other checks of this node name the cause",
            )
        ]
    return [ok(f"{path}: {name} {running} answers and is ready")]


def plugin_version(scene: Scene) -> Iterable[Finding]:
    """The driver on the socket has the version of this command."""
    path = _socket_here(scene)
    if _not_listening(path) is not None:
        raise Skipped(f"nobody answers on {path}")
    _, running, _ = _ask(path)
    own = version("confidential-csi")
    if running != own:
        return [
            fail(
                f"the driver on {path} has version {running}, this command {own}",
                "let them be of one release: update the chart, and run the command of the same image",
            )
        ]
    return [ok(f"the driver on {path} and this command are both {own}")]


def hypervisor_socket(scene: Scene) -> Iterable[Finding]:
    """cloud-api-adaptor listens where Kata's runtime asks it for PodVMs."""
    scene.require_node()
    path = scene.paths.hypervisor_socket
    if not (scene.paths.kubelet_root / "plugins").exists():
        # The driver's own container sees kubelet's pods, and neither this nor cloud-api-adaptor's socket.
        raise Skipped(f"{path} is not visible from a container; run it on the node itself")
    wrong = _not_listening(path)
    if wrong is not None:
        return [
            fail(
                f"cloud-api-adaptor: {wrong}",
                "no peer pod can start on this node: look at cloud-api-adaptor's pod here, and at "
                "remote_hypervisor_socket in Kata's configuration-remote.toml",
            )
        ]
    return [ok(f"cloud-api-adaptor listens on {path}")]


def _socket_here(scene: Scene) -> Path:
    path = scene.paths.socket
    if scene.paths.endpoint is None and not path.exists() and not scene.paths.is_node():
        raise Skipped(f"there is no driver on this machine: neither a node's directories nor {path}")
    return path


def _not_listening(path: Path) -> str | None:
    """Why nobody can be asked at a socket; None if somebody accepts connections."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"the socket {path} is missing"
    except OSError as error:
        return f"the socket {path} can't be examined: {error.strerror}"
    if not stat.S_ISSOCK(mode):
        return f"{path} is not a socket"
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_SECONDS)
        try:
            client.connect(str(path))
        except OSError as error:
            return f"nobody listens on the socket {path} ({error.strerror or 'no answer in time'})"
    return None


def _ask(path: Path) -> tuple[str, str, bool]:
    """Name and version of the driver on a socket, and whether it is ready."""
    with grpc.insecure_channel(f"unix://{path}") as channel:
        identity = csi_pb2_grpc.IdentityStub(channel)
        try:
            info = identity.GetPluginInfo(csi_pb2.GetPluginInfoRequest(), timeout=_SECONDS)
            probe = identity.Probe(csi_pb2.ProbeRequest(), timeout=_SECONDS)
        except grpc.RpcError as error:
            return f"(no CSI driver: {error.code().name})", "", False
    return info.name, info.vendor_version, not probe.HasField("ready") or probe.ready.value
