"""The JSON half of a LUKS2 header: decoding, and the rules every LUKS2 reader applies.

Accepts what cryptsetup 2.6.1 accepts, so that a disagreement never hides behind the stricter profile of
:mod:`agent.luks2_profile`. Where this module knowingly differs, it refuses more, and
``tests/differential/differences.json`` names each case with its reason.

Work is bounded: nesting and the number of values are limited before anything else looks at them, and no
check is worse than n log n.
"""

import json
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NoReturn

BINARY_HEADER_BYTES = 4096
METADATA_SIZES = tuple(0x4000 << shift for shift in range(9))
"""Sizes of one metadata copy in bytes (binary header and JSON): 16 KiB, 32 KiB … 4 MiB."""
MAX_KEYSLOTS_AREA_BYTES = 128 * 1024 * 1024
MAX_NESTING = 32
"""Deepest nesting of JSON values, the limit of json-c, which cryptsetup parses with."""
MAX_JSON_VALUES = 20_000
"""Values in one JSON area. A real header has a few hundred; 4 MiB of ``[]`` would cost 200 MB of memory."""

_DIGITS = re.compile(r"[0-9]+")
_UINT64_MAX = 2**64 - 1
_UINT32_MAX = 2**32 - 1
_ONLINE_REENCRYPT = re.compile(r"online-reencrypt(-v[0-9]+)?")
_KNOWN_ONLINE_REENCRYPT = frozenset({"online-reencrypt", "online-reencrypt-v2", "online-reencrypt-v3"})
_KDF_MEMBERS: Mapping[str, Mapping[str, type]] = {
    "pbkdf2": {"hash": str, "iterations": int, "salt": str},
    "argon2i": {"time": int, "memory": int, "cpus": int, "salt": str},
    "argon2id": {"time": int, "memory": int, "cpus": int, "salt": str},
}

JsonObject = dict[str, Any]


class HeaderError(Exception):
    """The bytes are not a LUKS2 header copy that cryptsetup would take. ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def show(value: object) -> str:
    """A short printable form of an untrusted value, for messages."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


# --- decoding -----------------------------------------------------------------------------------------


def decode(json_area: bytes) -> tuple[JsonObject, tuple[str, ...]]:
    """Decode a JSON area: one object from the first byte on, then only NUL bytes to the end.

    Returns the object and the member names that occur twice in some object (the last one wins, as in
    cryptsetup). Raises HeaderError.
    """
    if json_area[:1] != b"{":
        raise HeaderError("the JSON area does not start with '{'")
    end = json_area.find(b"\0")
    if end < 0:
        raise HeaderError("the JSON text is not terminated by a NUL byte")
    if json_area.count(b"\0", end) != len(json_area) - end:
        raise HeaderError("there are bytes other than NUL after the JSON text")
    text = json_area[:end]
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MAX_JSON_VALUES:
        raise HeaderError(f"the JSON text holds more than {MAX_JSON_VALUES} values")

    duplicates: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> JsonObject:
        members = dict(pairs)
        if len(members) != len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    duplicates.append(name)
                seen.add(name)
        return members

    try:
        metadata = json.loads(text.decode("utf-8"), object_pairs_hook=collect, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"the JSON text does not parse: {show(str(error))}") from None
    if type(metadata) is not dict:
        raise HeaderError("the JSON text is not an object")
    _check_values(metadata)
    return metadata, tuple(duplicates)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_values(metadata: JsonObject) -> None:
    """Bound the nesting, and refuse what C and Python would read differently."""
    level: list[Any] = [metadata]
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is dict:
                for name in value:
                    _check_text(name)
                below.extend(value.values())
            elif kind is list:
                below.extend(value)
            elif kind is str:
                _check_text(value)
            elif kind is int and not -(2**63) <= value <= _UINT64_MAX:
                raise HeaderError("a JSON number does not fit in 64 bits")
        if not below:
            return
        level = below
    raise HeaderError(f"the JSON text is nested more than {MAX_NESTING} deep")


def _check_text(text: str) -> None:
    if "\0" in text:
        raise HeaderError("a JSON string holds a NUL character, where a C reader would cut it")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise HeaderError("a JSON string holds half of a surrogate pair")


# --- access to members ----------------------------------------------------------------------------------


def _member(holder: Any, name: str, kind: type, where: str) -> Any:
    # type() rather than isinstance(): a JSON boolean is a Python int.
    value = holder.get(name) if type(holder) is dict else None
    if type(value) is not kind:
        raise HeaderError(f"{where} has no {kind.__name__} {name!r}")
    return value


