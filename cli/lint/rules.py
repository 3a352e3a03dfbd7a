"""Every rule of lint: its id, how bad it is, what it means and how to fix it (also in ``docs/lint.md``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from driver.problems import ProblemKind


class Severity(StrEnum):
    """An error does not work or is not safe; a warning works, and may be meant."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Rule:
    """One of them."""

    id: str
    severity: Severity
    meaning: str
    fix: str


def _error(rule: str, meaning: str, fix: str) -> Rule:
    return Rule(rule, Severity.ERROR, meaning, fix)


def _warning(rule: str, meaning: str, fix: str) -> Rule:
    return Rule(rule, Severity.WARNING, meaning, fix)


_FILES = (
    _error(
        "yaml-syntax",
        "The file is not YAML (or TOML); what comes before the line was checked, what comes after was not.",
        "Correct the line. A tab as indentation, an unclosed quote and a lost colon are the usual causes.",
    ),
    _error(
        "yaml-duplicate-key",
        "A mapping has one key twice. YAML readers differ in which they take, and kubectl refuses it.",
        "Remove one of the two.",
    ),
    _error(
        "yaml-limit",
        "The file is larger, nests deeper or expands further by its aliases than any manifest does, or an "
        "alias contains itself. It was not checked.",
        "Split the file; write out what the aliases stand for.",
    ),
    _warning(
        "yaml-template",
        "The file is a template ({{ … }}), not yet a manifest. It was not checked.",
        "Render it first, as by 'helm template', and lint the result.",
    ),
    _error(
        "manifest-malformed",
        "A field has another type than Kubernetes takes there.",
        "Write it as the API reference shows it.",
    ),
)

_CLASSES = (
    _error(
        ProblemKind.UNKNOWN,
        "Nothing reads this parameter. The driver refuses the class, since a misspelled parameter must not "
        "end as an unencrypted volume.",
        "Write the name as docs/storageclass.md lists it, or remove it.",
    ),
    _error(
        ProblemKind.NO_EFFECT,
        "A parameter of the older driver's published 'encrypted' sample and chart. Nothing ever read it: "
        "volumes of such a class were plaintext.",
        "Use encrypt-type and kbs-key-id. Take what is on older volumes for disclosed (docs/migrate.md).",
    ),
    _error(
        ProblemKind.OTHER_CLOUD,
        "The parameter belongs to another cloud than the class.",
        "Remove it, or correct cloudProvider.",
    ),
    _error(
        ProblemKind.CREDENTIAL,
        "The name of a parameter or setting looks like a credential. Parameters are copied to "
        "PersistentVolumes, which many can read.",
        "Give the controller a workload identity or a Secret, remove this, and rotate the credential.",
    ),
    _error(
        ProblemKind.PROVIDER_UNKNOWN,
        "No provider of that name is known here.",
        "Use aws, azure, libvirt or local, or install the third party's provider beside this command.",
    ),
    _error(
        ProblemKind.VALUE,
        "The cloud can't make a volume with this value, or not together with another one.",
        "Correct the value; docs/aws.md, docs/azure.md and docs/libvirt.md list what is possible.",
    ),
    _error(
        "parameter-not-string",
        "Parameters are strings to Kubernetes; without quotes YAML makes this a number, a truth value or "
        "null, and the API server refuses the object.",
        'Put the value in quotes: "3000", "true".',
    ),
    _error(
        ProblemKind.TOO_LONG,
        "The parameters together are too long to be repeated in the PersistentVolume.",
        "Shorten their values.",
    ),
    _error(
        "reserved-parameter",
        "Names that begin with csi.storage.k8s.io/ are Kubernetes' own, and a class can't set this one.",
        "For the file system it is csi.storage.k8s.io/fstype, in lower case. Remove others.",
    ),
    _error(
        ProblemKind.ENCRYPTION_INCOMPLETE,
        "Encryption needs encrypt-type and kbs-key-id together. With one of them the volume would be "
        "plaintext, so it is refused.",
        "Set both, or neither.",
    ),
    _error(
        ProblemKind.ENCRYPT_TYPE,
        "encrypt-type has a value that nothing in the guest takes for encryption.",
        "Write luks2 (or luks, which means the same), in lower case.",
    ),
    _error(
        ProblemKind.KEY_ID,
        "kbs-key-id is no path in the key broker, so no guest could fetch the key.",
        "Write repository/type/tag, without kbs:///; ${pvc.namespace}, ${pvc.name} and ${pv.name} stand for "
        "the claim's and volume's names (docs/storageclass.md).",
    ),
    _error(
        ProblemKind.FILE_SYSTEM,
        "The guest has no such file system: an encrypted volume is ext4, a plain one ext4 or xfs.",
        "Set csi.storage.k8s.io/fstype: ext4.",
    ),
    _warning(
        "fs-type-parameter",
        "fsType as a parameter is deprecated; Kubernetes has a key of its own for it.",
        "Write csi.storage.k8s.io/fstype instead.",
    ),
    _error(
        "mount-option",
        "Nothing carries mount options into the guest, so the driver refuses those that it can't honor.",
        "Remove it from mountOptions; ro, nodev, nosuid and noatime can stay.",
    ),
    _warning(
        "binding-mode",
        "The volume is made at once, in a zone that nobody chose; a pod that can't run there never starts.",
        "Set volumeBindingMode: WaitForFirstConsumer.",
    ),
    _error(
        "topology-key",
        "allowedTopologies uses a key that this driver's nodes do not have, so no volume can be made.",
        "Use topology.caa-csi-block.csi.confidentialcontainers.io/zone, with the cloud's name of the zone.",
    ),
    _warning(
        "shared-key",
        "Several volumes have one key. That works, but the untrusted host can exchange them for each other, "
        "and whoever leaks one key leaks all.",
        "Name the key by the claim: kbs-key-id: ${pvc.namespace}/volume-key/${pvc.name}.",
    ),
    _error(
        "driver-name",
        "The name is nearly this driver's, so it is probably meant; with it, no driver answers.",
        "Write caa-csi-block.csi.confidentialcontainers.io.",
    ),
    _error(
        "attributes-class",
        "A VolumeAttributesClass names a parameter that can't change, or that can't have this value.",
        "Keep to the parameters that docs/aws.md and docs/azure.md name as changeable.",
    ),
)

