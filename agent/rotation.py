"""Key rotation: the key's path stays, its value there is a new one, and the guest alone changes the header.

A volume that the current key does not vouch for is looked at once more with the previous key, if the policy
names one. Where that one does, a new header is made in memory, with a keyslot for the current key and none
for the previous one, and put on the disk by one change of on-disk format 1:

=============  ======================================================  ====================================
write          what                                                    a cut after it leaves
=============  ======================================================  ====================================
redo           the new header image                                    the old header, under the old key
record         the slot not in force: sequence 1, under the new key    the new header, in the redo area
in place       the new header image                                    the new header
both slots     sequence 2 and 3, under the new key                     the same
=============  ======================================================  ====================================

Each write is flushed before the next. The record is the turning point: before it the next open starts again,
from it on the next open needs the current key only and finishes the change as any other. At no time is a
header in force that both keys open. The volume key, and so the data, stays.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace
from typing import Final

from agent.adoption import used_bytes
from agent.block_device import BlockDevice
from agent.clock import Clock
from agent.commands import Runner
from agent.disk_format import IMAGE_BYTES, RecordKey
from agent.errors import AgentError, Refused, Unavailable
from agent.header_area import HeaderArea
from agent.header_copy import HeaderCopy, header_copy
from agent.header_guard import GenuineHeader, Unformatted, finish_change, judge, replace_header
from agent.initialization import initialize_blank, obtain_header, require_allowed
from agent.keys import KeySource, ReleasedKey, fetch_key
from agent.luks2 import newest_valid
from agent.luks2_profile import AuditedHeader, audit_known, require_equal_copies
from agent.policy import VolumeRules
from agent.unlock_turn import unlock_turn

_UNKNOWN: Final = "header-not-authenticated"
#: As many keyslots of 252 KiB as the image that a record authenticates has room for.
_MAX_KEYSLOTS: Final = 4


@dataclass(frozen=True)
class KeyedHeader:
    """A genuine header, and the key that vouches for it and opens the volume.

    That is the previous key for a volume that is read-only: it is not rotated.
    """

    header: GenuineHeader
    key: ReleasedKey


class KeyedHeaders:
    """Finds the header of a disk, and the key that belongs to it."""

    def __init__(self, hub: KeySource, runner: Runner, clock: Clock) -> None:
        self._hub = hub
        self._runner = runner
        self._clock = clock

    def obtain(self, device: BlockDevice, current: ReleasedKey, rules: VolumeRules) -> KeyedHeader:
        """The genuine header of the disk, as ``initialization.obtain_header``; rotated, if that is due.

        The previous key is fetched only for a disk that ``current`` does not vouch for. It comes before an
        adoption: what it vouches for is one of ours.

        Raises:
            Refused: as ``obtain_header``, for the current and the previous key; or the header has no room for
                another keyslot (``rotation-no-room``). Nothing was written.
            Unavailable: the previous key is needed and not released; cryptsetup or the device failed. A later
                call carries on.
        """
        # One read for both keys: between two the host could exchange what is there.
        area = HeaderArea(device)
        if rules.previous_key_id is None:
            return self._obtain_current(area, current, rules)
        try:
            return self._obtain_current(area, current, replace(rules, adopt=False))
        except Refused as refused:
            if refused.rule != _UNKNOWN:
                raise
            previous = self._fetch_previous(rules.previous_key_id, refused)
            found = _decide_again(area, current, previous, refused)
            if found is None and not rules.adopt:
                raise
        if found is None:
            return self._obtain_current(area, current, rules)
        if isinstance(found, Unformatted):
            # An initialization under the previous key was cut before there was anything worth keeping.
            header = initialize_blank(
                device, current.value, self._runner, self._clock, rules, claimed=found.claimed
            )
            return KeyedHeader(header, current)
        require_allowed(found, rules)
        if rules.read_only:
            return KeyedHeader(found, previous)
        return KeyedHeader(rotate(device, found, previous.value, current.value, self._runner), current)

    def _obtain_current(self, area: HeaderArea, current: ReleasedKey, rules: VolumeRules) -> KeyedHeader:
        return KeyedHeader(obtain_header(area, current.value, self._runner, self._clock, rules), current)

    def _fetch_previous(self, key_id: str, why: Refused) -> ReleasedKey:
        try:
            return ReleasedKey(key_id, fetch_key(self._hub, key_id))
        except AgentError as error:
            error.add_note(f"it is the previous key, and needed because: {why}")
            raise


def rotate(
    device: BlockDevice, header: GenuineHeader, previous: bytes, current: bytes, runner: Runner
) -> GenuineHeader:
    """Put ``header``, for which ``previous`` vouches, under ``current``.

    Raises:
        Refused: there is no room for a keyslot (``rotation-no-room``). Nothing was written.
        Unavailable: the new header does not open as it should (``rotation-failed``), cryptsetup or the device
            failed; a later call carries on.
    """
    image = make_rotated_image(header, previous, current, runner)
    audited = _audit_same_volume(image, header.audited)
    if not header.in_place:
        # It stands in the redo area only, which is overwritten next.
        device.write(0, header.image)
        device.flush()
    key = RecordKey(current)
    # Records count only among those of one key, so a sequence that the previous key's holder chose ends here.
    record = replace(header.record, sequence=1)
    slot = 1 - header.slot
    replace_header(device, key, image, record, slot)
    return finish_change(
        device, key, GenuineHeader(image, audited, record, slot, in_place=True, backed=False)
    )


def make_rotated_image(header: GenuineHeader, previous: bytes, current: bytes, runner: Runner) -> bytes:
    """The image of ``header`` with a keyslot for ``current`` and none that ``previous`` opens.

    Other keyslots, which only a volume that was adopted can have, stay.

    Raises:
        Refused: there is no room for a keyslot (``rotation-no-room``).
        Unavailable: a key does not open the header, or opens it still (``rotation-failed``).
    """
    audited = header.audited
    if len(audited.keyslot_ids) >= _MAX_KEYSLOTS:
        raise _no_room()
    with (
        unlock_turn(audited),
        header_copy(runner, header.image, data_offset=audited.data_offset_bytes) as copy,
    ):
        copy.add_key(previous, current)
        if used_bytes(newest_valid(copy.image())) > IMAGE_BYTES:
            raise _no_room()
        if not (copy.opens(current) and copy.opens(previous)):
            raise _failed("both keys should open it now, and do not")
        _remove_all(copy, previous, len(audited.keyslot_ids))
        if not copy.opens(current):
            raise _failed("the current key does not open it any more")
        return copy.image()


def _remove_all(copy: HeaderCopy, key: bytes, at_most: int) -> None:
    for _ in range(at_most):
        copy.remove_key(key)
        if not copy.opens(key):
            return
    raise _failed("the previous key opens it still")


def _decide_again(
    area: HeaderArea, current: ReleasedKey, previous: ReleasedKey, why: Refused
) -> GenuineHeader | Unformatted | None:
    """What the disk is under the previous key; None: nothing either, which is noted on ``why``."""
    if hmac.compare_digest(previous.value, current.value):
        why.add_note(
            f"the key broker holds the same value under {previous.key_id}, the previous key: the old value "
            "belongs there"
        )
        return None
    try:
        return judge(area, RecordKey(previous.value))
    except Refused as refused:
        if refused.rule != _UNKNOWN:
            raise
        why.add_note(f"the previous key, {previous.key_id}, does not fit either")
        return None


def _audit_same_volume(image: bytes, before: AuditedHeader) -> AuditedHeader:
    """Audit the new image, which must differ from the old one in its keyslots only."""
    audited = audit_known(newest_valid(image))
    require_equal_copies(image)
    same = replace(audited, keyslot_ids=before.keyslot_ids, unlock_memory_kib=before.unlock_memory_kib)
    if same != before:
        raise _failed(f"it is {same} now, and was {before}")
    return audited


def _no_room() -> Refused:
    return Refused(
        "rotation-no-room",
        f"the header has no room for the current key beside its other keyslots; at most {_MAX_KEYSLOTS} fit: "
        "remove one that nobody needs with the previous key in place, or copy the data to a new volume",
    )


def _failed(what: str) -> Unavailable:
    return Unavailable(
        "rotation-failed",
        f"the header for the current key was made in memory, but {what}; nothing was written: check the "
        "version of cryptsetup in the PodVM",
    )
