"""The tags in which every cloud keeps how a disk is encrypted, and what it was copied from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from providers.interface import ContentSource, Encryption, SourceKind

ENCRYPT_TYPE: Final = "encrypt-type"
KBS_KEY_ID: Final = "kbs-key-id"


def encryption_in(tags: Mapping[str, str]) -> Encryption | None:
    """The encryption that ``tags`` tell of; None when they tell of none.

    Raises:
        KeyError: one of the two tags is missing.
    """
    if ENCRYPT_TYPE not in tags and KBS_KEY_ID not in tags:
        return None
    return Encryption(tags[ENCRYPT_TYPE], tags[KBS_KEY_ID])


def source_text(source: ContentSource) -> str:
    """A source as the value of a tag."""
    return f"{source.kind.value} {source.handle}"


def source_in(text: str) -> ContentSource | None:
    """The source that a tag's value names; None when it is empty.

    Raises:
        ValueError: its kind is unknown.
    """
    kind, _, handle = text.partition(" ")
    return ContentSource(SourceKind(kind), handle) if handle else None
