"""Costly unlocks run one at a time, cheap ones do not wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from agent.luks2_profile import AuditedHeader
from agent.unlock_turn import FREE_KIB, unlock_turn

CHEAP = AuditedHeader(
    uuid="u",
    cipher="aes-xts-plain64",
    volume_key_bytes=64,
    sector_size=4096,
    data_offset_bytes=4 << 20,
    iv_tweak=0,
    header_image_bytes=1081344,
    digest_id=0,
    keyslot_ids=(0,),
    unlock_memory_kib=FREE_KIB,
)
COSTLY = replace(CHEAP, unlock_memory_kib=FREE_KIB + 1)


def test_cheap_unlocks_run_at_the_same_time() -> None:
    together = threading.Barrier(3)

    def unlock(header: AuditedHeader) -> None:
        with unlock_turn(header):
            together.wait(timeout=60)

    with ThreadPoolExecutor(3) as pool:
        # One costly unlock is no reason for cheap ones to wait.
        list(pool.map(unlock, [CHEAP, COSTLY, CHEAP]))


def test_costly_unlocks_take_turns_even_after_a_failure() -> None:
    running, most = 0, 0

    def unlock(number: int) -> None:
        nonlocal running, most
        try:
            with unlock_turn(COSTLY):
                running += 1
                most = max(most, running)
                threading.Event().wait(0.02)
                running -= 1
                if number % 2:
                    raise ValueError
        except ValueError:
            pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(unlock, range(6)))
    assert most == 1
