"""The guest's side of ``tests.bench.guest``: opens volumes bare and guarded, and times both."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent.annotation import CloudVolume
from agent.block_device import DirectDevice
from agent.cdh import DataHubClient
from agent.clock import SystemClock
from agent.commands import SystemRunner
from agent.devices import DeviceFinder
from agent.policy import DEFAULT_POLICY
from agent.volumes import Volumes

_BARE_ROOT = Path("/run/bare")
_MIB = 2**20


def _volume(index: int, disk_id: str, key_id: str) -> CloudVolume:
    return CloudVolume(index, "/data", "ext4", None, disk_id, None, "luks2", key_id)


def _volumes() -> Volumes:
    clock = SystemClock()
    return Volumes(
        hub=DataHubClient(),
        runner=SystemRunner(),
        clock=clock,
        finder=DeviceFinder(clock),
        open_device=DirectDevice,
    )


def _device(disk_id: str) -> str:
    return str(DeviceFinder(SystemClock()).find(_volume(0, disk_id, "a/b/c")).path)


def _run(*argv: str, stdin: bytes = b"") -> None:
    environment = {**os.environ, "DM_DISABLE_UDEV": "1"}
    subprocess.run(argv, input=stdin, check=True, capture_output=True, env=environment)


def _bare_open(name: str, device: str, key: bytes) -> None:
    """What anybody would do by hand."""
    folder = _BARE_ROOT / name
    folder.mkdir(parents=True, exist_ok=True)
    _run("cryptsetup", "open", "--key-file", "-", device, name, stdin=key)
    _run("mount", f"/dev/mapper/{name}", str(folder))


def _bare_close(name: str) -> None:
    _run("umount", str(_BARE_ROOT / name))
    _run("cryptsetup", "close", name)


def bare(disk_ids: Sequence[str], key: str) -> float:
    """Seconds that opening and mounting these disks without any guard takes, in parallel."""
    devices = {f"bare-{number}": _device(disk_id) for number, disk_id in enumerate(disk_ids)}
    with ThreadPoolExecutor(len(devices)) as pool:
        started = time.perf_counter()
        list(pool.map(lambda name: _bare_open(name, devices[name], bytes.fromhex(key)), devices))
        taken = time.perf_counter() - started
    for name in devices:
        _bare_close(name)
    return taken


def guarded(disk_ids: Sequence[str], key_id: str) -> float:
    """Seconds that the agent needs to mount these disks, as in a proxy that runs already."""
    volumes = _volumes()
    wanted = [_volume(number, disk_id, key_id) for number, disk_id in enumerate(disk_ids)]
    started = time.perf_counter()
    volumes.mount(wanted, DEFAULT_POLICY)
    taken = time.perf_counter() - started
    volumes.unmount([one.name for one in wanted])
    return taken
