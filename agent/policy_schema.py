"""The policy's file format, version 1: strict TOML, described for its authors in ``docs/policy.md``.

Every mistake is an error that names the field: a field that is misspelled and passed over would be a rule
that its author believes in and nobody enforces.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from agent.errors import Refused
from agent.keys import key_uri
from agent.mount_point import checked_mount_point, checked_path
from agent.policy import AgentRules, Encryption, Format, Measurement, Policy, VolumeRules

VERSION: Final = 1
MAX_POLICY: Final = 256 << 10
"""Bytes of a policy file."""

_MAX_GID: Final = (1 << 31) - 1
_MAX_SIZE: Final = (1 << 63) - 1
_SHOWN: Final = 100
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_QUANTITY: Final = re.compile(r"([1-9][0-9]{0,18})(Ki|Mi|Gi|Ti|Pi)", re.ASCII)
_UNITS: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
_TOP_FIELDS: Final = ("version", "volumes", "other-mounts", "agent", "policy-resource")
#: What an unencrypted volume has nothing of.
_ENCRYPTED_ONLY: Final = ("key", "previous-key", "uuid", "adopt")


@dataclass(frozen=True)
class PolicyResource:
    """A policy file that only says where the policy is: a path in the key broker."""

    key_id: str


def parse_policy(text: str | bytes) -> Policy | PolicyResource:
    """Read a policy file.

    Raises:
        Refused: rule ``policy-invalid``, naming the field that is wrong.
    """
    document = _load(text)
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise _invalid(
            "version", f"must be {VERSION}, the schema that this agent reads, not {_shown(version)}"
        )
    _refuse_unknown(document, _TOP_FIELDS, "")
    if ("volumes" in document) == ("policy-resource" in document):
        raise _invalid("volumes", "the file must have either volumes or policy-resource")
    if "policy-resource" in document:
        for name in ("other-mounts", "agent"):
            if name in document:
                raise _invalid(name, "belongs into the policy that policy-resource names")
        return PolicyResource(_key("policy-resource", document["policy-resource"]))
    volumes = _volumes(_table("volumes", document["volumes"]))
    return Policy(
        volumes,
        _other_mounts(document.get("other-mounts", []), volumes),
        _agent(_table("agent", document.get("agent", {}))),
    )


def _load(text: str | bytes) -> dict[str, Any]:
    try:
        encoded = text.encode() if isinstance(text, str) else text
        if len(encoded) > MAX_POLICY:
            raise Refused(
                "policy-invalid", f"the policy has {len(encoded)} bytes; at most {MAX_POLICY} are read"
            )
        return tomllib.loads(encoded.decode())
    except UnicodeError:
        raise Refused("policy-invalid", "the policy is not UTF-8") from None
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise Refused("policy-invalid", f"the policy is not TOML: {str(error)[:_SHOWN]}") from None


def _volumes(tables: Mapping[str, Any]) -> dict[str, VolumeRules]:
    volumes: dict[str, VolumeRules] = {}
    for name, fields in tables.items():
        where = f"volumes.{_shown(name)}"
        try:
            destination = checked_mount_point(name, "a volume in the policy")
        except Refused as refused:
            raise _invalid(where, refused.message) from None
        if destination in volumes:
            raise _invalid(where, "this destination is named twice, with and without a trailing slash")
        volumes[destination] = _rules(where, _table(where, fields))
    return volumes


def _other_mounts(value: object, volumes: Collection[str]) -> frozenset[str]:
    if not isinstance(value, list):
        raise _invalid("other-mounts", f"must be a list of paths, not {_shown(value)}")
    found: set[str] = set()
    for path in value:
        if type(path) is not str:
            raise _invalid("other-mounts", f"must hold paths only, not {_shown(path)}")
        try:
            destination = checked_path(path, "other-mounts")
        except Refused as refused:
            raise _invalid("other-mounts", refused.message) from None
        if destination == "/":
            raise _invalid("other-mounts", "must not hold '/', which lies above every volume")
        if destination in found or destination in volumes:
            raise _invalid(
                "other-mounts", f"{_shown(path)} is named twice; a place is a volume or it is none"
            )
        found.add(destination)
    return frozenset(found)


def _agent(fields: Mapping[str, Any]) -> AgentRules:
    _refuse_unknown(fields, _AGENT_FIELDS, "agent")
    rules = AgentRules()
    for name, value in fields.items():
        attribute, read = _AGENT_FIELDS[name]
        rules = replace(rules, **{attribute: read(f"agent.{name}", value)})
    return rules


def _rules(where: str, fields: Mapping[str, Any]) -> VolumeRules:
    _refuse_unknown(fields, _FIELDS, where)
    rules = VolumeRules()
    for name, value in fields.items():
        attribute, read = _FIELDS[name]
        rules = replace(rules, **{attribute: read(f"{where}.{name}", value)})
    if rules.encryption is Encryption.NONE:
        for name in _ENCRYPTED_ONLY:
            if name in fields:
                raise _invalid(f"{where}.{name}", 'means nothing with encryption = "none"; remove it')
    elif rules.key_id is None:
        raise _invalid(f"{where}.key", "is missing: name the path of the volume's key in the key broker")
    if rules.previous_key_id is not None and rules.previous_key_id == rules.key_id:
        raise _invalid(f"{where}.previous-key", "must not be the path of the current key")
    if rules.luks_uuid is not None or rules.read_only:
        # A new volume gets a new UUID, and making one is writing: the two can't both be meant.
        other = "uuid" if rules.luks_uuid is not None else "read-only"
        if fields.get("format") == Format.IF_BLANK:
            raise _invalid(f"{where}.format", f'must be "never" or left out beside {other}')
        rules = replace(rules, format=Format.NEVER)
    if rules.adopt and rules.read_only:
        raise _invalid(f"{where}.adopt", "needs to write a record on the disk; read-only forbids it")
    return rules


def _boolean(where: str, value: object) -> bool:
    if type(value) is not bool:
        raise _invalid(where, f"must be true or false, not {_shown(value)}")
    return value


def _encryption(where: str, value: object) -> Encryption:
    return Encryption(_one_of(where, value, [one.value for one in Encryption]))


def _format(where: str, value: object) -> Format:
    return Format(_one_of(where, value, [one.value for one in Format]))


def _measurement(where: str, value: object) -> Measurement:
    return Measurement(_one_of(where, value, [one.value for one in Measurement]))


def _key(where: str, value: object) -> str:
    if type(value) is not str:
        raise _invalid(where, f"must be a path in the key broker, repository/type/tag, not {_shown(value)}")
    try:
        key_uri(value)
    except Refused as refused:
        raise _invalid(where, refused.message) from None
    return value


def _size(where: str, value: object) -> int:
    size = 0
    if type(value) is int:
        size = value
    elif type(value) is str and (match := _QUANTITY.fullmatch(value)):
        size = int(match[1]) << _UNITS[match[2]]
    if not 1 <= size <= _MAX_SIZE:
        raise _invalid(where, f'must be a number of bytes, or a string such as "10Gi", not {_shown(value)}')
    return size


def _uuid(where: str, value: object) -> str:
    if type(value) is not str or not _UUID.fullmatch(value):
        raise _invalid(
            where, f"must be a LUKS UUID in lower case, as cryptsetup shows it, not {_shown(value)}"
        )
    return value


def _group(where: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_GID:
        raise _invalid(where, f"must be a group id from 0 to {_MAX_GID}, not {_shown(value)}")
    return value


#: Name in the file to the attribute of VolumeRules, and what reads its value.
_FIELDS: Final[Mapping[str, tuple[str, Callable[[str, object], Any]]]] = {
    "encryption": ("encryption", _encryption),
    "key": ("key_id", _key),
    "previous-key": ("previous_key_id", _key),
    "minimum-size": ("minimum_size", _size),
    "uuid": ("luks_uuid", _uuid),
    "format": ("format", _format),
    "adopt": ("adopt", _boolean),
    "read-only": ("read_only", _boolean),
    "fs-group": ("fs_group", _group),
    "discard": ("discard", _boolean),
}

#: The same for AgentRules.
_AGENT_FIELDS: Final[Mapping[str, tuple[str, Callable[[str, object], Any]]]] = {
    "measurement": ("measurement", _measurement),
    "usage-figures": ("usage_figures", _boolean),
}


def _one_of(where: str, value: object, allowed: list[str]) -> str:
    if type(value) is not str or value not in allowed:
        raise _invalid(where, f"must be one of {', '.join(map(repr, allowed))}, not {_shown(value)}")
    return value


def _table(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(where, f"must be a table, not {_shown(value)}")
    return value


def _refuse_unknown(fields: Collection[str], known: Collection[str], where: str) -> None:
    for name in fields:
        if name not in known:
            close = difflib.get_close_matches(name[:_SHOWN], known, 1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
            if where and name in _TOP_FIELDS:
                hint = "it must stand above the first table of the file"
            raise _invalid(f"{where}.{_shown(name)}".removeprefix("."), f"is unknown; {hint}")


def _invalid(field: str, problem: str) -> Refused:
    return Refused("policy-invalid", f"{field}: {problem}")


def _shown(value: object) -> str:
    try:
        shown = ascii(value)
    except (ValueError, RecursionError):
        # A hexadecimal number of thousands of digits can be read, but not shown in decimal.
        shown = "a value of absurd size"
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
