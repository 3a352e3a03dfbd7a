"""Taking over a LUKS2 volume that somebody else made, where the policy asks for it by name.

Such a header was authenticated by nobody, so this is a moment of trust: it must keep to the profile for
foreign volumes, and the released key must open it. From the record that is then written on, the volume is
held to the same checks as any other. It needs room for that record: everything its header uses lies within
the image that a record authenticates, and its data begins at 4 MiB or later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.block_device import BlockDevice
from agent.commands import Runner
from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES, Record, RecordKey, State, image_in_place
from agent.errors import Refused
from agent.header_copy import header_copy
from agent.header_guard import GenuineHeader, write_record
from agent.luks2 import Header, HeaderError, newest_valid
from agent.luks2_profile import FOREIGN, AuditedHeader, audit, require_equal_copies
from agent.policy import VolumeRules
from agent.unlock_turn import unlock_turn


def adopt(
    device: BlockDevice, area: bytes, released_key: bytes, runner: Runner, rules: VolumeRules
) -> GenuineHeader:
    """Write the first record for the header in ``area``, which was read from the device once.

    Raises:
        Refused: the header is not well-formed or leaves the profile (its rule says how), is not the one that
            ``rules`` pin (``policy-uuid``), leaves no room (``adoption-no-room``), or the key does not open
            it (``adoption-key``). Nothing was written.
        Unavailable: cryptsetup or the device failed.
    """
    image = image_in_place(area)
    try:
        header = newest_valid(image)
    except HeaderError as error:
        raise Refused("header-invalid", f"the LUKS2 header is not well-formed: {error}") from None
    audited = audit(header, FOREIGN)
    require_equal_copies(image)
    rules.require_uuid(audited.uuid)
    _require_room(header, audited)
    _require_key_opens(image, audited, released_key, runner)
    key = RecordKey(released_key)
    record = Record(
        sequence=1,
        state=State.READY,
        luks_uuid=audited.uuid,
        data_offset=audited.data_offset_bytes,
        sector_size=audited.sector_size,
        minimum_size=device.size,
    )
    write_record(device, key, image, record, slot=0)
    return GenuineHeader(image, audited, record, slot=0, in_place=True, backed=False)


def used_bytes(header: Header) -> int:
    """Up to where the header's keyslots reach, from offset 0."""
    keyslots: Mapping[str, Mapping[str, Any]] = header.metadata["keyslots"]
    areas = (keyslot["area"] for keyslot in keyslots.values())
    return max(int(area["offset"]) + int(area["size"]) for area in areas)


def _require_room(header: Header, audited: AuditedHeader) -> None:
    used = used_bytes(header)
    if used > IMAGE_BYTES or audited.data_offset_bytes < HEADER_AREA_BYTES:
        raise Refused(
            "adoption-no-room",
            f"the header uses {used} bytes and the data begins at {audited.data_offset_bytes}; to adopt a "
            f"volume, at most {IMAGE_BYTES} bytes may be used (four keyslots), and the data must begin at "
            f"{HEADER_AREA_BYTES} or later: copy the data to a new volume",
        )


def _require_key_opens(image: bytes, audited: AuditedHeader, released_key: bytes, runner: Runner) -> None:
    """Try the key on the copy in memory: the disk could show another header to cryptsetup."""
    with (
        unlock_turn(audited),
        header_copy(runner, image, data_offset=audited.data_offset_bytes) as copy,
    ):
        opens = copy.opens(released_key)
    if not opens:
        raise Refused("adoption-key", "the released key does not open the volume that is to be adopted")
