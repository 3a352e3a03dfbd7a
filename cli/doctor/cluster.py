"""What the cluster must have: the CSIDriver object, the driver's pods, registrations, peer pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from cli.doctor.model import Finding, Verdict, fail, ok, warn
from cli.kubernetes_api import Json, NoAnswer
from cli.kubernetes_objects import (
    CSI_DRIVERS,
    CSI_NODES,
    DAEMON_SETS,
    DEPLOYMENTS,
    PODS,
    RUNTIME_CLASSES,
    name_of,
)
from cli.scene import DRIVER, Scene, Skipped

NAME_LABEL: Final = "app.kubernetes.io/name"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
OUR_NAME: Final = "confidential-csi"
_CAA_IMAGE: Final = "cloud-api-adaptor"


def api(scene: Scene) -> Iterable[Finding]:
    """The API server answers."""
    try:
        if isinstance(scene.cluster, str):
            raise NoAnswer(scene.cluster)
        answer = scene.cluster.get("/version")
    except NoAnswer as error:
        if not scene.cluster_wanted:
            raise Skipped(str(error)) from None
        return [fail(str(error), "check --kubeconfig and --context, and the network: kubectl version")]
    if answer is None:
        return [
            fail("the server has no /version: it is no Kubernetes API", "check --kubeconfig and --context")
        ]
    return [ok(f"it answers, and is Kubernetes {str(answer.document.get('gitVersion'))[:40]}")]


def csi_driver(scene: Scene) -> Iterable[Finding]:
    """The CSIDriver object is there and says what the driver needs."""
    found = scene.object(f"{CSI_DRIVERS}/{DRIVER}")
    if found is None:
        return [
            fail(f"there is no CSIDriver {DRIVER}", "install it: helm upgrade, or deploy/csi-driver.yaml")
        ]
    specification = found["spec"]
    problems = []
    if not specification.get("attachRequired", True) and _has_fence(scene):
        problems.append(
            fail(
                f"CSIDriver {DRIVER} has attachRequired: false, so there is no fence: two nodes can start "
                "PodVMs with one disk",
                "it is immutable: delete the object and install it again (no volume is lost)",
            )
        )
    if not specification.get("podInfoOnMount"):
        problems.append(
            fail(f"CSIDriver {DRIVER} lacks podInfoOnMount: true", "helm upgrade, or deploy/csi-driver.yaml")
        )
    if "Ephemeral" in specification.get("volumeLifecycleModes", ()):
        problems.append(
            fail(
                f"CSIDriver {DRIVER} allows Ephemeral volumes, whose attributes any pod's author writes",
                "helm upgrade, or deploy/csi-driver.yaml",
            )
        )
    return problems or [ok(f"CSIDriver {DRIVER} has what the driver needs")]


def _has_fence(scene: Scene) -> bool:
    """Whether disks can be attached elsewhere; the provider local keeps files for one machine's tests."""
    return isinstance(scene.cloud, str) or scene.cloud.provider.name != "local"


def workloads(scene: Scene) -> Iterable[Finding]:
    """Controller and node plugin run, wherever they should."""
    found: list[Finding] = []
    ours = [one for one in scene.objects(DEPLOYMENTS) if _is_ours(one, "controller")]
    for one in ours:
        status, wanted = one.get("status", {}), one["spec"].get("replicas", 1)
        ready = status.get("readyReplicas", 0)
        text = f"Deployment {name_of(one)}: {ready} of {wanted} ready"
        if not wanted:
            found.append(
                warn(f"{text}: it was scaled to none", "scale it to the chart's controller.replicas")
            )
        elif ready == 0:
            found.append(
                fail(text, f"kubectl -n {one['metadata']['namespace']} describe pods; see their logs")
            )
        elif ready < wanted:
            found.append(warn(text, f"kubectl -n {one['metadata']['namespace']} describe pods"))
        else:
            found.append(ok(text))
    daemons = [one for one in scene.objects(DAEMON_SETS) if _is_ours(one, "node")]
    for one in daemons:
        status = one.get("status", {})
        wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        text = f"DaemonSet {name_of(one)}: {ready} of {wanted} ready"
        if ready < wanted:
            found.append(
                fail(
                    text,
                    f"kubectl -n {one['metadata']['namespace']} get pods -o wide: no volumes on those nodes",
                )
            )
        else:
            found.append(ok(text))
    for missing, kind in ((ours, "Deployment of the controller"), (daemons, "DaemonSet of the node plugin")):
        if not missing:
            found.append(
                fail(
                    f"there is no {kind} (labels {NAME_LABEL}={OUR_NAME})",
                    "install the chart, deploy/charts/confidential-csi",
                )
            )
    problems = [one for one in found if one.verdict is not Verdict.OK]
    return problems or [ok("; ".join(one.saw for one in found))]


