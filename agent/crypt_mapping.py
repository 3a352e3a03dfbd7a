"""Does the open mapping do what the checked header says? Asked of the kernel's active table.

The data hub opened it, from a header we checked; this makes sure that nothing else happened: another
cipher, another device below, only a part of the disk.
"""

from __future__ import annotations

import re

from agent.device_mapper import SECTOR_BYTES, Mapping, Target
from agent.errors import Refused
from agent.luks2_profile import AuditedHeader

_KEYRING_KEY = re.compile(r":([0-9]+):logon:[!-~]+", re.ASCII)
_DISCARD = "allow_discards"
_HEX_KEY = re.compile(r"(?:[0-9a-f]{2})+", re.ASCII)


def require_same(
    mapping: Mapping,
    table: tuple[Target, ...],
    header: AuditedHeader,
    backing: str,
    backing_size: int,
    *,
    may_discard: bool = True,
) -> None:
    """Compare an active table with the header it should come from.

    ``backing`` is the ``major:minor`` of the device that should be below, ``backing_size`` its bytes.
    ``may_discard``: whether the table may let discards through.

    Raises:
        Refused: rule ``mapping-differs``.
    """
    data_sectors = (backing_size - header.data_offset_bytes) // SECTOR_BYTES
    uuid = f"CRYPT-LUKS2-{header.uuid.replace('-', '')}-{mapping.name}"
    _equal(mapping, "device-mapper UUID", mapping.uuid, uuid)
    _equal(mapping, "number of targets", len(table), 1)
    target = table[0]
    _equal(mapping, "target", target.kind, "crypt")
    _equal(mapping, "extent in sectors", (target.start, target.length), (0, data_sectors))
    if len(target.arguments) < 5:
        raise _differs(mapping, "arguments", target.arguments, "cipher, key, IV offset, device, offset")
    cipher, key, iv_offset, device, offset, *options = target.arguments
    _equal(mapping, "cipher", cipher, header.cipher)
    _equal(mapping, "key size in bytes", _key_bytes(key), header.volume_key_bytes)
    _equal(mapping, "IV offset", iv_offset, str(header.iv_tweak))
    _equal(mapping, "backing device", device, backing)
    _equal(mapping, "data offset in sectors", offset, str(header.data_offset_bytes // SECTOR_BYTES))
    discard = may_discard and _DISCARD in options
    _equal(mapping, "options", options, _options(header, discard=discard))


def backing_bytes(table: tuple[Target, ...], header: AuditedHeader, backing_size: int) -> int:
    """The bytes of the device below that a mapping uses, header included; at most ``backing_size``.

    They are fewer after a growth that was cut short: the device below grows first.
    """
    length = table[0].length * SECTOR_BYTES if table else 0
    return min(backing_size, header.data_offset_bytes + length)


def _options(header: AuditedHeader, *, discard: bool) -> list[str]:
    """The optional parameters, their number first; the kernel leaves out its default sector size."""
    options = [_DISCARD] if discard else []
    if header.sector_size != SECTOR_BYTES:
        options.append(f"sector_size:{header.sector_size}")
    return [str(len(options)), *options] if options else []


def _key_bytes(shown: str) -> int:
    """The size of the key that a table shows: ``:64:logon:…``, or hexadecimal zeros in place of the key."""
    in_keyring = _KEYRING_KEY.fullmatch(shown)
    if in_keyring:
        return int(in_keyring[1])
    return len(shown) // 2 if _HEX_KEY.fullmatch(shown) else 0


def _equal(mapping: Mapping, what: str, found: object, expected: object) -> None:
    if found != expected:
        raise _differs(mapping, what, found, expected)


def _differs(mapping: Mapping, what: str, found: object, expected: object) -> Refused:
    return Refused(
        "mapping-differs",
        f"the open mapping {mapping.name} has {what} {found!r}, its header says {expected!r}",
    )
