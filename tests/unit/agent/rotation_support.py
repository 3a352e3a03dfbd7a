"""Rotations on a disk in memory, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest

from agent.commands import SystemRunner
from agent.disk_format import IMAGE_BYTES, RecordKey, State
from agent.errors import AgentError, Refused, Unavailable
from agent.header_guard import GenuineHeader, Unformatted, decide, update_record
from agent.initialization import initialize
from agent.keys import ReleasedKey
from agent.luks2 import newest_valid
from agent.policy import VolumeRules
from agent.rotation import KeyedHeader, KeyedHeaders
from tests.unit.agent.fake_clock import FakeClock
from tests.unit.agent.power_cut import PowerCutDisk, key_opens

OLD = bytes(range(100, 132))
NEW = bytes(range(200, 232))
NEWEST = bytes(range(32))
SIZE = 64 << 20
RUNNER = SystemRunner()
CURRENT_ID = "default/volume-key/ledger"
PREVIOUS_ID = "default/volume-key/ledger.previous"
ROTATES = VolumeRules(key_id=CURRENT_ID, previous_key_id=PREVIOUS_ID)


@dataclass
class Broker:
    """Holds the keys, and remembers what was asked for."""

    keys: Mapping[str, bytes]
    asked: list[str] = field(default_factory=list)

    def get_resource(self, uri: str) -> bytes:
        self.asked.append(uri.removeprefix("kbs:///"))
        try:
            return self.keys[self.asked[-1]]
        except KeyError:
            raise Unavailable("data-hub-failed", f"{uri} is not released") from None


def broker(previous: bytes = OLD) -> Broker:
    return Broker({PREVIOUS_ID: previous})


def obtain(
    disk: PowerCutDisk, current: bytes = NEW, hub: Broker | None = None, rules: VolumeRules = ROTATES
) -> KeyedHeader:
    headers = KeyedHeaders(hub or broker(), RUNNER, FakeClock())
    return headers.obtain(disk, ReleasedKey(CURRENT_ID, current), rules)


def with_current_only(area: bytes, current: bytes = NEW) -> PowerCutDisk:
    """The disk after a mount under a policy that names no previous key."""
    disk = PowerCutDisk(SIZE, area)
    obtain(disk, current, Broker({}), VolumeRules(key_id=CURRENT_ID))
    return disk


def refusal(disk: PowerCutDisk, *, hub: Broker | None = None, rules: VolumeRules = ROTATES) -> AgentError:
    """Why a disk is not opened; nothing may have been written on it."""
    with pytest.raises(AgentError) as raised:
        obtain(disk, NEW, hub, rules)
    assert disk.writes == []
    return raised.value


def verdict(area: bytes, key: bytes) -> GenuineHeader | Unformatted | None:
    try:
        return decide(area, RecordKey(key), SIZE)
    except Refused:
        return None


def vouches(area: bytes, key: bytes) -> bool:
    """Whether a record under ``key`` fits anything on the disk."""
    return verdict(area, key) is not None


def volume_key(area: bytes, key: bytes, folder: Path) -> str:
    """The digest of the volume key, after checking that ``key`` opens a keyslot with it."""
    assert key_opens(area, key, folder)
    digests = newest_valid(area[:IMAGE_BYTES]).metadata["digests"]
    assert len(digests) == 1
    return json.dumps([digests["0"]["salt"], digests["0"]["digest"]])


def rests_under_new(area: bytes, before: bytes, folder: Path) -> None:
    """Assert that nothing of the old key is left on the disk, and that the volume is the same."""
    found = verdict(area, NEW)
    assert isinstance(found, GenuineHeader)
    assert found.in_place
    assert found.backed
    assert not vouches(area, OLD)
    assert not key_opens(area, OLD, folder)
    assert volume_key(area, NEW, folder) == volume_key(before, OLD, folder)
    old = verdict(before, OLD)
    assert isinstance(old, GenuineHeader)
    assert replace(found.record, sequence=0) == replace(old.record, sequence=0)
    assert set(found.audited.keyslot_ids).isdisjoint(old.audited.keyslot_ids)
    # The encrypted volume key that the old key opens: nowhere, in the redo area neither.
    keyslot = before[32768 : 32768 + 258048]
    for start in range(0, len(keyslot), 4096):
        assert keyslot[start : start + 4096] not in area


@cache
def volume_under_old() -> bytes:
    """The header area of a volume under OLD."""
    disk = PowerCutDisk(SIZE)
    update_record(disk, RecordKey(OLD), initialize(disk, OLD, RUNNER), state=State.READY)
    return bytes(disk.medium)


@cache
def rotated_disk() -> PowerCutDisk:
    """That disk after a rotation, with all its writes. Not to be written to."""
    disk = PowerCutDisk(SIZE, volume_under_old())
    obtain(disk)
    return disk
