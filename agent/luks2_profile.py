"""What a LUKS2 header may say: an allow-list, whose bounds are in the profiles of :mod:`agent.luks2_allowed`.

A header has a checksum but no signature, so whoever owns the disk can write one: with a null cipher, or
around a volume key they know (CVE-2025-59054, CVE-2025-58356). :func:`audit` takes a well-formed header and
refuses everything that is not listed here, down to members it does not know. It can't tell a genuine header
from a forged one that keeps to the list; that is for the record of on-disk format 1, keyed by the volume's
own key.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.errors import Refused
from agent.luks2 import CHECKSUM_FIELD_BYTES, CHECKSUM_OFFSET, Header, HeaderError, parse_pair
from agent.luks2_allowed import FOREIGN, FORMAT_1, Profile
from agent.luks2_metadata import show

__all__ = [
    "CIPHER",
    "FOREIGN",
    "FORMAT_1",
    "RULES",
    "STRIPES",
    "AuditedHeader",
    "Profile",
    "ProfileViolation",
    "Step",
    "audit",
    "audit_known",
    "audit_steps",
    "require_equal_copies",
]

RULES: Final[Mapping[str, str]] = {
    "header-binary": "checksum sha256, lower-case UUID, zero padding; metadata size as in the profile",
    "header-copies": "both copies valid, and equal but for magic, salt, offset and checksum",
    "header-duplicate-member": "no JSON object holds one name twice",
    "header-unknown-member": "no member beyond those cryptsetup writes for a plain volume, and none missing",
    "header-number": "numbers are plain: ASCII digits without leading zeros in strings, integers elsewhere",
    "header-base64": "salts and digests are canonical base64 of the expected length",
    "header-config": "no flags, no requirements (re-encryption); keyslots area as in the profile",
    "header-tokens": "no tokens",
    "header-segment": "one segment, type crypt, from the profile's data offset to the end of the device",
    "header-segment-cipher": "segment encryption aes-xts-plain64, iv_tweak 0, the profile's sector size",
    "header-digest": "one pbkdf2 digest that ties every keyslot to the segment",
    "header-keyslot": "1 to the profile's number of keyslots, type luks2, with the profile's key size",
    "header-keyslot-cipher": "keyslot area encryption aes-xts-plain64 with the profile's key size",
    "header-keyslot-area": "keyslot areas aligned, large enough, apart from each other, in the keyslots area",
    "header-keyslot-af": "anti-forensic splitter luks1 with 4000 stripes and the profile's hash",
    "header-keyslot-kdf": "a key derivation of the profile, within its bounds on cost",
}
"""Stable identifiers of the rules, as they appear in error messages, and what each demands."""

CIPHER: Final = "aes-xts-plain64"
STRIPES: Final = 4000
_SALT_BYTES = 32
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
# All of a copy but magic, salt, offset and checksum.
_SHARED = (slice(6, 104), slice(168, 256), slice(264, CHECKSUM_OFFSET), slice(512, None))
_PADDING = (slice(264, CHECKSUM_OFFSET), slice(CHECKSUM_OFFSET + CHECKSUM_FIELD_BYTES, 4096))


class ProfileViolation(Refused):
    """The header says something the profile does not allow. ``rule`` is a key of :data:`RULES`."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(rule, f"LUKS2 header refused: {detail}")
        self.detail = detail


@dataclass(frozen=True, slots=True)
class AuditedHeader:
    """The facts of a header that keeps to a profile; what the active mapping is compared with.

    ``header_image_bytes`` is the length of both metadata copies and the keyslots area, from offset 0;
    ``unlock_memory_kib`` what the costliest keyslot's key derivation takes, 0 for pbkdf2.
    """

    uuid: str
    cipher: str
    volume_key_bytes: int
    sector_size: int
    data_offset_bytes: int
    iv_tweak: int
    header_image_bytes: int
    digest_id: int
    keyslot_ids: tuple[int, ...]
    unlock_memory_kib: int


