"""SIGKILL at every step of the agent's work, then the next run. Field case I10.

The disk is a loop device in the guest, made anew for each round, and the seconds of the blank check pass in
no time; everything else is the real thing. Power cuts, which also lose writes, are tested on the host
(``tests/unit/agent/test_header_change_power_cut.py``).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.guest.pod import KEY_ID, Pod


def test_an_initialization_killed_at_any_step_is_carried_on(pod: Pod) -> None:
    inside = "tests.guest.inside.kill"
    steps = pod.vm.call(f"{inside}:steps_of_a_first_mount", key_id=KEY_ID)
    assert {"GetResource", "cryptsetup luksFormat", "_attach", "_ask 3", "_ask 9", "_ask 6"} <= set(steps)
    assert {"SecureMount", "after SecureMount", "mkfs.ext4 -q", "mount"} <= set(steps)
    assert len(steps) >= 16
    with ThreadPoolExecutor() as pool:
        # Two at a time, on volumes of their own: the guest has two processors.
        lanes = [
            pool.submit(
                pod.vm.call,
                f"{inside}:kill_first_mounts",
                index=index,
                key_id=KEY_ID,
                steps=list(range(index, len(steps), 2)),
                timeout=800,
            )
            for index in (0, 1)
        ]
        for lane in lanes:
            lane.result()


def test_a_volume_survives_kills_at_any_step_of_mounting_and_unmounting(pod: Pod) -> None:
    with ThreadPoolExecutor() as pool:
        mounting, unmounting = [
            pool.submit(
                pod.vm.call,
                "tests.guest.inside.kill:kill_later_runs",
                index=index,
                key_id=KEY_ID,
                unmounting=bool(index),
                timeout=800,
            )
            for index in (0, 1)
        ]
        assert mounting.result() >= 8
        # Unmount, remove the mapping, remove the shield.
        assert unmounting.result() == 3
