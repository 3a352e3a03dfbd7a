"""From a pod's manifest to the volume policy that fits it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agent.container_mounts import ContainerMount, refuse_uncovered
from agent.errors import Refused
from agent.keys import key_uri
from agent.mount_point import checked_mount_point, checked_path
from agent.policy import Policy, VolumeRules
from agent.policy_schema import parse_policy
from cli.quantity import parse_bytes
from driver.key_template import METADATA, TemplateError, expand, placeholders

DRIVER: Final = "caa-csi-block.csi.confidentialcontainers.io"
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"

_KEY_TO_FILL_IN: Final = '# key = "repository/type/tag"'

Manifest = Mapping[str, Any]
#: Places in each container at which something is mounted that no manifest names, by kubelet or the runtime.
_MOUNTED_ANYWAY: Final = (
    *("/dev/shm", "/dev/termination-log", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"),  # noqa: S108  No files of ours.
    *("/dev/mqueue", "/dev/pts", "/sys/fs/cgroup", "/var/run/secrets/kubernetes.io/serviceaccount"),
)


class CannotWrite(Exception):
    """There is no policy that fits the manifest. Says why."""


@dataclass(frozen=True)
class Written:
    """The policy file, and what its author still has to look at."""

    text: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Mount:
    destination: str
    volume: str
    read_only: bool


@dataclass(frozen=True)
class _Claim:
    """A claim that the pod uses."""

    name: str
    """Its own, or what its manifest calls it, where each replica's claim gets a name of its own."""
    namespace: str
    spec: Manifest | None
    """None: its manifest was not given."""
    name_is_known: bool = True

    def metadata(self) -> dict[str, str]:
        """What a template of ``kbs-key-id`` can be expanded with."""
        known = {METADATA["pvc.namespace"]: self.namespace}
        if self.name_is_known:
            known[METADATA["pvc.name"]] = self.name
        if self.spec is not None and self.spec.get("volumeName"):
            known[METADATA["pv.name"]] = str(self.spec["volumeName"])
        return known


@dataclass
class _Cluster:
    """The manifests given, by kind."""

    documents: Sequence[Manifest]
    notes: list[str] = field(default_factory=list)

    def find(self, kind: str, name: object, namespace: str | None = None) -> Manifest | None:
        for one in self.documents:
            metadata = one.get("metadata") or {}
            if (one.get("kind"), metadata.get("name")) == (kind, name) and (
                namespace is None or metadata.get("namespace", "default") == namespace
            ):
                return one
        return None

    def storage_class(self, claim: Manifest) -> Manifest | None:
        """The StorageClass of a claim's spec; without a name, the one that is marked as default."""
        name = claim.get("storageClassName")
        if name is not None:
            return self.find("StorageClass", name)
        for one in self.documents:
            annotations = (one.get("metadata") or {}).get("annotations") or {}
            if one.get("kind") == "StorageClass" and annotations.get(_DEFAULT_CLASS) == "true":
                return one
        return None


def write_policy(pod_file: Sequence[Manifest], documents: Sequence[Manifest]) -> Written:
    """The policy for the one pod, or pod template, of ``pod_file``; ``documents`` are all manifests given.

    Raises:
        CannotWrite: there is no pod, or it uses its volumes in a way that a policy can't express.
    """
    workload, pod = _pod(pod_file)
    cluster = _Cluster(documents)
    namespace = (workload.get("metadata") or {}).get("namespace", "default")
    claims = _claims(workload, pod, cluster, namespace)
    if not (workload.get("metadata") or {}).get("namespace") and _depends_on_namespace(claims, cluster):
        cluster.notes.append("the manifest names no namespace; the keys are those of namespace default")
    group = (pod.get("securityContext") or {}).get("fsGroup")
    tables: dict[str, str] = {}
    for mount in _mounts(pod, claims):
        table = _table(mount, claims[mount.volume], cluster, group)
        if table is not None:
            tables[mount.destination] = table
    others = _other_mounts(pod, claims, tables)
    if others:
        cluster.notes.append(
            "other-mounts holds places at which the host decides what is there: see to it that nothing "
            "confidential is written to them"
        )
    name = (workload.get("metadata") or {}).get("name", "")
    named = f"{json.dumps(workload.get('kind'))} {json.dumps(name)} in namespace {json.dumps(namespace)}"
    head = f"# Volumes of {named}.\n"
    listed = f"other-mounts = [{', '.join(map(_quoted, others))}]\n" if others else ""
    text = head + f"version = 1\n{listed}\n" + ("\n".join(tables.values()) or "[volumes]\n")
    if _KEY_TO_FILL_IN not in text:
        try:
            parse_policy(text)
        except Refused as refused:
            raise CannotWrite(f"the guest would refuse a policy for this manifest: {refused}") from None
    return Written(text, tuple(cluster.notes))