@dataclass(frozen=True, slots=True)
class Step:
    """One part of an audit.

    ``check`` raises ProfileViolation; ``then`` gives the steps that make sense only after it passed.
    ``rules`` are all that this step and those can find broken.
    """

    rules: frozenset[str]
    check: Callable[[], object]
    then: Callable[[], tuple["Step", ...]] = tuple


def audit(header: Header, profile: Profile) -> AuditedHeader:
    """Check one copy against ``profile``. Raises ProfileViolation, naming the first rule that is broken.

    The keyslot areas were found inside the keyslots area and apart from each other by
    :func:`agent.luks2.parse_copy`; that is not repeated.
    """
    _take(audit_steps(header, profile))
    metadata = header.metadata
    segment, keyslots = metadata["segments"]["0"], metadata["keyslots"]
    return AuditedHeader(
        uuid=header.binary.uuid,
        cipher=CIPHER,
        volume_key_bytes=next(iter(keyslots.values()))["key_size"],
        sector_size=segment["sector_size"],
        data_offset_bytes=int(segment["offset"]),
        iv_tweak=0,
        header_image_bytes=header.image_bytes,
        digest_id=int(next(iter(metadata["digests"]))),
        keyslot_ids=tuple(sorted(map(int, keyslots))),
        unlock_memory_kib=max(one["kdf"].get("memory", 0) for one in keyslots.values()),
    )


def audit_steps(header: Header, profile: Profile) -> tuple[Step, ...]:
    """The parts of an audit, in order. All of them passed: the header keeps to ``profile``."""
    metadata = header.metadata
    top = {"keyslots", "tokens", "segments", "digests", "config"}
    return (
        _step("header-duplicate-member", check=lambda: _audit_duplicates(header)),
        _step("header-binary", check=lambda: _audit_binary(header, profile)),
        _step("header-unknown-member", check=lambda: _members(metadata, top, "the metadata")),
        _step("header-tokens", check=lambda: _audit_tokens(metadata)),
        _step(
            *("header-config", "header-unknown-member", "header-number"),
            check=lambda: _audit_config(metadata["config"], profile),
        ),
        _step(
            *("header-segment", "header-segment-cipher", "header-unknown-member", "header-number"),
            check=lambda: _audit_segment_form(metadata["segments"]),
            then=lambda: _segment_steps(header, profile),
        ),
        *_keyslots_steps(metadata["keyslots"], profile),
        _step(
            *("header-digest", "header-unknown-member", "header-number", "header-base64"),
            check=lambda: _audit_digest(metadata, profile),
        ),
    )


def _step(*rules: str, check: Callable[[], object], then: Callable[[], tuple[Step, ...]] = tuple) -> Step:
    return Step(frozenset(rules), check, then)


def _take(steps: tuple[Step, ...]) -> None:
    for step in steps:
        step.check()
        _take(step.then())


def audit_known(header: Header) -> AuditedHeader:
    """Check a header that its author vouches for: of on-disk format 1, or an adopted foreign one.

    Raises ProfileViolation, as format 1 sees it.
    """
    try:
        return audit(header, FORMAT_1)
    except ProfileViolation as violation:
        try:
            return audit(header, FOREIGN)
        except ProfileViolation:
            raise violation from None


def require_equal_copies(area: bytes) -> None:
    """Require both copies valid and equal apart from magic, salt, offset and checksum.

    Raises ProfileViolation (``header-copies``).
    """
    pair = parse_pair(area)
    shared = [
        _shared_bytes(copy, name) for name, copy in (("primary", pair.primary), ("secondary", pair.secondary))
    ]
    if shared[0] != shared[1]:
        raise ProfileViolation("header-copies", "the two copies differ")


def _shared_bytes(copy: Header | HeaderError, name: str) -> tuple[bytes, ...]:
    if isinstance(copy, HeaderError):
        raise ProfileViolation("header-copies", f"the {name} copy is not valid: {copy.reason}")
    # The end of the checksum field is covered by no checksum.
    digest_bytes = hashlib.new(copy.binary.checksum_algorithm).digest_size
    return (*(copy.raw[part] for part in _SHARED), copy.binary.checksum[digest_bytes:])