def registrations(scene: Scene) -> Iterable[Finding]:
    """kubelet of each node that has the node plugin knows the driver (CSINode)."""
    wanted = {
        pod["spec"]["nodeName"]
        for pod in scene.objects(PODS)
        if _is_ours(pod, "node") and pod["spec"].get("nodeName")
    }
    if scene.node_name:
        wanted.add(scene.node_name)
    if not wanted:
        raise Skipped("no node has the node plugin (see workloads), and no --node-name is given")
    known = {
        one["metadata"]["name"]: {driver["name"] for driver in one["spec"].get("drivers") or ()}
        for one in scene.objects(CSI_NODES)
    }
    missing = sorted(node for node in wanted if DRIVER not in known.get(node, ()))
    if missing:
        return [
            fail(
                f"the driver is not registered on {node}: CSINode {node} does not list it",
                "look at the log of the node plugin's container 'registrar' there, and that kubelet's root "
                "directory is node.kubeletRoot of the chart",
            )
            for node in missing
        ]
    return [ok(f"registered on {', '.join(sorted(wanted))}")]


def runtime_class(scene: Scene) -> Iterable[Finding]:
    """There is a RuntimeClass by which pods become peer pods."""
    found = [
        one["metadata"]["name"] for one in scene.objects(RUNTIME_CLASSES) if is_peer_pod_class(scene, one)
    ]
    if not found:
        return [
            fail(
                f"there is no RuntimeClass with the handler {' or '.join(sorted(scene.peer_pod_handlers))}",
                "no pod can be a peer pod: install Kata's remote runtime (kata-deploy) and cloud-api-adaptor",
            )
        ]
    return [ok(f"peer pods by RuntimeClass {', '.join(sorted(found))}")]


def is_peer_pod_class(scene: Scene, runtime_class: Json) -> bool:
    """Whether pods of the class are peer pods."""
    return runtime_class.get("handler") in scene.peer_pod_handlers


def caa_volumes(scene: Scene) -> Iterable[Finding]:
    """cloud-api-adaptor's pods see the direct-volume root: the contract by which disks reach PodVMs."""
    root = str(scene.paths.direct_volumes)
    found = [(one, container) for one in scene.objects(DAEMON_SETS) for container in _caa_containers(one)]
    if not found:
        return [
            fail(
                "no DaemonSet runs cloud-api-adaptor",
                "install its chart (peerpods), or check that this user sees its namespace",
            )
        ]
    result: list[Finding] = []
    for daemon_set, container in found:
        text = f"DaemonSet {name_of(daemon_set)} (image {container['image'][:200]})"
        if _mounts_host_path(daemon_set, container, root):
            result.append(ok(f"{text} mounts {root}"))
        else:
            result.append(
                fail(
                    f"{text} does not mount {root}, so it never sees a volume",
                    "it is a cloud-api-adaptor without volumes, or set up for another directory: update "
                    "it, or set node.directVolumesRoot to its directory",
                )
            )
    return result


def versions(scene: Scene) -> Iterable[Finding]:
    """Controller and node plugin come from one release."""
    tags: dict[str, set[str]] = {}
    for path in (DEPLOYMENTS, DAEMON_SETS):
        for one in scene.objects(path):
            if not (_is_ours(one, "controller") or _is_ours(one, "node")):
                continue
            for container in one["spec"]["template"]["spec"]["containers"]:
                name, _, tag = container["image"].partition("@")[0].rpartition("/")[2].partition(":")
                # One that is given by its digest alone tells no version.
                if name.startswith(f"{OUR_NAME}-") and tag:
                    tags.setdefault(tag, set()).add(f"{name_of(one)} ({container['name']})")
    if not tags:
        raise Skipped("there are no workloads of this driver to compare (see workloads)")
    text = "; ".join(f"{tag}: {', '.join(sorted(where))}" for tag, where in sorted(tags.items()))
    if len(tags) > 1:
        return [
            warn(
                f"images of several versions: {text}",
                "helm upgrade the whole chart; docs/version-skew.md says what works meanwhile",
            )
        ]
    return [ok(f"one version, {text}")]


def _is_ours(one: Json, component: str) -> bool:
    labels = one["metadata"].get("labels") or {}
    return labels.get(NAME_LABEL) == OUR_NAME and labels.get(COMPONENT_LABEL) == component


def _caa_containers(daemon_set: Json) -> Iterator[Json]:
    for container in daemon_set["spec"]["template"]["spec"]["containers"]:
        image = container["image"].partition("@")[0].rpartition("/")[2]
        if _CAA_IMAGE in image.partition(":")[0]:
            yield container


def _mounts_host_path(daemon_set: Json, container: Json, path: str) -> bool:
    """Whether the container sees that directory of the host at the same path."""
    host_paths = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in daemon_set["spec"]["template"]["spec"].get("volumes") or ()
        if "hostPath" in volume
    }
    for mount in container.get("volumeMounts") or ():
        source, target = host_paths.get(mount["name"]), mount["mountPath"]
        if source is None or mount.get("subPath"):
            continue
        inside = Path(path).is_relative_to(target)
        if inside and Path(source) / Path(path).relative_to(target) == Path(path):
            return True
    return False