def _text(holder: Any, name: str, where: str) -> str:
    value: str = _member(holder, name, str, where)
    if not value:
        raise HeaderError(f"{where} has an empty {name!r}")
    return value


def _object(holder: Any, name: str, where: str) -> JsonObject:
    value: JsonObject = _member(holder, name, dict, where)
    return value


def _strings(holder: Any, name: str, where: str) -> list[str]:
    values: list[str] = _member(holder, name, list, where)
    if any(type(value) is not str for value in values):
        raise HeaderError(f"{where} has something other than strings in {name!r}")
    return values


def _number(text: str, where: str) -> int:
    """A number written as a string of ASCII digits, at most 64 bits."""
    if not _DIGITS.fullmatch(text):
        raise HeaderError(f"{where} is not a decimal number: {show(text)}")
    digits = text.lstrip("0") or "0"
    if len(digits) > 20 or int(digits) > _UINT64_MAX:
        raise HeaderError(f"{where} does not fit in 64 bits")
    return int(digits)


def _uint32(holder: Any, name: str, where: str) -> int:
    value: int = _member(holder, name, int, where)
    if not 0 <= value <= _UINT32_MAX:
        raise HeaderError(f"{where} has {name!r} out of range")
    return value


def _check_identifiers(objects: JsonObject, where: str) -> None:
    """Keyslots, segments, digests and tokens are named by canonical decimal numbers."""
    for name in objects:
        if not _DIGITS.fullmatch(name) or len(name) > 9 or (name[0] == "0" and name != "0"):
            raise HeaderError(f"{where} has a member that is not a number: {show(name)}")


# --- validation ------------------------------------------------------------------------------------------


def validate(metadata: JsonObject, json_area_bytes: int) -> None:
    """Check the metadata of one copy as cryptsetup does when it loads a header.

    ``json_area_bytes`` is the size of the JSON area that the binary header announces. Raises HeaderError.
    """
    top = "the metadata"
    keyslots = _object(metadata, "keyslots", top)
    tokens = _object(metadata, "tokens", top)
    segments = _object(metadata, "segments", top)
    digests = _object(metadata, "digests", top)
    config = _object(metadata, "config", top)
    for objects, where in (
        (keyslots, "keyslots"),
        (tokens, "tokens"),
        (segments, "segments"),
        (digests, "digests"),
    ):
        _check_identifiers(objects, where)

    requirements = _validate_requirements(config)
    for name, token in tokens.items():
        where = f"token {name}"
        _text(token, "type", where)
        _check_references(_strings(token, "keyslots", where), keyslots, where)
    for name, digest in digests.items():
        where = f"digest {name}"
        _text(digest, "type", where)
        _check_references(_strings(digest, "keyslots", where), keyslots, where)
        _check_references(_strings(digest, "segments", where), segments, where)
    first_data_offset = _validate_segments(segments, digests, requirements)
    _validate_config(config, json_area_bytes, first_data_offset)
    _validate_keyslots(keyslots, digests, requirements, 2 * (json_area_bytes + BINARY_HEADER_BYTES), config)


def keyslots_area_bytes(metadata: Mapping[str, Any]) -> int:
    """Size of the binary keyslots area of validated metadata, in bytes."""
    return _number(metadata["config"]["keyslots_size"], "keyslots_size")


def _check_references(names: Iterable[str], objects: JsonObject, where: str) -> None:
    for name in names:
        if type(objects.get(name)) is not dict:
            raise HeaderError(f"{where} refers to {show(name)}, which does not exist")


def _validate_requirements(config: JsonObject) -> list[str]:
    if "requirements" not in config:
        return []
    requirements = _object(config, "requirements", "config")
    if "mandatory" not in requirements:
        return []
    mandatory = _strings(requirements, "mandatory", "requirements")
    if sum(1 for name in mandatory if _ONLINE_REENCRYPT.fullmatch(name)) > 1:
        raise HeaderError("more than one online re-encryption requirement")
    return mandatory