def _audit_duplicates(header: Header) -> None:
    if header.duplicate_members:
        raise ProfileViolation("header-duplicate-member", f"{show(header.duplicate_members[0])} occurs twice")


def _audit_tokens(metadata: Mapping[str, Any]) -> None:
    if metadata["tokens"]:
        raise ProfileViolation("header-tokens", "there are tokens")


def _audit_binary(header: Header, profile: Profile) -> None:
    binary = header.binary
    if binary.header_size_bytes not in profile.metadata_sizes:
        raise ProfileViolation("header-binary", f"the metadata takes {binary.header_size_bytes} bytes")
    if binary.checksum_algorithm != "sha256":
        raise ProfileViolation(
            "header-binary", f"the checksum is {show(binary.checksum_algorithm)}, not sha256"
        )
    if not _UUID.fullmatch(binary.uuid):
        raise ProfileViolation("header-binary", f"the UUID is {show(binary.uuid)}")
    if any(header.raw[part].strip(b"\0") for part in _PADDING) or binary.checksum[32:].strip(b"\0"):
        raise ProfileViolation("header-binary", "there are bytes in the padding")


def _audit_config(config: Mapping[str, Any], profile: Profile) -> None:
    for name in ("flags", "requirements"):
        if name in config:
            raise ProfileViolation("header-config", f"the configuration has {name}")
    _members(config, {"json_size", "keyslots_size"}, "the configuration")
    _decimal(config["json_size"], "json_size")
    keyslots_size = _decimal(config["keyslots_size"], "keyslots_size")
    if keyslots_size not in profile.keyslots_area:
        raise ProfileViolation("header-config", f"the keyslots area takes {keyslots_size} bytes")


def _audit_segment_form(segments: Mapping[str, Any]) -> None:
    if set(segments) != {"0"}:
        raise ProfileViolation("header-segment", f"there are {len(segments)} segments, not one named 0")
    segment = segments["0"]
    if segment["type"] != "crypt":
        raise ProfileViolation("header-segment", f"the segment's type is {show(segment['type'])}")
    _members(segment, {"type", "offset", "size", "iv_tweak", "encryption", "sector_size"}, "the segment")


def _segment_steps(header: Header, profile: Profile) -> tuple[Step, ...]:
    segment = header.metadata["segments"]["0"]
    return (
        _step("header-segment", "header-number", check=lambda: _audit_extent(segment, header, profile)),
        _step("header-segment-cipher", check=lambda: _audit_cipher(segment, profile)),
    )


def _audit_extent(segment: Mapping[str, Any], header: Header, profile: Profile) -> None:
    if segment["size"] != "dynamic":
        raise ProfileViolation("header-segment", "the segment does not reach to the end of the device")
    offset = _decimal(segment["offset"], "the segment's offset")
    if offset not in profile.data_offset or offset % 4096:
        raise ProfileViolation("header-segment", f"the data begins at {offset}")
    if offset < header.image_bytes:
        raise ProfileViolation("header-segment", "the data begins inside the header")


def _audit_cipher(segment: Mapping[str, Any], profile: Profile) -> None:
    if segment["encryption"] != CIPHER:
        raise ProfileViolation(
            "header-segment-cipher", f"the data is encrypted with {show(segment['encryption'])}, not {CIPHER}"
        )
    if segment["iv_tweak"] != "0":
        raise ProfileViolation("header-segment-cipher", f"iv_tweak is {show(segment['iv_tweak'])}, not 0")
    if segment["sector_size"] not in profile.sector_sizes:
        raise ProfileViolation("header-segment-cipher", f"the sector size is {segment['sector_size']}")


# --- keyslots ---------------------------------------------------------------------------------------------

_KEYSLOT_RULES = (
    "header-keyslot",
    "header-keyslot-cipher",
    "header-keyslot-area",
    "header-keyslot-af",
    "header-keyslot-kdf",
    "header-unknown-member",
    "header-number",
    "header-base64",
)


