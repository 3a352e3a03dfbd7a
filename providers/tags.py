"""What providers that keep files record beside each disk, as JSON; written once, when the object is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import cast

from providers.errors import CorruptStateError
from providers.interface import ContentSource, Encryption, SourceKind

FORMAT = 1


@dataclass(frozen=True)
class VolumeTags:
    """A volume's facts; its real size is the disk's."""

    name: str
    created_size_bytes: int
    encryption: Encryption | None
    fs_type: str
    source: ContentSource | None
    labels: Mapping[str, str]
    created_at: datetime


@dataclass(frozen=True)
class SnapshotTags:
    """A snapshot's facts; its size is the disk's."""

    name: str
    source_handle: str
    encryption: Encryption | None
    fs_type: str
    created_at: datetime


def encode(tags: VolumeTags | SnapshotTags) -> bytes:
    """``tags`` as they are kept on disk."""
    document: dict[str, object] = {"format": FORMAT, **asdict(tags)}
    document["created_at"] = tags.created_at.astimezone(UTC).isoformat()
    if isinstance(tags, VolumeTags) and tags.source is not None:
        document["source"] = {"kind": tags.source.kind.value, "handle": tags.source.handle}
    return json.dumps(document, sort_keys=True).encode()


def decode_volume(data: bytes) -> VolumeTags:
    """The volume tags in ``data``.

    Raises:
        CorruptStateError: these are not such tags.
    """
    fields = _Fields(data)
    source = fields.optional("source")
    return VolumeTags(
        name=fields.text("name"),
        created_size_bytes=fields.integer("created_size_bytes"),
        encryption=_encryption(fields),
        fs_type=fields.text("fs_type"),
        source=None if source is None else ContentSource(source.source_kind("kind"), source.text("handle")),
        labels=fields.texts("labels"),
        created_at=fields.time("created_at"),
    )


def decode_snapshot(data: bytes) -> SnapshotTags:
    """The snapshot tags in ``data``.

    Raises:
        CorruptStateError: these are not such tags.
    """
    fields = _Fields(data)
    return SnapshotTags(
        name=fields.text("name"),
        source_handle=fields.text("source_handle"),
        encryption=_encryption(fields),
        fs_type=fields.text("fs_type"),
        created_at=fields.time("created_at"),
    )


def _encryption(fields: _Fields) -> Encryption | None:
    encryption = fields.optional("encryption")
    if encryption is None:
        return None
    return Encryption(encryption.text("encrypt_type"), encryption.text("kbs_key_id"))


class _Fields:
    """Typed access to a JSON object; whatever is missing or of another type is corrupt."""

    def __init__(self, data: bytes | dict[str, object]) -> None:
        if isinstance(data, dict):
            self._fields = data
            return
        try:
            document: object = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CorruptStateError("a record of tags is not JSON; a person must look at it") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise CorruptStateError(f"a record of tags is not of format {FORMAT}; a person must look")
        self._fields = cast(dict[str, object], document)

    def text(self, key: str) -> str:
        value = self._fields.get(key)
        if not isinstance(value, str):
            raise _wrong(key)
        return value

    def integer(self, key: str) -> int:
        value = self._fields.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(key)
        return value

    def time(self, key: str) -> datetime:
        try:
            value = datetime.fromisoformat(self.text(key))
        except ValueError as error:
            raise _wrong(key) from error
        if value.tzinfo is None:
            raise _wrong(key)
        return value

    def source_kind(self, key: str) -> SourceKind:
        try:
            return SourceKind(self.text(key))
        except ValueError as error:
            raise _wrong(key) from error

    def texts(self, key: str) -> dict[str, str]:
        value = self._fields.get(key)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise _wrong(key)
        return cast(dict[str, str], value)

    def optional(self, key: str) -> _Fields | None:
        value = self._fields.get(key, _MISSING)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _wrong(key)
        return _Fields(value)


_MISSING = object()


def _wrong(key: str) -> CorruptStateError:
    return CorruptStateError(f"a record of tags has no usable {key!r}; a person must look at it")
