"""The table of ``docs/security.md``: every permission, host path and capability, with its reason.

The left columns come from the rendered chart; the reasons are here. One without a reason is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

_BEGIN = "<!-- made by `make manifests`: begin -->\n"
_END = "<!-- made by `make manifests`: end -->\n"

#: Role and resource to the reason.
_PERMISSIONS = {
    ("provisioner", "persistentvolumes"): "make a claim's volume, delete it by its reclaim policy",
    ("provisioner", "persistentvolumeclaims"): "see claims; keep a clone's source while it is copied",
    ("provisioner", "storageclasses"): "read the parameters of a claim's class",
    ("provisioner", "events"): "tell at the claim what went wrong",
    ("provisioner", "csinodes"): "which topology key each node has",
    ("provisioner", "nodes"): "the zones of nodes, so that disk and PodVM meet",
    ("provisioner", "volumeattachments"): "delete no volume that a node still has",
    ("provisioner", "volumeattributesclasses"): "read the class that a new claim names",
    ("provisioner", "volumesnapshots"): "restore, and keep a snapshot meanwhile",
    ("provisioner", "volumesnapshotcontents"): "the id of a snapshot to restore",
    ("attacher", "persistentvolumes"): "the volume's id; its finalizer",
    ("attacher", "csinodes"): "the driver's id of a node",
    ("attacher", "volumeattachments"): "what to publish, and its finalizer",
    ("attacher", "volumeattachments/status"): "report that it is published",
    ("resizer", "persistentvolumes"): "the volume's id; record its new size",
    ("resizer", "persistentvolumeclaims"): "see which claims should grow or change",
    ("resizer", "persistentvolumeclaims/status"): "report the new size and class",
    ("resizer", "events"): "tell at the claim what went wrong",
    ("resizer", "volumeattributesclasses"): "read the class that a claim changes to",
    ("snapshotter", "events"): "tell at the content what went wrong",
    ("snapshotter", "volumesnapshotclasses"): "read the parameters of a snapshot's class",
    ("snapshotter", "volumesnapshotcontents"): "what to take or delete, and its finalizer",
    ("snapshotter", "volumesnapshotcontents/status"): "report that it is ready",
    ("node", "pods"): "which RuntimeClass the pod of a publish has",
    ("node", "runtimeclasses"): "whether its handler starts peer pods",
    ("leases", "leases"): "elect one leader of each sidecar; in the controller's namespace only",
}

#: Name of a volume of the node's pod to the reason.
_HOST_PATHS = {
    "socket": "the socket on which kubelet calls the plugin",
    "registration": "the socket by which the registrar tells kubelet of the plugin",
    "pods": "make and remove the empty target directory of a publish",
    "direct-volumes": "Kata's records of published volumes, its only state",
    "peer-pods": "connect to a PodVM's agent for usage and growth",
}


def replaced(page: str, rendered: Mapping[str, str]) -> str:
    """``page`` with its table made anew from what Helm printed for each provider.

    Raises:
        KeyError: the chart has something for which no reason is given.
        ValueError: the page lacks the marks, or a container has a right that no column shows.
    """
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    return before + _BEGIN + "\n".join(_lines(rendered)) + "\n" + _END + after


def _lines(rendered: Mapping[str, str]) -> Iterator[str]:
    objects = {
        provider: [entry for entry in yaml.safe_load_all(text) if entry]
        for provider, text in rendered.items()
    }
    yield from ("### Permissions", "", "| Role | May | On | Clouds | Why |")
    yield "| --- | --- | --- | --- | --- |"
    yield from _with_clouds(objects, _permissions)
    yield from ("", "### Directories of the worker", "", "| Container | Path | Access | Clouds | Why |")
    yield "| --- | --- | --- | --- | --- |"
    yield from _with_clouds(objects, _host_paths)
    yield from ("", "### Containers", "", "| Pod | Container | User | Capabilities | Roles | Clouds |")
    yield "| --- | --- | --- | --- | --- | --- |"
    yield from _with_clouds(objects, _containers)


def _with_clouds(objects: Mapping[str, list[Any]], rows: Any) -> Iterator[str]:
    clouds: dict[str, list[str]] = {}
    for provider, entries in objects.items():
        for row in rows(entries):
            clouds.setdefault(row, []).append(provider)
    for row, names in clouds.items():
        yield row.replace("CLOUDS", "all" if len(names) == len(objects) else ", ".join(names))


def _permissions(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if entry["kind"] in ("ClusterRole", "Role"):
            role = entry["metadata"]["name"].removeprefix("confidential-csi-")
            for rule in entry["rules"]:
                for resource in rule["resources"]:
                    verbs = ", ".join(rule["verbs"])
                    yield f"| {role} | {verbs} | `{resource}` | CLOUDS | {_PERMISSIONS[role, resource]} |"


def _host_paths(entries: list[Any]) -> Iterator[str]:
    for pod in _pods(entries).values():
        paths = {
            volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume
        }
        for container in pod["containers"]:
            for mount in container.get("volumeMounts", ()):
                if (name := mount["name"]) in paths:
                    access = "read" if mount.get("readOnly") else "write"
                    reason = _HOST_PATHS[name]
                    yield f"| {container['name']} | `{paths[name]}` | {access} | CLOUDS | {reason} |"


def _containers(entries: list[Any]) -> Iterator[str]:
    roles = _roles(entries)
    for name, pod in _pods(entries).items():
        for container in pod["containers"]:
            context = container["securityContext"]
            if context.get("privileged") or context["capabilities"] != {"drop": ["ALL"]}:
                raise ValueError(
                    f"container {container['name']!r} has capabilities that the table does not show"
                )
            token = any(mount["name"] == "kubernetes-api" for mount in container.get("volumeMounts", ()))
            user = pod["securityContext"]["runAsUser"]
            may = ", ".join(roles[pod["serviceAccountName"]]) if token else "none: no token"
            yield f"| {name} | {container['name']} | {user} | none | {may} | CLOUDS |"


def _roles(entries: list[Any]) -> dict[str, list[str]]:
    """Service account to the roles that are bound to it: every token of the account has them all."""
    bound: dict[str, list[str]] = {}
    for entry in entries:
        if entry["kind"] in ("ClusterRoleBinding", "RoleBinding"):
            for subject in entry["subjects"]:
                role = entry["roleRef"]["name"].removeprefix("confidential-csi-")
                bound.setdefault(subject["name"], []).append(role)
    return bound


def _pods(entries: list[Any]) -> dict[str, Any]:
    return {
        entry["metadata"]["name"].removeprefix("confidential-csi-"): entry["spec"]["template"]["spec"]
        for entry in entries
        if entry["kind"] in ("Deployment", "DaemonSet")
    }
