"""Turning a blank disk into a volume of on-disk format 1, once, resumable after a power cut at any write.

========  ================================================  =====================================
write     what                                              a cut after it leaves
========  ================================================  =====================================
claim     record slot 0: sequence 1, ``claimed``            blank but for our claim: start again
redo      a new header image, made in memory                the same
record    record slot 1: sequence 2, ``initialising``       the redo image wins, is put in place
in place  the header image                                  a header without a filesystem
mkfs      (by the caller, through the mapping)              the same: mkfs runs again
ready     record slot 0, then 1: sequence 3, 4, ``ready``   a volume; nothing formats it again
========  ================================================  =====================================

Each write is flushed before the next begins.
"""

from __future__ import annotations

from agent.adoption import adopt
from agent.blank_check import require_blank
from agent.block_device import BlockDevice
from agent.clock import Clock
from agent.commands import Runner
from agent.disk_format import MINIMUM_DEVICE_BYTES, Record, RecordKey, State
from agent.errors import Refused
from agent.header_area import HeaderArea
from agent.header_copy import header_copy
from agent.header_guard import (
    GenuineHeader,
    finish_change,
    judge,
    replace_header,
    write_record,
)
from agent.luks2 import newest_valid
from agent.luks2_profile import FORMAT_1, audit
from agent.policy import VolumeRules


def obtain_header(
    area: HeaderArea, released_key: bytes, runner: Runner, clock: Clock, rules: VolumeRules
) -> GenuineHeader:
    """The genuine header of the disk; a blank disk gets one, where ``rules`` allow it.

    Unless the volume is read-only, the header is in place on the disk when this returns.

    Raises:
        Refused: the disk is neither a volume of this key nor blank, or not what ``rules`` demand
            (``policy-uuid``, ``format-forbidden``); nothing was written.
        Unavailable: cryptsetup or the device failed; a later call carries on.
    """
    device = area.device
    key = RecordKey(released_key)
    try:
        found = judge(area, key)
    except Refused as refused:
        if not rules.adopt or refused.rule != "header-not-authenticated":
            raise
        found = adopt(device, area.whole, released_key, runner, rules)
    if isinstance(found, GenuineHeader):
        require_allowed(found, rules)
        return found if rules.read_only else finish_change(device, key, found)
    return initialize_blank(device, released_key, runner, clock, rules, claimed=found.claimed)


def require_allowed(found: GenuineHeader, rules: VolumeRules) -> None:
    """Raises Refused if ``rules`` demand another volume (``policy-uuid``), or one that is finished
    (``format-forbidden``).
    """
    rules.require_uuid(found.audited.uuid)
    if found.record.state is not State.READY:
        rules.require_format()


def initialize_blank(
    device: BlockDevice,
    released_key: bytes,
    runner: Runner,
    clock: Clock,
    rules: VolumeRules,
    *,
    claimed: bool,
) -> GenuineHeader:
    """``initialize`` a disk that seems to be blank, after making sure that it is, and may be formatted.

    Raises:
        Refused: it is not blank (``not-blank``), or ``rules`` forbid it (``format-forbidden``).
        Unavailable: as ``initialize``.
    """
    rules.require_format()
    require_blank(device, clock, claimed=claimed)
    return initialize(device, released_key, runner)


def initialize(device: BlockDevice, released_key: bytes, runner: Runner) -> GenuineHeader:
    """Write a new header and its record on a disk that the blank check has passed.

    Returns the header, in state ``initialising``: the caller makes the filesystem and then records ``ready``.

    Raises:
        Refused: the device is smaller than 32 MiB (``device-too-small``). Nothing was written.
        Unavailable: cryptsetup or the device failed; a later call starts again.
    """
    if device.size < MINIMUM_DEVICE_BYTES:
        raise Refused(
            "device-too-small",
            f"the device has {device.size} bytes; a new volume needs at least {MINIMUM_DEVICE_BYTES}",
        )
    key = RecordKey(released_key)
    image = make_header_image(released_key, runner)
    audited = audit(newest_valid(image), FORMAT_1)
    write_record(device, key, b"", Record.claim(), slot=0)
    record = Record(
        sequence=2,
        state=State.INITIALISING,
        luks_uuid=audited.uuid,
        data_offset=audited.data_offset_bytes,
        sector_size=audited.sector_size,
        minimum_size=device.size,
    )
    replace_header(device, key, image, record, slot=1)
    return GenuineHeader(image, audited, record, slot=1, in_place=True)


def make_header_image(released_key: bytes, runner: Runner) -> bytes:
    """A fresh LUKS2 header of ``IMAGE_BYTES``, made in memory: a new volume key, one keyslot."""
    with header_copy(runner) as copy:
        copy.format(released_key)
        return copy.image()