def _validate_config(config: JsonObject, json_area_bytes: int, first_data_offset: int) -> None:
    json_size = _number(_text(config, "json_size", "config"), "json_size")
    keyslots_size = _number(_text(config, "keyslots_size", "config"), "keyslots_size")
    metadata_bytes = json_size + BINARY_HEADER_BYTES
    if metadata_bytes not in METADATA_SIZES:
        raise HeaderError(f"json_size {json_size} is not one that LUKS2 knows")
    if json_size != json_area_bytes:
        raise HeaderError(f"json_size is {json_size}, the binary header says {json_area_bytes}")
    if keyslots_size % 4096 or keyslots_size > MAX_KEYSLOTS_AREA_BYTES:
        raise HeaderError(f"keyslots_size {keyslots_size} is not aligned to 4096 or is above 128 MiB")
    # Offset 0 means a detached header: the data is elsewhere.
    if first_data_offset and first_data_offset < keyslots_size + 2 * metadata_bytes:
        raise HeaderError("the data begins inside the metadata or the keyslots area")
    if "flags" in config:
        _strings(config, "flags", "config")


# --- segments ----------------------------------------------------------------------------------------------


def _validate_segments(segments: JsonObject, digests: JsonObject, requirements: list[str]) -> int:
    """Check the segments; returns the lowest data offset in bytes."""
    if not segments:
        raise HeaderError("there are no segments")
    with_digest = {name for digest in digests.values() for name in digest["segments"]}
    extents: dict[int, tuple[int, int | None]] = {}
    backups: list[int] = []
    for name, segment in segments.items():
        where = f"segment {name}"
        kind = _text(segment, "type", where)
        offset = _number(_text(segment, "offset", where), f"{where} offset")
        written_size = _text(segment, "size", where)
        size = None if written_size == "dynamic" else _number(written_size, f"{where} size")
        if size == 0:
            raise HeaderError(f"{where} has size 0")
        if offset % 512 or (size or 0) % 512:
            raise HeaderError(f"{where} is not aligned to 512 bytes")
        flags = _strings(segment, "flags", where) if "flags" in segment else []
        if any(flag.startswith("backup-") for flag in flags):
            backups.append(int(name))
        else:
            extents[int(name)] = (offset, size)
        if kind == "crypt":
            _validate_crypt_segment(segment, where, size)
            if name not in with_digest:
                raise HeaderError(f"{where} belongs to no digest")

    # Regular segments are numbered from 0, backups follow, without a gap.
    if not extents or sorted(extents) + sorted(backups) != list(range(len(segments))):
        raise HeaderError("the segments are not numbered from 0, backup segments last")
    _validate_extents([extents[number] for number in range(len(extents))])
    if any(name in _KNOWN_ONLINE_REENCRYPT for name in requirements):
        _validate_reencryption(segments, len(extents))
    return min(offset for offset, _ in extents.values())


def _validate_crypt_segment(segment: JsonObject, where: str, size: int | None) -> None:
    iv_tweak = _text(segment, "iv_tweak", where)
    _text(segment, "encryption", where)
    sector_size = _uint32(segment, "sector_size", where)
    if "integrity" in segment:
        integrity = _object(segment, "integrity", where)
        for name in ("type", "journal_encryption", "journal_integrity"):
            _text(integrity, name, f"{where} integrity")
    if not sector_size or sector_size % 512:
        raise HeaderError(f"{where} has sector size {sector_size}")
    _number(iv_tweak, f"{where} iv_tweak")
    if (size or 0) % sector_size:
        raise HeaderError(f"{where} has a size that is no multiple of its sector size")


def _validate_extents(extents: list[tuple[int, int | None]]) -> None:
    if any(size is None for _, size in extents[:-1]):
        raise HeaderError("only the last regular segment may have a dynamic size")
    if len(extents) > 1 and any(size is not None and offset + size > _UINT64_MAX for offset, size in extents):
        raise HeaderError("a segment ends beyond 64 bits")
    ordered = sorted(extents, key=lambda extent: extent[0])
    for (offset, size), (next_offset, _) in pairwise(ordered):
        if size is None or next_offset < offset + size:
            raise HeaderError("segments overlap")


def _validate_reencryption(segments: JsonObject, regular: int) -> None:
    def flags(segment: JsonObject) -> list[str]:
        return list(segment.get("flags", ()))

    def likeness(segment: JsonObject) -> tuple[Any, ...]:
        if segment["type"] != "crypt":
            return (segment["type"],)
        return ("crypt", segment["sector_size"], segment["encryption"])

    final = previous = None
    for number in range(regular, len(segments)):
        segment = segments[str(number)]
        if "backup-final" in flags(segment):
            final = segment
        elif "backup-previous" in flags(segment):
            previous = segment
    if final is None or previous is None:
        raise HeaderError("a backup segment of the re-encryption is missing")
    for number in range(regular):
        segment = segments[str(number)]
        allowed = [final] if "in-reencryption" in flags(segment) else [final, previous]
        if likeness(segment) not in [likeness(backup) for backup in allowed]:
            raise HeaderError(f"segment {number} does not match the backup segments of the re-encryption")


