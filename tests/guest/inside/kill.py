"""The agent dies by SIGKILL at every step of a mount and an unmount, and is run again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from agent import device_mapper, loop_device, mount_calls
from agent.annotation import CloudVolume
from agent.block_device import DirectDevice
from agent.cdh import DataHubClient
from agent.clock import Clock
from agent.commands import Result, SystemRunner
from agent.devices import DeviceFinder, Disk
from agent.disk_format import HEADER_AREA_BYTES
from agent.policy import DEFAULT_POLICY, Policy, VolumeRules
from agent.volumes import Volumes
from tests.unit.agent.fake_clock import FakeClock

_SIZE = 32 * 2**20
_CONTENT = b"what the workload wrote" * 100


class _Steps:
    """Counts what the agent does to the world, and kills it before a chosen step: its number, or its name."""

    def __init__(self, kill_before: int | str | None) -> None:
        self.taken: list[str] = []
        self._kill_before = kill_before

    def next(self, what: str) -> None:
        if self._kill_before in (len(self.taken), what):
            os.kill(os.getpid(), signal.SIGKILL)
        self.taken.append(what)


class _Runner(SystemRunner):
    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        expected: Collection[int] = (0,),
        timeout: float = 60.0,
        pass_fds: Sequence[int] = (),
    ) -> Result:
        self._steps.next(" ".join(argv[:2]))
        return super().run(argv, stdin=stdin, expected=expected, timeout=timeout, pass_fds=pass_fds)


#: What the agent asks of the kernel itself, besides how a mapping is (device-mapper's calls 7 and 12).
_KERNEL_CALLS: list[tuple[ModuleType, str]] = [
    (device_mapper, "_ask"),
    (loop_device, "_attach"),
    (mount_calls, "mount"),
    (mount_calls, "unmount"),
]
_QUESTIONS = (7, 12)


@contextmanager
def _kernel_calls_are(steps: _Steps) -> Iterator[None]:
    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def one(*arguments: Any, **keywords: Any) -> Any:
            if arguments[0] not in _QUESTIONS:
                steps.next(f"{name} {arguments[0]}" if name == "_ask" else name)
            return call(*arguments, **keywords)

        return one

    with ExitStack() as patches:
        for module, name in _KERNEL_CALLS:
            patches.enter_context(mock.patch.object(module, name, counted(name, getattr(module, name))))
        yield


class _Hub(DataHubClient):
    def __init__(self, steps: _Steps) -> None:
        super().__init__()
        self._steps = steps

    def get_resource(self, uri: str) -> bytes:
        self._steps.next("GetResource")
        return super().get_resource(uri)

    def open_encrypted(self, *, device_path: str, key_uri: str, mapper_name: str, link_path: str) -> None:
        self._steps.next("SecureMount")
        super().open_encrypted(
            device_path=device_path, key_uri=key_uri, mapper_name=mapper_name, link_path=link_path
        )
        self._steps.next("after SecureMount")


class _Finder(DeviceFinder):
    """Gives a loop device, which can be made anew for each round."""

    def __init__(self, clock: Clock, disk: Disk) -> None:
        super().__init__(clock)
        self._loop = disk

    def find(self, volume: CloudVolume) -> Disk:
        assert volume.disk_id == "disk"
        return self._loop


def _volumes(steps: _Steps, disk: Disk) -> Volumes:
    class Device(DirectDevice):
        def write(self, offset: int, data: bytes) -> None:
            steps.next(f"write at {offset}")
            super().write(offset, data)

    clock = FakeClock()
    return Volumes(
        hub=_Hub(steps),
        runner=_Runner(steps),
        clock=clock,
        finder=_Finder(clock, disk),
        open_device=Device,
    )


def _killed(action: Callable[[], object]) -> bool:
    """Run ``action`` in a child; whether it was killed (False: it ended well)."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the agent failed with {status}"
    return status != 0


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def _blank_disk(index: int) -> Disk:
    backing = Path(f"/run/kill-disk-{index}.raw")
    backing.unlink(missing_ok=True)
    with backing.open("xb") as file:
        file.truncate(_SIZE)
    loop = _run("losetup", "--find", "--show", str(backing)).strip()
    number = Path("/sys/block", Path(loop).name, "dev").read_text().strip()
    return Disk(Path(loop), number, _SIZE)