_CLAIMS = (
    _error(
        "access-mode",
        "A volume is one disk in one PodVM, so several nodes or pods can't share it.",
        "Use ReadWriteOnce or ReadWriteOncePod.",
    ),
    _error(
        "volume-mode",
        "The guest hands containers a mounted file system, not a raw device.",
        "Leave volumeMode out (Filesystem), and use volumeMounts instead of volumeDevices.",
    ),
    _error(
        "size-invalid",
        "The claim's size is missing, or not a quantity of Kubernetes.",
        "Write spec.resources.requests.storage as 10Gi or 512Mi.",
    ),
    _error(
        "size-out-of-range",
        "The cloud can't make a volume of that size.",
        "Ask for a size within the limits, or choose another disk type.",
    ),
    _warning(
        "size-rounded",
        "The cloud makes disks in steps, so the volume becomes larger than asked for (and is paid for so).",
        "Ask for the size that it becomes.",
    ),
    _error(
        "copy-source",
        "A copy carries its source's LUKS header: it opens with the source's key alone, and only this driver "
        "can make it from volumes and snapshots of its own.",
        "Use a StorageClass of this driver with the source's encryption (a templated kbs-key-id fits any "
        "encrypted source).",
    ),
)

_VOLUMES = (
    _error(
        "volume-disk",
        "Nothing in the PersistentVolume names a disk that can be attached to a PodVM.",
        "Put cloud-volume-path (vol-… on AWS, the resource id on Azure) into spec.csi.volumeAttributes.",
    ),
    _error(
        "unknown-attribute",
        "The attribute is nearly one that the driver reads, and as it stands nothing reads it: the volume "
        "would be published without it.",
        "Correct the name.",
    ),
)

