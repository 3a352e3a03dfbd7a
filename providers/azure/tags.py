"""What is recorded on disks and snapshots, as tags; the older Go driver's keys are kept.

A resource has at most 50 tags; a key at most 512 characters without ``<>%&\\?/``, a value at most 256.
"""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from providers.azure.handles import SNAPSHOT_PREFIX, VOLUME_PREFIX
from providers.disk_facts import ENCRYPT_TYPE, KBS_KEY_ID, encryption_in, source_in
from providers.errors import CorruptStateError, InvalidParameterError
from providers.interface import ContentSource, Encryption, SourceKind
from providers.names import backend_name

#: The Go driver's. On a snapshot the first holds the name of the volume it was taken from.
VOLUME = "caa-csi-volume-id"
SNAPSHOT = "caa-csi-snapshot-id"
_GO_SOURCES = {SourceKind.SNAPSHOT: "source-snapshot", SourceKind.VOLUME: "source-volume"}

#: Ours.
CSI_NAME = "caa-csi-name"
CLUSTER = "caa-csi-cluster-id"
CREATED_SIZE = "caa-csi-created-bytes"
CREATED_AS = "caa-csi-created-as"
FILE_SYSTEM = "caa-csi-fs-type"
SOURCE = "caa-csi-source"
NODE = "caa-csi-node"

#: From the request's labels to the keys that Azure's own disk driver uses.
LABELS: Mapping[str, str] = {
    "pvc/name": "kubernetes.io-created-for-pvc-name",
    "pvc/namespace": "kubernetes.io-created-for-pvc-namespace",
    "pv/name": "kubernetes.io-created-for-pv-name",
}

MAXIMUM_TAGS = 50
_MAXIMUM_KEY = 512
_MAXIMUM_VALUE = 256


@dataclass(frozen=True)
class Facts:
    """What a disk's or snapshot's tags say."""

    name: str
    """The CSI name; empty for an object that no driver made."""
    cluster_id: str
    encryption: Encryption | None
    fs_type: str
    source: ContentSource | None
    go_source: tuple[SourceKind, str] | None
    """The CSI name of the source, on what the Go driver made."""
    created_bytes: int | None
    created_as: str | None
    """The parameters it was created with, as one text; None if it was not made by this driver."""
    node_id: str


def is_tag_key(text: str) -> bool:
    """Whether Azure takes ``text`` as the key of a tag."""
    return 0 < len(text) <= _MAXIMUM_KEY and text.isprintable() and not set(text) & set("<>%&\\?/")


def is_tag_value(text: str) -> bool:
    """Whether Azure takes ``text`` as the value of a tag."""
    return len(text) <= _MAXIMUM_VALUE and not any(unicodedata.category(one) == "Cc" for one in text)


def common(
    name: str, key: str, cluster_id: str, fs_type: str, encryption: Encryption | None
) -> dict[str, str]:
    """The tags that disks and snapshots have in common; ``key`` is :data:`VOLUME` or :data:`SNAPSHOT`.

    Raises:
        InvalidParameterError: the key id is longer than a tag's value may be.
    """
    prefix = VOLUME_PREFIX if key == VOLUME else SNAPSHOT_PREFIX
    text = backend_name(prefix, name).removeprefix(prefix)
    tags = {key: text, FILE_SYSTEM: fs_type}
    if text != name:
        tags[CSI_NAME] = base64.urlsafe_b64encode(name.encode()).decode()
    if cluster_id:
        tags[CLUSTER] = cluster_id
    if encryption is not None:
        if len(encryption.kbs_key_id) > _MAXIMUM_VALUE:
            raise InvalidParameterError(
                f"kbs-key-id has {len(encryption.kbs_key_id)} characters; a tag of Azure holds at most "
                f"{_MAXIMUM_VALUE}"
            )
        tags[ENCRYPT_TYPE] = encryption.encrypt_type
        tags[KBS_KEY_ID] = encryption.kbs_key_id
    return tags


def of_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """PVC and PV names, for people."""
    return {key: labels[label][:_MAXIMUM_VALUE] for label, key in LABELS.items() if label in labels}


def read(tags: Mapping[str, str], key: str) -> Facts:
    """The facts in ``tags``; ``key`` is :data:`VOLUME` or :data:`SNAPSHOT`.

    Raises:
        CorruptStateError: tags of this driver that it can't have written.
    """
    try:
        return Facts(
            name=base64.b64decode(tags.get(CSI_NAME, ""), b"-_", validate=True).decode() or tags.get(key, ""),
            cluster_id=tags.get(CLUSTER, ""),
            encryption=encryption_in(tags),
            fs_type=tags.get(FILE_SYSTEM, "ext4"),
            source=source_in(tags.get(SOURCE, "")),
            go_source=next(((kind, tags[tag]) for kind, tag in _GO_SOURCES.items() if tags.get(tag)), None),
            created_bytes=int(tags[CREATED_SIZE]) if CREATED_SIZE in tags else None,
            created_as=tags.get(CREATED_AS),
            node_id=tags.get(NODE, ""),
        )
    except (ValueError, binascii.Error, KeyError) as error:
        raise CorruptStateError(
            f"the tags of {tags.get(key, '')[:128]!r} are not what this driver wrote ({error})"
        ) from error
