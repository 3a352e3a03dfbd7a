"""The verdict of every rule about a LUKS2 header, where the agent stops at the first that is broken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.luks2 import Header, HeaderError, HeaderPair, newest_valid, parse_pair
from agent.luks2_profile import (
    FOREIGN,
    FORMAT_1,
    RULES,
    Profile,
    ProfileViolation,
    Step,
    audit_steps,
    require_equal_copies,
)
from cli.inspect.story import Statement, Value, Verdict

_COPIES = "header-copies"
_NOT_REACHED = "not looked at: another rule about the same part is broken"


@dataclass(frozen=True)
class HeaderReview:
    """What a header is, and what each rule says of it."""

    pair: HeaderPair
    header: Header | HeaderError
    """The copy that cryptsetup would use."""
    profile: Profile
    """The one it was held against: format 1, or the one for volumes made by others."""
    statements: tuple[Statement, ...]

    @property
    def keeps_to_profile(self) -> bool:
        """Whether every rule holds."""
        return all(one.verdict is Verdict.HOLDS for one in self.statements)


def review(area: bytes, device_bytes: int) -> HeaderReview:
    """Look at the first bytes of a disk of ``device_bytes`` bytes: both copies, all rules.

    A header that keeps to the profile for volumes made by others, and not to format 1, is held against that.
    """
    pair = parse_pair(area)
    try:
        header = newest_valid(area, device_bytes)
    except HeaderError as error:
        return HeaderReview(pair, error, FORMAT_1, _nothing_looked_at(error))
    ours = _statements(area, header, FORMAT_1)
    if any(one.verdict is not Verdict.HOLDS for one in ours):
        foreign = _statements(area, header, FOREIGN)
        if all(one.verdict is Verdict.HOLDS for one in foreign):
            return HeaderReview(pair, header, FOREIGN, foreign)
    return HeaderReview(pair, header, FORMAT_1, ours)


def facts(header: Header) -> dict[str, Value]:
    """What a well-formed header says, whether it is allowed or not."""
    metadata = header.metadata
    segment = metadata["segments"].get("0", {})
    return {
        "uuid": header.binary.uuid,
        "label": header.binary.label,
        "sequence": header.binary.sequence,
        "checksum algorithm": header.binary.checksum_algorithm,
        "metadata copy, bytes": header.binary.header_size_bytes,
        "header image, bytes": header.image_bytes,
        "segments": [
            f"{name}: {one.get('type')}, from byte {one.get('offset')}, size {one.get('size')}"
            for name, one in metadata["segments"].items()
        ],
        "cipher": segment.get("encryption"),
        "sector size, bytes": segment.get("sector_size"),
        "keyslots": [f"{name}: {_keyslot(one)}" for name, one in metadata["keyslots"].items()],
        "digests": [
            f"{name}: {one['type']} {one.get('hash', '')}, {one.get('iterations', '?')} iterations, "
            f"keyslots {', '.join(one['keyslots'])}, segments {', '.join(one['segments'])}"
            for name, one in metadata["digests"].items()
        ],
        "tokens": len(metadata["tokens"]),
    }


def _keyslot(keyslot: Mapping[str, Any]) -> str:
    area, kdf, size = keyslot["area"], keyslot.get("kdf"), keyslot["key_size"]
    text = f"{keyslot['type']}, key of {size} bytes"
    text += f", area {area.get('encryption')} at byte {area.get('offset')}"
    if isinstance(kdf, dict):
        cost = {name: value for name, value in kdf.items() if name not in ("type", "salt")}
        text += f", {kdf['type']} ({', '.join(f'{name} {value}' for name, value in cost.items())})"
    return text


def _statements(area: bytes, header: Header, profile: Profile) -> tuple[Statement, ...]:
    violations: defaultdict[str, list[str]] = defaultdict(list)
    not_reached: set[str] = set()

    def walk(steps: tuple[Step, ...]) -> None:
        for step in steps:
            try:
                step.check()
            except ProfileViolation as violation:
                violations[violation.rule].append(violation.detail)
                not_reached.update(step.rules)
            else:
                walk(step.then())

    walk(audit_steps(header, profile))
    try:
        require_equal_copies(area)
    except ProfileViolation as violation:
        violations[violation.rule].append(violation.detail)
    return tuple(
        Statement(rule, demands, *_verdict(violations.get(rule), reached=rule not in not_reached))
        for rule, demands in RULES.items()
    )


def _verdict(violations: list[str] | None, *, reached: bool) -> tuple[Verdict, str]:
    if violations:
        return Verdict.BROKEN, "; ".join(dict.fromkeys(violations))
    return (Verdict.HOLDS, "") if reached else (Verdict.UNKNOWN, _NOT_REACHED)


def _nothing_looked_at(error: HeaderError) -> tuple[Statement, ...]:
    why = f"not looked at: {error.reason}"
    return (
        Statement("header-invalid", "a well-formed LUKS2 header", Verdict.BROKEN, error.reason),
        *(Statement(rule, demands, Verdict.UNKNOWN, why) for rule, demands in RULES.items()),
    )