def _pod(documents: Sequence[Manifest]) -> tuple[Manifest, Manifest]:
    """The workload's manifest and the pod's spec."""
    found = []
    for one in documents:
        spec = one.get("spec") or {}
        if one.get("kind") == "Pod":
            found.append((one, spec))
        elif isinstance(spec.get("template"), dict):
            found.append((one, spec["template"].get("spec") or {}))
    if len(found) != 1:
        raise CannotWrite(f"the file holds {len(found)} pods and pod templates; expected one")
    return found[0]


def _claims(workload: Manifest, pod: Manifest, cluster: _Cluster, namespace: str) -> dict[str, _Claim]:
    """The pod's volumes that are claims, by their name in the pod."""
    claims: dict[str, _Claim] = {}
    for template in (workload.get("spec") or {}).get("volumeClaimTemplates") or ():
        name = template["metadata"]["name"]
        claims[name] = _Claim(name, namespace, template.get("spec"), name_is_known=False)
    for volume in pod.get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            name = volume["persistentVolumeClaim"]["claimName"]
            claim = cluster.find("PersistentVolumeClaim", name, namespace)
            claims[volume["name"]] = _Claim(name, namespace, None if claim is None else claim.get("spec"))
        elif "ephemeral" in volume:
            spec = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
            # Kubernetes names such a claim after the pod, whose name only a bare Pod's manifest tells.
            is_pod = workload.get("kind") == "Pod" and bool(workload["metadata"].get("name"))
            name = f"{workload['metadata']['name']}-{volume['name']}" if is_pod else volume["name"]
            claims[volume["name"]] = _Claim(name, namespace, spec, name_is_known=is_pod)
    return claims


def _mounts(pod: Manifest, claims: Mapping[str, object]) -> list[_Mount]:
    """One for each destination of a claim."""
    read_only = {
        volume["name"]
        for volume in pod.get("volumes") or ()
        if (volume.get("persistentVolumeClaim") or {}).get("readOnly")
    }
    mounts: dict[str, _Mount] = {}
    for container in [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]:
        for device in container.get("volumeDevices") or ():
            raise CannotWrite(f"volume {device['name']} is a raw block device; the guest mounts file systems")
        for entry in container.get("volumeMounts") or ():
            if entry["name"] not in claims:
                continue
            if entry.get("subPath") or entry.get("subPathExpr"):
                raise CannotWrite(
                    f"volume {entry['name']} is mounted with a subPath, which the guest refuses; "
                    "mount the whole volume"
                )
            try:
                destination = checked_mount_point(entry["mountPath"], f"volume {entry['name']}")
            except Refused as refused:
                raise CannotWrite(str(refused)) from None
            only_read = entry.get("readOnly") is True or entry["name"] in read_only
            mount = _Mount(destination, entry["name"], only_read)
            other = mounts.setdefault(destination, mount)
            if other.volume != mount.volume:
                raise CannotWrite(f"two containers mount different volumes at {destination}; use other paths")
            # A container that writes decides.
            mounts[destination] = replace(mount, read_only=mount.read_only and other.read_only)
    return list(mounts.values())


def _other_mounts(pod: Manifest, claims: Mapping[str, object], named: Collection[str]) -> list[str]:
    """The places of the pod's other mounts that the guest would refuse if they were not named."""
    policy = Policy({destination: VolumeRules() for destination in named})
    csi = {volume["name"] for volume in pod.get("volumes") or () if "csi" in volume} | claims.keys()
    found: set[str] = set()
    for container in [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]:
        around: list[ContainerMount] = []
        places = [(_destination(entry), entry) for entry in container.get("volumeMounts") or ()]
        places += [(place, {"name": ""}) for place in _MOUNTED_ANYWAY]
        # A place sorts behind those above it, which may hold links.
        for destination, entry in sorted(places, key=lambda place: place[0]):
            if destination in named:
                continue
            # What kubelet binds there.
            source = "/volumes/kubernetes.io~csi/x" if entry["name"] in csi else "/x"
            if entry.get("subPath") or entry.get("subPathExpr"):
                source = "/volume-subpaths/x"
            mount = ContainerMount(destination, source)
            allowed = replace(policy, other_mounts=frozenset(one.destination for one in around))
            try:
                refuse_uncovered(allowed, [*around, mount])
            except Refused:
                found.add(destination)
            around.append(mount)
    return sorted(found)