def _volume(index: int, key_id: str) -> CloudVolume:
    return CloudVolume(index, "/data", "ext4", None, "disk", None, "luks2", key_id)


def _nothing_left(volumes: Volumes, volume: CloudVolume) -> bool:
    return all(status.name != volume.name for status in volumes.status())


def steps_of_a_first_mount(key_id: str) -> list[str]:
    """What an undisturbed mount of a new disk does, in order."""
    disk, steps = _blank_disk(0), _Steps(None)
    volumes = _volumes(steps, disk)
    with _kernel_calls_are(steps):
        volumes.mount([_volume(0, key_id)], DEFAULT_POLICY)
    taken = list(steps.taken)
    volumes.unmount(["vol-0"])
    _run("losetup", "-d", str(disk.path))
    return taken


def kill_first_mounts(index: int, key_id: str, steps: list[int]) -> None:
    """Die before each of ``steps`` of mounting a new disk; the next run must get it mounted."""
    volume = _volume(index, key_id)
    for step in steps:
        disk = _blank_disk(index)

        def mount(step: int = step, disk: Disk = disk) -> None:
            steps = _Steps(step)
            with _kernel_calls_are(steps):
                _volumes(steps, disk).mount([volume], DEFAULT_POLICY)

        assert _killed(mount), f"there is no step {step}"
        volumes = _volumes(_Steps(None), disk)
        volumes.mount([volume], DEFAULT_POLICY)
        Path(volume.mount_directory, "file").write_bytes(_CONTENT)
        volumes.unmount([volume.name])
        assert _nothing_left(volumes, volume), f"something is left after a kill before step {step}"
        _run("losetup", "-d", str(disk.path))


def kill_later_runs(index: int, key_id: str, *, unmounting: bool) -> int:
    """Die before each step of mounting, or of unmounting, a volume with data; how many steps these are."""
    volume = _volume(index, key_id)
    file = Path(volume.mount_directory, "file")
    disk = _blank_disk(index)
    _volumes(_Steps(None), disk).mount([volume], DEFAULT_POLICY)
    file.write_bytes(_CONTENT)
    _volumes(_Steps(None), disk).unmount([volume.name])
    step = 0
    while True:

        def run(step: int = step) -> None:
            if unmounting:
                _volumes(_Steps(None), disk).mount([volume], DEFAULT_POLICY)
            steps = _Steps(step)
            with _kernel_calls_are(steps):
                if unmounting:
                    _volumes(steps, disk).unmount([volume.name])
                else:
                    _volumes(steps, disk).mount([volume], DEFAULT_POLICY)

        killed = _killed(run)
        steps = _Steps(None)
        volumes = _volumes(steps, disk)
        volumes.mount([volume], DEFAULT_POLICY)
        assert file.read_bytes() == _CONTENT, f"data lost after a kill before step {step}"
        assert "mkfs.ext4 -q" not in steps.taken
        volumes.unmount([volume.name])
        assert _nothing_left(volumes, volume), f"something is left after a kill before step {step}"
        if not killed:
            break
        step += 1
    _run("losetup", "-d", str(disk.path))
    return step


def kill_rotations(device: str, key_id: str, previous_key_id: str, content: str, steps: list[str]) -> None:
    """Die before each of ``steps`` of rotating the volume on ``device``; the next run must complete it.

    ``content`` is what the volume's ``file`` holds.
    """
    path, volume = Path(device), _volume(0, key_id)
    number = Path("/sys/class/block", path.name, "dev").read_text().strip()
    file = Path(volume.mount_directory, "file")
    policy = Policy({"/data": VolumeRules(key_id=key_id, previous_key_id=previous_key_id)})
    with path.open("r+b", buffering=0) as raw:
        before = raw.read(HEADER_AREA_BYTES)
        disk = Disk(path, number, raw.seek(0, os.SEEK_END))
        for step in steps:
            os.pwrite(raw.fileno(), before, 0)
            os.fsync(raw.fileno())

            def mount(step: str = step) -> None:
                steps = _Steps(step)
                with _kernel_calls_are(steps):
                    _volumes(steps, disk).mount([volume], policy)

            assert _killed(mount), f"there is no step {step}"
            volumes = _volumes(_Steps(None), disk)
            volumes.mount([volume], policy)
            assert file.read_text() == content
            volumes.unmount([volume.name])
            assert _nothing_left(volumes, volume)
