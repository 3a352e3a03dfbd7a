"""All objects that were given, and what they mean for each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cli.lint.located import Block, Manifest, block_at, text_at
from cli.lint.nearest_object import NearestObject
from cli.pod_policy import DRIVER

DEFAULT_NAMESPACE: Final = "default"

_DEFAULT_CLASS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
_THE_DEFAULT_CLASS: Final = "the default class"
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

    @property
    def place(self) -> tuple[str, int]:
        """What one manifest is told from another by."""
        return self.manifest.file, self.manifest.body.line


@dataclass
class Cluster:
    """The objects by kind. All files are read before any object is looked at."""

    by_kind: dict[str, list[Manifest]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    """Those of the pods' and workloads' templates, too."""
    _by_name: NearestObject[Manifest] = field(default_factory=NearestObject)
    _claims_by_name: NearestObject[Claim] = field(default_factory=NearestObject)

    def add(self, manifest: Manifest) -> None:
        """Take an object in, if it is of a kind that lint looks at."""
        group = _GROUPS.get(manifest.kind)
        if group is None or not _is_of_group(manifest.body, group):
            return
        self.by_kind.setdefault(manifest.kind, []).append(manifest)
        self._by_name.add((manifest.kind, manifest.namespace, manifest.name), manifest.file, manifest)
        if manifest.kind == "PersistentVolumeClaim":
            self.add_claim(Claim(manifest, block_at(manifest.body, "spec")))
        if manifest.kind == "StorageClass":
            annotations = block_at(manifest.body, "metadata", "annotations")
            if any(annotations.get(key) == "true" for key in _DEFAULT_CLASS):
                self._by_name.add(_THE_DEFAULT_CLASS, manifest.file, manifest)

    def add_claim(self, claim: Claim) -> None:
        """Take a claim in, or a template of some."""
        self.claims.append(claim)
        if not claim.is_template:
            self._claims_by_name.add(
                (claim.manifest.namespace, claim.manifest.name), claim.manifest.file, claim
            )

    def all(self, *kinds: str) -> Iterator[Manifest]:
        """The objects of these kinds."""
        for kind in kinds:
            yield from self.by_kind.get(kind, ())

    def find(self, kind: str, name: str, near: str, namespace: str = "") -> Manifest | None:
        """The object of that name; of several, the nearest to the file ``near``."""
        return self._by_name.find((kind, namespace, name), near) if name else None

    def claim(self, namespace: str, name: str, near: str) -> Claim | None:
        """The claim of that name, no template."""
        return self._claims_by_name.find((namespace, name), near) if name else None

    def volume_of(self, claim: Claim) -> Manifest | None:
        """The PersistentVolume that a claim names."""
        return self.find("PersistentVolume", text_at(claim.spec, "volumeName"), claim.manifest.file)

    def class_of(self, claim: Claim) -> Manifest | None:
        """The StorageClass of a claim; for one that names none, the default class."""
        name = class_name(claim)
        if name is None and text_at(claim.spec, "volumeName"):
            return None  # bound to a volume that was made by hand
        if name is None:
            return self._by_name.find(_THE_DEFAULT_CLASS, claim.manifest.file)
        return self.find("StorageClass", name, claim.manifest.file)

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
