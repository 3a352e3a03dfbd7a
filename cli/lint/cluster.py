"""All objects that were given, and what they mean for each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cli.lint.located import Block, Manifest, block_at, text_at
from cli.pod_policy import DRIVER

DEFAULT_NAMESPACE: Final = "default"

_DEFAULT_CLASS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
_OLD_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
_PROVISIONER_NOTES: Final = (
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
)

#: The API groups of the kinds that lint looks at: others have kinds of the same names.
_GROUPS: Final = {
    "StorageClass": "storage.k8s.io",
    "VolumeAttributesClass": "storage.k8s.io",
    "CSIDriver": "storage.k8s.io",
    "VolumeSnapshotClass": "snapshot.storage.k8s.io",
    "VolumeSnapshot": "snapshot.storage.k8s.io",
    "VolumeSnapshotContent": "snapshot.storage.k8s.io",
    "RuntimeClass": "node.k8s.io",
    "Deployment": "apps",
    "ReplicaSet": "apps",
    "StatefulSet": "apps",
    "DaemonSet": "apps",
    "Job": "batch",
    "CronJob": "batch",
    **dict.fromkeys(
        ("Pod", "PersistentVolumeClaim", "PersistentVolume", "ConfigMap", "ReplicationController"), ""
    ),
}


class Belongs(Enum):
    """To whom a claim belongs."""

    OURS = "ours"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"
    """Its StorageClass was not given."""


@dataclass(frozen=True)
class Claim:
    """A claim, or the template of claims."""

    manifest: Manifest
    spec: Block
    is_template: bool = False
    """Whether it stands for several, whose names are not known."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """What one volume is told from another by."""
        return self.manifest.kind, self.manifest.namespace, self.manifest.name


@dataclass
class Cluster:
    """The objects by kind. All files are read before any object is looked at."""

    by_kind: dict[str, list[Manifest]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    """Those of the pods' and workloads' templates, too."""
    default_cloud: str = ""
    """The provider of the Helm values, where some were given."""

    def add(self, manifest: Manifest) -> None:
        """Take an object in, if it is of a kind that lint looks at."""
        group = _GROUPS.get(manifest.kind)
        if group is None or not _is_of_group(manifest.body, group):
            return
        self.by_kind.setdefault(manifest.kind, []).append(manifest)
        if manifest.kind == "PersistentVolumeClaim":
            self.claims.append(Claim(manifest, block_at(manifest.body, "spec")))

    def all(self, *kinds: str) -> Iterator[Manifest]:
        """The objects of these kinds."""
        for kind in kinds:
            yield from self.by_kind.get(kind, ())

    def find(self, kind: str, name: str, namespace: str | None = None) -> Manifest | None:
        """The object of that name; of several the first."""
        for one in self.by_kind.get(kind, ()):
            if one.name == name and namespace in (None, one.namespace):
                return one
        return None

    def claim(self, namespace: str, name: str) -> Claim | None:
        """The claim of that name, no template."""
        for one in self.claims:
            if not one.is_template and (one.manifest.namespace, one.manifest.name) == (namespace, name):
                return one
        return None

    def volume_of(self, claim: Claim) -> Manifest | None:
        """The PersistentVolume that a claim names."""
        name = text_at(claim.spec, "volumeName")
        return self.find("PersistentVolume", name) if name else None

    def class_of(self, claim: Claim) -> Manifest | None:
        """The StorageClass of a claim; for one that names none, the default class."""
        name = class_name(claim)
        if name is not None:
            return self.find("StorageClass", name) if name else None
        for one in self.by_kind.get("StorageClass", ()):
            annotations = block_at(one.body, "metadata", "annotations")
            if any(annotations.get(key) == "true" for key in _DEFAULT_CLASS):
                return one
        return None

    def belongs(self, claim: Claim) -> Belongs:
        """Whether the volume of a claim is or will be one of this driver."""
        drivers = []
        volume = self.volume_of(claim)
        if volume is not None:
            drivers.append(text_at(volume.body, "spec", "csi", "driver"))
        storage_class = self.class_of(claim)
        if storage_class is not None:
            drivers.append(text_at(storage_class.body, "provisioner"))
        annotations = block_at(claim.manifest.body, "metadata", "annotations")
        drivers += [text_at(annotations, key) for key in _PROVISIONER_NOTES if key in annotations]
        if not drivers:
            return Belongs.UNKNOWN
        return Belongs.OURS if drivers[0] == DRIVER else Belongs.FOREIGN

    def claims_of_class(self, storage_class: Manifest) -> Sequence[Claim]:
        """The claims, and templates of claims, that a class serves."""
        return [claim for claim in self.claims if self.class_of(claim) is storage_class]


def class_name(claim: Claim) -> str | None:
    """What a claim says about its class; None: nothing, so that the default class is meant."""
    if claim.spec.get("storageClassName") is not None:
        return text_at(claim.spec, "storageClassName")
    annotations = block_at(claim.manifest.body, "metadata", "annotations")
    return text_at(annotations, _OLD_CLASS) if _OLD_CLASS in annotations else None


def _is_of_group(body: Block, group: str) -> bool:
    version = body.get("apiVersion")
    if not isinstance(version, str):
        return True
    found, separator, _ = version.rpartition("/")
    if found == "extensions":
        return group == "apps"
    return found == group if separator else group == "" and re.fullmatch(r"v[0-9]\w*", version) is not None
