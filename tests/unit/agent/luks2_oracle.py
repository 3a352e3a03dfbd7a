"""On-disk format 1 as a schema, written down a second time and without the agent's code.

Mutation tests ask it whether a mutated header still keeps to the profile.
"""

import base64
import json
import re
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]


def _one_of(*values: Any) -> Check:
    return lambda value: any(type(value) is type(each) and value == each for each in values)


def _between(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _encoded(length: int) -> Check:
    def check(value: Any) -> bool:
        if type(value) is not str or not re.fullmatch(r"[A-Za-z0-9+/]+=*", value):
            return False
        try:
            raw = base64.b64decode(value)
        except ValueError:
            return False
        return len(raw) == length and base64.b64encode(raw) == value.encode()

    return check


def _multiple_of_4096(value: Any) -> bool:
    return (
        type(value) is str
        and re.fullmatch(r"0|[1-9][0-9]{0,15}", value, re.ASCII) is not None
        and int(value) % 4096 == 0
    )


KEYSLOT = {
    "type": _one_of("luks2"),
    "key_size": _one_of(64),
    "af": {"type": _one_of("luks1"), "stripes": _one_of(4000), "hash": _one_of("sha256")},
    "area": {
        "type": _one_of("raw"),
        "offset": _multiple_of_4096,
        "size": _multiple_of_4096,
        "encryption": _one_of("aes-xts-plain64"),
        "key_size": _one_of(64),
    },
    "kdf": {
        "type": _one_of("pbkdf2"),
        "hash": _one_of("sha256"),
        "iterations": _between(1000, 100_000),
        "salt": _encoded(32),
    },
}
SEGMENT = {
    "type": _one_of("crypt"),
    "offset": _one_of("4194304"),
    "size": _one_of("dynamic"),
    "iv_tweak": _one_of("0"),
    "encryption": _one_of("aes-xts-plain64"),
    "sector_size": _one_of(4096),
}
DIGEST = {
    "type": _one_of("pbkdf2"),
    "keyslots": lambda value: type(value) is list and all(type(name) is str for name in value),
    "segments": _one_of(["0"]),
    "hash": _one_of("sha256"),
    "iterations": _between(1000, 100_000),
    "salt": _encoded(32),
    "digest": _encoded(32),
}
CONFIG = {"json_size": _one_of("12288"), "keyslots_size": _one_of("1048576")}


def _matches(value: Any, schema: Any) -> bool:
    if callable(schema):
        return bool(schema(value))
    return (
        type(value) is dict
        and set(value) == set(schema)
        and all(_matches(value[name], part) for name, part in schema.items())
    )


def _named(value: Any, last: int, schema: Any) -> bool:
    names = {str(number) for number in range(last + 1)}
    return (
        type(value) is dict and set(value) <= names and all(_matches(each, schema) for each in value.values())
    )


def in_format_1(document: Any) -> bool:
    """Whether decoded metadata keeps to on-disk format 1."""
    if type(document) is not dict or set(document) != {"keyslots", "tokens", "segments", "digests", "config"}:
        return False
    keyslots, digests = document["keyslots"], document["digests"]
    if not (
        _matches(document["tokens"], {})
        and _matches(document["config"], CONFIG)
        and _named(document["segments"], 0, SEGMENT)
        and len(document["segments"]) == 1
        and _named(digests, 7, DIGEST)
        and len(digests) == 1
        and _named(keyslots, 31, KEYSLOT)
        and 1 <= len(keyslots) <= 4
    ):
        return False
    (digest,) = digests.values()
    if len(digest["keyslots"]) != len(keyslots) or set(digest["keyslots"]) != set(keyslots):
        return False
    taken: set[int] = set()
    for keyslot in keyslots.values():
        start, length = int(keyslot["area"]["offset"]), int(keyslot["area"]["size"])
        if length < 256_000 or start < 32768 or start + length > 32768 + 1048576:
            return False
        blocks = set(range(start // 4096, (start + length) // 4096))
        if taken & blocks:
            return False
        taken |= blocks
    return True


def text_in_format_1(text: bytes) -> bool:
    """Whether the bytes of a JSON area before its first NUL keep to on-disk format 1."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a member occurs twice")
        return dict(pairs)

    if not text.startswith(b"{"):
        return False
    try:
        document = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        return False
    return in_format_1(document)