def _keyslots_steps(keyslots: Mapping[str, Any], profile: Profile) -> tuple[Step, ...]:
    # Not more of them than are allowed: a hostile header can have thousands.
    return (
        _step(
            *_KEYSLOT_RULES,
            check=lambda: _audit_number(keyslots, profile),
            then=lambda: (
                *(_keyslot_step(name, keyslot, profile) for name, keyslot in keyslots.items()),
                _step("header-keyslot", check=lambda: _audit_equal_sizes(keyslots)),
            ),
        ),
    )


def _audit_number(keyslots: Mapping[str, Any], profile: Profile) -> None:
    if not 1 <= len(keyslots) <= profile.max_keyslots:
        raise ProfileViolation(
            "header-keyslot", f"there are {len(keyslots)} keyslots, not 1 to {profile.max_keyslots}"
        )


def _audit_equal_sizes(keyslots: Mapping[str, Any]) -> None:
    if len({keyslot["key_size"] for keyslot in keyslots.values()}) != 1:
        raise ProfileViolation("header-keyslot", "the keyslots hold keys of different sizes")


def _keyslot_step(name: str, keyslot: Mapping[str, Any], profile: Profile) -> Step:
    where = f"keyslot {show(name)}"
    return _step(
        *_KEYSLOT_RULES,
        check=lambda: _audit_keyslot(name, keyslot, where, profile),
        then=lambda: (
            _step(
                *("header-keyslot-area", "header-keyslot-cipher", "header-unknown-member", "header-number"),
                check=lambda: _audit_area(keyslot, where, profile),
            ),
            _step(
                *("header-keyslot-af", "header-unknown-member"),
                check=lambda: _audit_splitter(keyslot["af"], where, profile),
            ),
            _step(
                *("header-keyslot-kdf", "header-unknown-member", "header-number", "header-base64"),
                check=lambda: _audit_kdf(keyslot["kdf"], where, profile),
            ),
        ),
    )


def _audit_keyslot(name: str, keyslot: Mapping[str, Any], where: str, profile: Profile) -> None:
    if not _NUMBER.fullmatch(name) or int(name) > 31:
        raise ProfileViolation("header-keyslot", f"{where} is not numbered 0 to 31")
    if keyslot["type"] != "luks2":
        raise ProfileViolation("header-keyslot", f"{where} is of type {show(keyslot['type'])}")
    members = {"type", "key_size", "af", "area", "kdf"}
    if "priority" in keyslot:
        members.add("priority")
        if _integer(keyslot["priority"], f"the priority of {where}") not in profile.priorities:
            raise ProfileViolation("header-keyslot", f"{where} has a priority")
    _members(keyslot, members, where)
    if keyslot["key_size"] not in profile.volume_key_sizes:
        raise ProfileViolation("header-keyslot", f"{where} holds a key of {keyslot['key_size']} bytes")


def _audit_area(keyslot: Mapping[str, Any], where: str, profile: Profile) -> None:
    area = keyslot["area"]
    _members(area, {"type", "offset", "size", "encryption", "key_size"}, f"the area of {where}")
    if area["type"] != "raw":
        raise ProfileViolation("header-keyslot-area", f"the area of {where} is of type {show(area['type'])}")
    if area["encryption"] != CIPHER or area["key_size"] not in profile.keyslot_key_sizes:
        raise ProfileViolation(
            "header-keyslot-cipher",
            f"{where} is encrypted with {show(area['encryption'])}, key size {show(area['key_size'])}",
        )
    offset = _decimal(area["offset"], f"the offset of {where}")
    size = _decimal(area["size"], f"the size of {where}")
    if offset % 4096 or size % 4096 or size < keyslot["key_size"] * STRIPES:
        raise ProfileViolation("header-keyslot-area", f"{where} takes {size} bytes at {offset}")


def _audit_splitter(af: Mapping[str, Any], where: str, profile: Profile) -> None:
    _members(af, {"type", "stripes", "hash"}, f"the splitter of {where}")
    if af["type"] != "luks1" or af["stripes"] != STRIPES or af["hash"] not in profile.hashes:
        raise ProfileViolation("header-keyslot-af", f"the splitter of {where} is {show(af)}")


