"""What else a node needs: kubelet where the driver thinks it is, and Kata set up for remote VMs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from cli.doctor.model import Finding, fail, ok, warn
from cli.doctor.records import records
from cli.scene import Scene, Skipped

_ROOT_OPTION = "--root-dir"


def kubelet_root(scene: Scene) -> Iterable[Finding]:
    """kubelet's root directory is the configured one."""
    scene.require_node()
    configured = scene.paths.kubelet_root
    seen = []
    if scene.paths.direct_volumes.is_dir():
        others = {one.kubelet_root for one in records(scene)} - {"", str(configured)}
        seen += [(f"records of volumes have target paths below {other}", other) for other in others]
    if not _has_pods(configured):
        running = set(_roots_of_running_kubelets(scene.paths.proc)) - {str(configured)}
        seen += [(f"kubelet runs with {_ROOT_OPTION}={other}", other) for other in running]
    if seen:
        return [
            fail(
                f"{what}, and the driver is set up for {configured}",
                f"set node.kubeletRoot={other} in the chart (here: --kubelet-root {other})",
            )
            for what, other in sorted(seen)
        ]
    if not (configured / "pods").is_dir():
        return [
            fail(
                f"there is no {configured}/pods: kubelet's root directory is another one",
                "find it (ps -C kubelet -o args) and set node.kubeletRoot in the chart (here: "
                "--kubelet-root)",
            )
        ]
    return [ok(f"{configured}/pods is there, and nothing points to another root")]


def kata_config(scene: Scene) -> Iterable[Finding]:
    """Kata's remote hypervisor asks where cloud-api-adaptor listens."""
    scene.require_node()
    config = next((one for one in scene.paths.kata_configs if one.is_file()), None)
    if config is None:
        raise Skipped("no configuration-remote.toml of Kata is visible here; run it on the node itself")
    try:
        document = tomllib.loads(config.read_text())
        asked = document["hypervisor"]["remote"]["remote_hypervisor_socket"]
    except (ValueError, KeyError, TypeError):
        return [
            fail(
                f"{config} names no hypervisor.remote.remote_hypervisor_socket",
                "it is not for remote VMs, or damaged: install Kata's remote runtime anew",
            )
        ]
    if asked != str(scene.paths.hypervisor_socket):
        return [
            warn(
                f"{config}: Kata asks at {str(asked)[:200]!r}, not at {scene.paths.hypervisor_socket}",
                "give cloud-api-adaptor's -socket the same path (here: --hypervisor-socket)",
            )
        ]
    return [ok(f"{config}{_version_beside(config)}: Kata asks at {asked}")]


def _version_beside(config: Path) -> str:
    """The version of Kata, which its releases leave at the top of their directory (``/opt/kata/VERSION``)."""
    for directory in config.parents:
        try:
            return f" of Kata {(directory / 'VERSION').read_text(errors='replace').strip()[:40]}"
        except OSError:
            continue
    return ""


def _has_pods(root: Path) -> bool:
    pods = root / "pods"
    return pods.is_dir() and any(pods.iterdir())


def _roots_of_running_kubelets(proc: Path) -> Iterator[str]:
    """The root directory of each kubelet process; a node's container sees none but its own processes."""
    for command_line in proc.glob("[0-9]*/cmdline"):
        try:
            program, *arguments = command_line.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it ended
        if Path(program).name != "kubelet":
            continue
        root = "/var/lib/kubelet"
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
            name, separator, value = argument.partition("=")
            if name == _ROOT_OPTION:
                root = value if separator else following
        yield root.rstrip("/")