def _destination(entry: Manifest) -> str:
    try:
        return checked_path(entry["mountPath"], f"volume {entry['name']}")
    except Refused as refused:
        raise CannotWrite(str(refused)) from None


def _table(mount: _Mount, claim: _Claim, cluster: _Cluster, group: int | None) -> str | None:
    name, spec = claim.name, claim.spec
    if spec is None:
        storage_class = None
        cluster.notes.append(
            f"give the YAML of the claim {name} and its StorageClass too, or fill in the key"
        )
    else:
        storage_class = cluster.storage_class(spec)
        if storage_class is None:
            cluster.notes.append(f"give the YAML of the claim {name}'s StorageClass too, or fill in the key")
    if storage_class is not None and storage_class.get("provisioner") != DRIVER:
        cluster.notes.append(f"{mount.destination} is left out: {name} belongs to another driver")
        return None
    lines = [
        f"[volumes.{_quoted(mount.destination)}]",
        'encryption = "luks2"',
        _key_line(mount, claim, storage_class),
    ]
    size = None if spec is None else _size(spec)
    if size is not None:
        lines.append(f"minimum-size = {size}")
    if mount.read_only:
        lines.append("read-only = true")
    else:
        lines.append('format = "if-blank"')
        if group is not None:
            lines.append(f"fs-group = {group}")
    return "\n".join(lines) + "\n"


def _key_line(mount: _Mount, claim: _Claim, storage_class: Manifest | None) -> str:
    if storage_class is None:
        return _KEY_TO_FILL_IN
    parameters = storage_class.get("parameters") or {}
    name = storage_class["metadata"]["name"]
    if not parameters.get("encrypt-type"):
        raise CannotWrite(
            f"StorageClass {name} of {mount.destination} does not encrypt (no encrypt-type); if that is "
            'meant, write the entry yourself, with encryption = "none"'
        )
    template = str(parameters.get("kbs-key-id", ""))
    try:
        missing = [one for one in placeholders(template) if METADATA[one] not in claim.metadata()]
        if missing:
            why = _why_missing(missing[0], claim)
            raise CannotWrite(f"kbs-key-id of StorageClass {name} contains ${{{missing[0]}}}: {why}")
        key_id = expand(template, claim.metadata())
        key_uri(key_id)
    except (Refused, TemplateError) as refused:
        raise CannotWrite(f"kbs-key-id of StorageClass {name}: {refused}") from None
    if (
        claim.spec is not None
        and key_id != template
        and (claim.spec.get("dataSource") or claim.spec.get("dataSourceRef"))
    ):
        raise CannotWrite(
            f"claim {claim.name} is a copy, which keeps its source's key, and that is not {key_id} as the "
            f"template of StorageClass {name} would have it; write the entry yourself, with the kbs-key-id "
            "that the PersistentVolume's attributes show"
        )
    return f"key = {_quoted(key_id)}"


def _depends_on_namespace(claims: Mapping[str, _Claim], cluster: _Cluster) -> bool:
    classes = [cluster.storage_class(claim.spec) for claim in claims.values() if claim.spec is not None]
    return any(
        "${pvc.namespace}" in str((one.get("parameters") or {}).get("kbs-key-id"))
        for one in classes
        if one is not None
    )


def _why_missing(placeholder: str, claim: _Claim) -> str:
    if placeholder == "pv.name":
        return (
            f"which volume claim {claim.name} gets is known only once it is bound; give its manifest as the "
            "cluster has it then (kubectl get pvc -o yaml), with spec.volumeName"
        )
    return (
        f"each pod gets a claim of its own from the template {claim.name}, so no one policy fits them all; "
        "leave it out of kbs-key-id, or write the policy of each pod's claim"
    )


def _size(claim: Manifest) -> int | None:
    request = ((claim.get("resources") or {}).get("requests") or {}).get("storage")
    return parse_bytes(str(request)) or None


def _quoted(value: str) -> str:
    """A TOML basic string: JSON's escapes are TOML's, and the values hold printable characters only."""
    return json.dumps(value)
