"""The guest's side of ``tests.bench.guest``: opens volumes bare and guarded, and times both."""

from __future__ import annotations

import mmap
import os
import subprocess
import threading
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
_IO_MIB = 32
_IO_ROUNDS = 5


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


def opens(disk_ids: Sequence[str], key: str, key_id: str, rounds: int) -> dict[str, list[float]]:
    """Seconds that opening and mounting these disks at once takes, by hand and by the agent, round by round.

    Who comes first changes with each round: what one leaves behind, such as a journal to write, the other
    finds. One process does all rounds, as a proxy does: the first round, in which it touches its memory for
    the first time, does not count.
    """
    devices = {f"bare-{number}": _device(disk_id) for number, disk_id in enumerate(disk_ids)}
    volumes = _volumes()
    wanted = [_volume(number, disk_id, key_id) for number, disk_id in enumerate(disk_ids)]
    found: dict[str, list[float]] = {"bare": [], "guarded": []}
    with ThreadPoolExecutor(len(devices)) as pool:

        def by_hand() -> None:
            started = time.perf_counter()
            list(pool.map(lambda name: _bare_open(name, devices[name], bytes.fromhex(key)), devices))
            found["bare"].append(time.perf_counter() - started)
            for name in devices:
                _bare_close(name)

        def by_agent() -> None:
            found["guarded"].append(_mount(volumes, wanted))

        for number in range(rounds + 1):
            for way in (by_hand, by_agent) if number % 2 else (by_agent, by_hand):
                way()
    return {kind: seconds[1:] for kind, seconds in found.items()}


def first_mount(disk_id: str, key_id: str) -> float:
    """Seconds that the agent needs for a blank disk."""
    return _mount(_volumes(), [_volume(0, disk_id, key_id)])


def _mount(volumes: Volumes, wanted: Sequence[CloudVolume]) -> float:
    started = time.perf_counter()
    volumes.mount(wanted, DEFAULT_POLICY)
    taken = time.perf_counter() - started
    volumes.unmount([one.name for one in wanted])
    return taken


def disk_rates(disk_id: str, key: str, key_id: str) -> dict[str, list[float]]:
    """Bytes per second of sequential writes and reads past the page cache, bare and guarded in turn."""
    rates: dict[str, list[float]] = {
        "bare write": [],
        "guarded write": [],
        "bare read": [],
        "guarded read": [],
    }
    volumes, device = _volumes(), _device(disk_id)
    wanted = _volume(0, disk_id, key_id)
    for _ in range(_IO_ROUNDS):
        _bare_open("bare-0", device, bytes.fromhex(key))
        _measure_io(_BARE_ROOT / "bare-0", "bare", rates)
        _bare_close("bare-0")
        volumes.mount([wanted], DEFAULT_POLICY)
        _measure_io(Path(wanted.mount_directory), "guarded", rates)
        volumes.unmount([wanted.name])
    return rates


def _measure_io(folder: Path, kind: str, rates: dict[str, list[float]]) -> None:
    file = folder / "sequential"
    block = mmap.mmap(-1, _MIB)
    for direction, mode in (("write", os.O_WRONLY | os.O_CREAT), ("read", os.O_RDONLY)):
        descriptor = os.open(file, mode | os.O_DIRECT)
        transfer = os.writev if direction == "write" else os.readv
        started = time.perf_counter()
        for _ in range(_IO_MIB):
            if transfer(descriptor, [block]) != _MIB:
                raise OSError(f"a short {direction} of {file}")
        os.fsync(descriptor)
        rates[f"{kind} {direction}"].append(_IO_MIB * _MIB / (time.perf_counter() - started))
        os.close(descriptor)


def notice(disk_id: str) -> float:
    """Seconds from when the kernel shows the disk of that id, which is attached meanwhile, to its finding."""
    serial = _volume(0, disk_id, "a/b/c").serial
    seen: list[float] = []

    def watch() -> None:
        while not any(_reads(file) == serial for file in Path("/sys/block").glob("*/serial")):
            time.sleep(0.001)
        seen.append(time.perf_counter())

    watcher = threading.Thread(target=watch)
    watcher.start()
    _device(disk_id)
    found = time.perf_counter()
    watcher.join()
    return found - seen[0]


def _reads(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