_PODS = (
    _error(
        "runtime-class",
        "A pod with a volume of this driver must be a peer pod. Outside of a PodVM nobody mounts the volume: "
        "the container writes to an empty directory of the worker, in the clear, and loses it.",
        "Set runtimeClassName to one whose handler starts peer pods: kata-remote.",
    ),
    _warning(
        "runtime-class-unknown",
        "It is not known here whether this RuntimeClass is one of peer pods.",
        "Give its manifest, too; --peer-pod-handlers names other handlers than kata-remote.",
    ),
    _warning(
        "plain-volume",
        "The volume is not encrypted: the host can read and change what is on it. The guest refuses it, "
        "unless a volume policy, in the initdata or the image, says that the place is not encrypted.",
        "Use a StorageClass with encrypt-type and kbs-key-id, or a policy for the place (docs/policy.md).",
    ),
    _error(
        "policy-refuses",
        "The volume policy in the pod's own initdata refuses this volume at this place, so the container "
        "would not start.",
        "Make policy, StorageClass and mountPath agree; 'confidential-csi policy for' writes the policy.",
    ),
    _error(
        "sub-path",
        "A part of a volume can't be mounted: cloud-api-adaptor skips subPath, and the agent refuses it.",
        "Mount the whole volume, or one volume for each directory.",
    ),
    _error(
        "mount-path",
        "The guest mounts no volume there: it would hide what the image or the runtime provides.",
        "Choose another directory, as /data.",
    ),
    _error(
        "inline-volume",
        "Inline CSI volumes would let whoever writes the pod choose the volume's attributes; this driver has "
        "none.",
        "Use a PersistentVolumeClaim, or a generic ephemeral volume (ephemeral.volumeClaimTemplate).",
    ),
    _error(
        "replicas-share-claim",
        "All replicas use one claim, but its disk can be in one PodVM only: the others never start.",
        "Use a StatefulSet with volumeClaimTemplates, ephemeral volumes, or one replica.",
    ),
    _warning(
        "rolling-update",
        "A rolling update starts the new pod before it ends the old one, which keeps the disk: the update "
        "never finishes.",
        "Set strategy: {type: Recreate}.",
    ),
    _warning(
        "claim-in-several-pods",
        "Several pods name one claim. Its disk can be in one PodVM at a time, so they can't run together.",
        "Give each a claim of its own, unless they run one after the other.",
    ),
)

_SNAPSHOTS = (
    _error(
        "snapshot-class-parameters",
        "A VolumeSnapshotClass of this driver has no parameters of its own; a snapshot with some is refused.",
        "Remove them (those that begin with csi.storage.k8s.io/ are Kubernetes' own).",
    ),
    _error(
        "snapshot-driver",
        "Class and volume of the snapshot belong to different drivers.",
        "Use a VolumeSnapshotClass with driver: caa-csi-block.csi.confidentialcontainers.io for volumes of "
        "this driver, and only for them.",
    ),
)

_INSTALLATION = (
    _error(
        "csidriver-attach",
        "With attachRequired: false, as the older driver had it, nothing keeps two nodes from starting a "
        "PodVM with one disk. The field is immutable.",
        "Delete the CSIDriver object and create it with attachRequired: true (docs/migrate.md).",
    ),
    _error(
        "csidriver-ephemeral",
        "volumeLifecycleModes lists Ephemeral: users could write volume attributes of their own into pods.",
        "Set volumeLifecycleModes: [Persistent].",
    ),
    _error(
        "csidriver-field",
        "The CSIDriver object says something about the driver that is not so.",
        "Take deploy/csi-driver.yaml as it is.",
    ),
    _error(
        "chart-value",
        "The chart has no such value, or not with this content; Helm refuses it.",
        "Write it as deploy/charts/confidential-csi/values.yaml shows.",
    ),
)

_POLICIES = (
    _error(
        "policy-invalid",
        "The guest can't read the volume policy. It then mounts no volume at all.",
        "Correct the field (docs/policy.md); 'confidential-csi policy check' says what a policy means.",
    ),
    _error(
        "initdata-invalid",
        "The guest can't read the initdata, so it mounts no volume at all.",
        'Write algorithm = "sha256", version = "0.1.0" and a table [data] of files (docs/policy.md).',
    ),
    _warning(
        "policy-adopts",
        "adopt = true lets the guest believe a LUKS header that the agent did not make. It is for one start.",
        "Remove it after the first start.",
    ),
)

#: In the order of the page.
SECTIONS: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "Files": _FILES,
        "StorageClasses and VolumeAttributesClasses": _CLASSES,
        "Claims": _CLAIMS,
        "PersistentVolumes": _VOLUMES,
        "Pods and workloads": _PODS,
        "Snapshots": _SNAPSHOTS,
        "Installation": _INSTALLATION,
        "Volume policies": _POLICIES,
    }
)

RULES: Mapping[str, Rule] = MappingProxyType(
    {str(rule.id): rule for rules in SECTIONS.values() for rule in rules}
)