def _audit_kdf(kdf: Mapping[str, Any], where: str, profile: Profile) -> None:
    kind = kdf["type"]
    where = f"the key derivation of {where}"
    if kind == "pbkdf2":
        _members(kdf, {"type", "hash", "iterations", "salt"}, where)
        bounds = {"iterations": profile.pbkdf2_iterations}
        if kdf["hash"] not in profile.hashes:
            raise ProfileViolation("header-keyslot-kdf", f"{where} uses {show(kdf['hash'])}")
    elif profile.argon2 is not None and kind in profile.argon2.variants:
        _members(kdf, {"type", "time", "memory", "cpus", "salt"}, where)
        limits = profile.argon2
        bounds = {"time": limits.time, "memory": limits.memory_kib, "cpus": limits.cpus}
    else:
        raise ProfileViolation("header-keyslot-kdf", f"{where} is {show(kind)}")
    for name, allowed in bounds.items():
        value = _integer(kdf[name], f"{name} of {where}")
        if value not in allowed:
            raise ProfileViolation(
                "header-keyslot-kdf", f"{where} has {name} {value}, not {allowed.low} to {allowed.high}"
            )
    _base64(kdf["salt"], _SALT_BYTES, f"the salt of {where}")


# --- digest -----------------------------------------------------------------------------------------------


def _audit_digest(metadata: Mapping[str, Any], profile: Profile) -> None:
    digests = metadata["digests"]
    if len(digests) != 1:
        raise ProfileViolation("header-digest", f"there are {len(digests)} digests, not one")
    ((name, digest),) = digests.items()
    where = f"digest {show(name)}"
    if not _NUMBER.fullmatch(name) or int(name) > 7:
        raise ProfileViolation("header-digest", f"{where} is not numbered 0 to 7")
    if digest["type"] != "pbkdf2":
        raise ProfileViolation("header-digest", f"{where} is of type {show(digest['type'])}")
    _members(digest, {"type", "keyslots", "segments", "hash", "iterations", "salt", "digest"}, where)
    if digest["segments"] != ["0"] or sorted(digest["keyslots"]) != sorted(metadata["keyslots"]):
        raise ProfileViolation("header-digest", f"{where} does not tie every keyslot to the segment")
    if type(digest["hash"]) is not str or digest["hash"] not in profile.hashes:
        raise ProfileViolation("header-digest", f"{where} uses {show(digest['hash'])}")
    iterations = _integer(digest["iterations"], f"iterations of {where}")
    if iterations not in profile.digest_iterations:
        raise ProfileViolation("header-digest", f"{where} has {iterations} iterations")
    _base64(digest["salt"], _SALT_BYTES, f"the salt of {where}")
    _base64(digest["digest"], hashlib.new(digest["hash"]).digest_size, f"the value of {where}")


# --- values -----------------------------------------------------------------------------------------------


def _members(holder: Mapping[str, Any], expected: Collection[str], where: str) -> None:
    for name in holder:
        if name not in expected:
            raise ProfileViolation("header-unknown-member", f"{where} has an unknown member {show(name)}")
    for name in expected:
        if name not in holder:
            raise ProfileViolation("header-unknown-member", f"{where} lacks {name!r}")


def _decimal(value: object, where: str) -> int:
    if type(value) is not str or not _NUMBER.fullmatch(value):
        raise ProfileViolation("header-number", f"{where} is {show(value)}, not a plain decimal string")
    return int(value)


def _integer(value: object, where: str) -> int:
    if type(value) is not int:
        raise ProfileViolation("header-number", f"{where} is {show(value)}, not an integer")
    return value


def _base64(value: object, length: int, where: str) -> None:
    try:
        decoded = base64.b64decode(value, validate=True) if type(value) is str else None
    except (binascii.Error, ValueError):
        decoded = None
    # Encoding again rules out stray bits in the last character, which decoders drop.
    if decoded is None or len(decoded) != length or base64.b64encode(decoded).decode() != value:
        raise ProfileViolation("header-base64", f"{where} is not canonical base64 of {length} bytes")
