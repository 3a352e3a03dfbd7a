"""What the interface tells of an object, from what the pool has."""

from __future__ import annotations

from datetime import UTC, datetime

from providers.errors import CorruptStateError
from providers.interface import Snapshot, Volume
from providers.libvirt.domains import Attachments
from providers.libvirt.handles import SNAPSHOT_PREFIX, VOLUME_PREFIX, Handle
from providers.libvirt.store import StoredObject
from providers.names import backend_name
from providers.tags import SnapshotTags, VolumeTags, decode_snapshot, decode_volume

#: The file system of a volume that carries no tags, as the Go driver took it for.
_GO_FS_TYPE = "ext4"


def volume(stored: StoredObject, attachments: Attachments | None = None) -> Volume:
    """The volume, with the domain that has it if ``attachments`` are given.

    Raises:
        CorruptStateError: its tags are another object's.
    """
    tags = volume_tags(stored)
    handle = str(Handle(stored.base, stored.pool.location))
    uses = [] if attachments is None else attachments.of(stored)
    return Volume(
        handle=handle,
        name=tags.name,
        size_bytes=stored.size_bytes,
        created_size_bytes=tags.created_size_bytes,
        encryption=tags.encryption,
        fs_type=tags.fs_type,
        source=tags.source,
        disk_id=handle,
        older_id=tags.name if stored.tags is None else "",
        published_node_id=stored.note,
        attached_to=uses[0].domain_name if uses else "",
    )


def snapshot(stored: StoredObject) -> Snapshot:
    """The snapshot.

    Raises:
        CorruptStateError: its tags are another object's.
    """
    tags = snapshot_tags(stored)
    return Snapshot(
        handle=str(Handle(stored.base, stored.pool.location)),
        name=tags.name,
        source_handle=tags.source_handle,
        size_bytes=stored.size_bytes,
        created_at=tags.created_at,
        ready=True,
        encryption=tags.encryption,
        fs_type=tags.fs_type,
    )


def volume_tags(stored: StoredObject) -> VolumeTags:
    """What is recorded with the volume; for one that the Go driver made, what can be told without a record.

    Raises:
        CorruptStateError: the tags are another object's.
    """
    if stored.tags is None:
        return VolumeTags(
            name=stored.base.removeprefix(VOLUME_PREFIX),
            created_size_bytes=stored.size_bytes,
            encryption=None,
            fs_type=_GO_FS_TYPE,
            source=None,
            labels={},
            created_at=datetime.fromtimestamp(0, UTC),
        )
    tags = decode_volume(stored.tags)
    _check_name(stored, VOLUME_PREFIX, tags.name)
    return tags


def snapshot_tags(stored: StoredObject) -> SnapshotTags:
    """What is recorded with the snapshot.

    Raises:
        CorruptStateError: the tags are another object's.
    """
    tags = decode_snapshot(stored.tags or b"")
    _check_name(stored, SNAPSHOT_PREFIX, tags.name)
    return tags


def _check_name(stored: StoredObject, prefix: str, name: str) -> None:
    if backend_name(prefix, name) != stored.base:
        raise CorruptStateError(f"the tags of {stored.base} are those of another object; a person must look")