# --- keyslots ----------------------------------------------------------------------------------------------


def _validate_keyslots(
    keyslots: JsonObject,
    digests: JsonObject,
    requirements: list[str],
    area_start: int,
    config: JsonObject,
) -> None:
    area_end = area_start + _number(config["keyslots_size"], "keyslots_size")
    uses: dict[str, int] = {}
    for digest in digests.values():
        for name in set(digest["keyslots"]):
            uses[name] = uses.get(name, 0) + 1
    areas: list[tuple[int, int]] = []
    reencryption_slots = 0
    for name, keyslot in keyslots.items():
        where = f"keyslot {name}"
        kind = _text(keyslot, "type", where)
        _uint32(keyslot, "key_size", where)
        area = _object(keyslot, "area", where)
        _text(area, "type", f"{where} area")
        areas.append(
            (
                _number(_text(area, "offset", f"{where} area"), f"{where} area offset"),
                _number(_text(area, "size", f"{where} area"), f"{where} area size"),
            )
        )
        if kind == "luks2":
            _validate_luks2_keyslot(keyslot, where)
            if uses.get(name) != 1:
                raise HeaderError(f"{where} does not belong to exactly one digest")
        elif kind == "reencrypt":
            reencryption_slots += 1
            _validate_reencryption_keyslot(keyslot, where)

    _validate_areas(areas, area_start, area_end)
    if reencryption_slots > 1:
        raise HeaderError("there is more than one re-encryption keyslot")
    if not reencryption_slots and any(name in _KNOWN_ONLINE_REENCRYPT for name in requirements):
        raise HeaderError("the re-encryption keyslot is missing")
    if reencryption_slots and not any(_ONLINE_REENCRYPT.fullmatch(name) for name in requirements):
        raise HeaderError("a re-encryption keyslot without the re-encryption requirement")


def _validate_areas(areas: list[tuple[int, int]], start: int, end: int) -> None:
    areas.sort()
    for offset, size in areas:
        if offset < start or not size or offset + size > end:
            raise HeaderError("a keyslot area is empty or outside the keyslots area")
    for (offset, size), (next_offset, _) in pairwise(areas):
        if next_offset < offset + size:
            raise HeaderError("keyslot areas overlap")


def _validate_luks2_keyslot(keyslot: JsonObject, where: str) -> None:
    kdf = _object(keyslot, "kdf", where)
    af = _object(keyslot, "af", where)
    area = keyslot["area"]
    # Members beyond these are left alone here: cryptsetup drops them when it loads the header.
    for name, kind in _KDF_MEMBERS.get(_text(kdf, "type", f"{where} kdf"), {}).items():
        if kind is str:
            _text(kdf, name, f"{where} kdf")
        else:
            _member(kdf, name, kind, f"{where} kdf")
    if _text(af, "type", f"{where} af") != "luks1":
        raise HeaderError(f"{where} has an unknown anti-forensic splitter")
    _text(af, "hash", f"{where} af")
    _member(af, "stripes", int, f"{where} af")
    if area["type"] != "raw":
        raise HeaderError(f"{where} has an unknown area type")
    _text(area, "encryption", f"{where} area")
    _member(area, "key_size", int, f"{where} area")


def _validate_reencryption_keyslot(keyslot: JsonObject, where: str) -> None:
    mode = _text(keyslot, "mode", where)
    direction = _text(keyslot, "direction", where)
    if keyslot["key_size"] != 1:
        raise HeaderError(f"{where} is for re-encryption and has a key size other than 1")
    if mode not in ("reencrypt", "encrypt", "decrypt") or direction not in ("forward", "backward"):
        raise HeaderError(f"{where} has an unknown re-encryption mode or direction")
    area = keyslot["area"]
    kind = area["type"]
    if kind in ("checksum", "datashift-checksum"):
        _text(area, "hash", f"{where} area")
        sector_size = _uint32(area, "sector_size", f"{where} area")
        if sector_size < 512 or sector_size & (sector_size - 1):
            raise HeaderError(f"{where} has a checksum sector size of {sector_size}")
    elif kind in ("datashift", "datashift-journal"):
        shift = _number(_text(area, "shift_size", f"{where} area"), f"{where} shift_size")
        if not shift or shift % 512:
            raise HeaderError(f"{where} has a shift of {shift} bytes")
