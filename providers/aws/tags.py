"""What is recorded on volumes and snapshots, as tags; the older Go driver's keys are kept.

EC2 takes any text in a tag's value, but other services that read tags don't: values are letters, digits,
spaces and ``+ - = . _ : / @``, at most 256.
"""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from providers.disk_facts import ENCRYPT_TYPE, KBS_KEY_ID, encryption_in, source_in
from providers.errors import CorruptStateError
from providers.interface import ContentSource, Encryption
from providers.names import backend_name

VOLUME_PREFIX = "csi-vol-"
SNAPSHOT_PREFIX = "csi-snap-"

#: The Go driver's.
NAME = "Name"
VOLUME_KEY = "caa-csi-volume-id"
SNAPSHOT_KEY = "caa-csi-snapshot-id"
TEMPORARY_KEY = "caa-csi-temp-snapshot"

#: Ours. The first is on every object that this driver made.
FORMAT = "caa-csi-format"
CSI_NAME = "caa-csi-name"
CLUSTER = "caa-csi-cluster-id"
CREATED_SIZE = "caa-csi-created-bytes"
CREATED_AS = "caa-csi-created-as"
FILE_SYSTEM = "caa-csi-fs-type"
SOURCE = "caa-csi-source"
NODE = "caa-csi-node"

#: From the request's labels to the keys that Kubernetes' own volume code used on EBS.
LABELS: Mapping[str, str] = {
    "pvc/name": "kubernetes.io/created-for/pvc/name",
    "pvc/namespace": "kubernetes.io/created-for/pvc/namespace",
    "pv/name": "kubernetes.io/created-for/pv/name",
}

RESERVED_KEYS = frozenset({NAME, ENCRYPT_TYPE, KBS_KEY_ID, *LABELS.values()})

_FORMAT = "1"
_PUNCTUATION = frozenset("+-=._:/@ ")
_MAXIMUM_VALUE = 256


@dataclass(frozen=True)
class Facts:
    """What a volume's or snapshot's tags say."""

    name: str
    """The CSI name; empty for an object that no driver made."""
    key: str
    """By which objects of that name are looked up."""
    cluster_id: str
    encryption: Encryption | None
    fs_type: str
    source: ContentSource | None
    created_bytes: int | None
    created_as: str | None
    """The parameters it was created with, as one text; None if it was not made by this driver."""
    node_id: str


def is_tag_text(text: str, maximum: int) -> bool:
    """Whether every AWS service takes ``text`` in a tag."""
    return len(text) <= maximum and all(
        character in _PUNCTUATION or unicodedata.category(character)[0] in "LN" for character in text
    )


def volume_key(name: str) -> str:
    """What :data:`VOLUME_KEY` holds for the CSI name ``name``: the name itself, if it is an ordinary one."""
    return backend_name(VOLUME_PREFIX, name).removeprefix(VOLUME_PREFIX)


def snapshot_key(name: str) -> str:
    """What :data:`SNAPSHOT_KEY` holds for the CSI name ``name``."""
    return backend_name(SNAPSHOT_PREFIX, name).removeprefix(SNAPSHOT_PREFIX)


def common(
    name: str, key: str, cluster_id: str, fs_type: str, encryption: Encryption | None
) -> dict[str, str]:
    """The tags that volumes and snapshots have in common."""
    tags = {FORMAT: _FORMAT, FILE_SYSTEM: fs_type}
    if key != name:
        tags[CSI_NAME] = base64.urlsafe_b64encode(name.encode()).decode()
    if cluster_id:
        tags[CLUSTER] = cluster_id
    if encryption is not None:
        tags[ENCRYPT_TYPE] = encryption.encrypt_type
        tags[KBS_KEY_ID] = encryption.kbs_key_id
    return tags


def of_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """PVC and PV names; what a tag can't hold becomes ``-``, as only people read them."""
    return {
        key: "".join(one if is_tag_text(one, 1) else "-" for one in labels[label])[:_MAXIMUM_VALUE]
        for label, key in LABELS.items()
        if label in labels
    }


def read(tags: Mapping[str, str], key_tag: str) -> Facts:
    """The facts in ``tags``; ``key_tag`` is :data:`VOLUME_KEY` or :data:`SNAPSHOT_KEY`.

    Raises:
        CorruptStateError: tags of this driver that it can't have written.
    """
    key = tags.get(key_tag, "")
    try:
        name = base64.b64decode(tags.get(CSI_NAME, ""), b"-_", validate=True).decode() or key
        return Facts(
            name=name,
            key=key,
            cluster_id=tags.get(CLUSTER, ""),
            encryption=encryption_in(tags),
            fs_type=tags.get(FILE_SYSTEM, "ext4"),
            source=source_in(tags.get(SOURCE, "")),
            created_bytes=int(tags[CREATED_SIZE]) if CREATED_SIZE in tags else None,
            created_as=tags.get(CREATED_AS),
            node_id=tags.get(NODE, ""),
        )
    except (ValueError, binascii.Error, KeyError) as error:
        raise CorruptStateError(f"the tags of {key!r} are not what this driver wrote ({error})") from error
