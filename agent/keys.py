"""Volume keys: how a key is named, and what is accepted as one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Protocol

from agent.errors import Refused, quoted

MAX_KEY_ID: Final = 200
"""Bytes of a key id."""

MIN_KEY: Final = 32
"""Bytes of a key. The HMAC over the header lies where the host reads it: a short key could be guessed."""

_SEGMENT: Final = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_KEY_ID: Final = re.compile(f"{_SEGMENT}/{_SEGMENT}/{_SEGMENT}", re.ASCII)


class KeySource(Protocol):
    """Where keys come from: the data hub (``agent.cdh.DataHub``)."""

    def get_resource(self, uri: str) -> bytes:
        """The bytes that the key broker holds under ``uri``."""


@dataclass(frozen=True)
class ReleasedKey:
    """A key, and the id that it was released under. ``repr`` does not show the key."""

    key_id: str
    value: bytes = field(repr=False)


def key_uri(key_id: str) -> str:
    """The resource URI of a key id: ``kbs:///`` and the id.

    An id is a KBS resource path (Trustee): ``repository/type/tag``, each ``[A-Za-z0-9_-][A-Za-z0-9_.-]*``.

    Raises:
        Refused: rule ``key-id``: the id is not of that form, or longer than ``MAX_KEY_ID`` bytes.
    """
    if "://" in key_id:
        raise Refused(
            "key-id",
            f"key id {quoted(key_id)} carries a scheme; write only repository/type/tag, "
            "because kbs:/// is put in front of it here",
        )
    if len(key_id) > MAX_KEY_ID:
        raise Refused("key-id", f"key id {quoted(key_id)} is longer than {MAX_KEY_ID} bytes")
    if not _KEY_ID.fullmatch(key_id):
        raise Refused(
            "key-id",
            f"key id {quoted(key_id)} is not repository/type/tag, three segments of letters, digits, "
            "'_', '-' and '.', none beginning with '.'",
        )
    return f"kbs:///{key_id}"


def fetch_key(hub: KeySource, key_id: str) -> bytes:
    """The key of that id, byte for byte as the key broker holds it.

    Raises:
        Refused: the id is malformed (``key-id``), or the key is shorter than ``MIN_KEY`` bytes
            (``key-too-short``).
        Unavailable: the data hub did not release it.
    """
    key = hub.get_resource(key_uri(key_id))
    if len(key) < MIN_KEY:
        raise Refused(
            "key-too-short",
            f"the key {key_id} has {len(key)} bytes; store at least {MIN_KEY} random bytes in the key broker",
        )
    return key
