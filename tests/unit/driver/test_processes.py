"""Real controller processes: races, SIGKILL, SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import grpc
import pytest

from proto import csi_pb2
from tests.fakes.memory_provider import GIB
from tests.tools.driver_process import DriverProcess, running
from tests.tools.waiting import eventually
from tests.unit.driver.rig import ENCRYPTED, Client, connect, from_snapshot, refused

MIB = 1 << 20


def _controller(stack: ExitStack, folder: Path, disks: Path) -> tuple[DriverProcess, Client]:
    """A controller of the local provider, as a process, and its client."""
    folder.mkdir()
    settings = {"CONFIDENTIAL_CSI_LOCAL_DIRECTORY": str(disks)}
    driver = stack.enter_context(running("controller", folder, "--provider", "local", env=settings))
    return driver, stack.enter_context(connect(driver.target()))


@pytest.fixture
def disks(tmp_path: Path) -> Path:
    directory = tmp_path / "disks"
    directory.mkdir()
    return directory


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def _files(disks: Path) -> list[str]:
    return sorted(path.name for path in (disks / "volumes").iterdir() if not path.name.startswith("."))


def test_two_processes_racing_on_one_name_make_one_disk(
    stack: ExitStack, disks: Path, tmp_path: Path
) -> None:
    """Field case A1."""
    clients = [_controller(stack, tmp_path / name, disks)[1] for name in ("a", "b")]
    names = [f"pvc-{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        calls = [
            pool.submit(client.create, name, required=64 * MIB, parameters=ENCRYPTED)
            for name in names
            for client in clients
        ]
        answers = [call.result() for call in calls]
    assert len({answer.volume_id for answer in answers}) == len(names)
    assert len(_files(disks)) == len(names)


def test_a_killed_controller_leaves_nothing_that_its_successor_does_not_know(
    stack: ExitStack, disks: Path, tmp_path: Path
) -> None:
    """Field case D3: SIGKILL amid creations; the replay finds or makes each volume, once."""
    driver, client = _controller(stack, tmp_path / "a", disks)
    names: list[str] = []

    def create_until_it_is_killed(thread: int) -> None:
        with suppress(grpc.RpcError):
            for number in count():
                names.append(f"pvc-{thread}-{number}")
                client.create(f"pvc-{thread}-{number}", required=64 * MIB)

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(create_until_it_is_killed, thread) for thread in range(4)]
        eventually(lambda: len(names) > 20)
        driver.kill()
    assert [call.exception() for call in calls] == [None] * 4
    _, successor = _controller(stack, tmp_path / "b", disks)
    answers = [successor.create(name, required=64 * MIB) for name in names]
    listed = successor.controller.ListVolumes(csi_pb2.ListVolumesRequest(), timeout=10).entries
    assert sorted(entry.volume.volume_id for entry in listed) == sorted(a.volume_id for a in answers)
    for answer in answers:
        successor.delete(answer.volume_id)
    assert _files(disks) == []


def test_a_replay_at_another_process_is_the_same_byte_for_byte(
    stack: ExitStack, disks: Path, tmp_path: Path
) -> None:
    """Field case E3, as bytes on the wire."""
    answers = []
    snapshot_id = ""
    for folder in ("a", "b"):
        driver, client = _controller(stack, tmp_path / folder, disks)
        source = client.create("source", required=64 * MIB, parameters=ENCRYPTED)
        snapshot_id = snapshot_id or client.snapshot("s1", source.volume_id).snapshot_id
        request = csi_pb2.CreateVolumeRequest(
            name="copy", parameters=ENCRYPTED, volume_content_source=from_snapshot(snapshot_id)
        )
        capability = request.volume_capabilities.add()
        capability.mount.fs_type = "ext4"
        capability.access_mode.mode = csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = client.channel.unary_unary(
            "/csi.v1.Controller/CreateVolume"
        )
        answers.append(call(request.SerializeToString(), timeout=30))
        assert driver.terminate(60) == 0
    assert answers[0] == answers[1]
    assert csi_pb2.CreateVolumeResponse.FromString(answers[0]).volume.HasField("content_source")


def test_an_encrypted_volume_has_room_for_header_and_file_system(
    stack: ExitStack, disks: Path, tmp_path: Path
) -> None:
    _, client = _controller(stack, tmp_path / "a", disks)
    assert client.create("small", required=1).capacity_bytes == MIB
    assert client.create("encrypted", required=1, parameters=ENCRYPTED).capacity_bytes == 32 * MIB
    assert client.create("large", required=10_000_000_000).capacity_bytes == 9537 * MIB
    with refused(grpc.StatusCode.OUT_OF_RANGE):
        client.create("tight", required=1, limit=16 * MIB, parameters=ENCRYPTED)
    with refused(grpc.StatusCode.OUT_OF_RANGE):
        client.create("huge", required=2**62)
    assert client.create("default", required=0).capacity_bytes == GIB


@pytest.mark.parametrize("volume_id", ["../../../escape/x", "local:../../../escape/x", "a/b", ".", "x\0y"])
def test_hostile_ids_touch_no_file(stack: ExitStack, disks: Path, tmp_path: Path, volume_id: str) -> None:
    """Field case C9."""
    canary = tmp_path / "escape"
    canary.mkdir()
    (canary / "x").write_text("canary")
    _, client = _controller(stack, tmp_path / "a", disks)
    client.delete(volume_id)
    client.delete_snapshot(volume_id)
    with refused(grpc.StatusCode.NOT_FOUND):
        client.expand(volume_id, GIB)
    client.create("../../../escape/x", required=MIB)
    assert (canary / "x").read_text() == "canary"
    assert [path.name for path in canary.iterdir()] == ["x"]


def test_sigterm_drains_and_exits(stack: ExitStack, disks: Path, tmp_path: Path) -> None:
    driver, client = _controller(stack, tmp_path / "a", disks)
    client.create("pvc-1", required=MIB)
    assert driver.terminate(60) == 0
    assert not driver.socket.exists()


@pytest.mark.parametrize("manner", ["polite", "deaf"])
def test_sigterm_ends_a_controller_whose_cloud_never_answers(tmp_path: Path, manner: str) -> None:
    """Field case B3: soon after the grace period, though calls are in progress."""
    socket = tmp_path / "s"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.driver.hung_driver", str(socket), "0.5", manner],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        while "serving" not in process.stderr.readline():
            assert process.poll() is None
        with connect(f"unix:{socket}") as client, ThreadPoolExecutor(10) as pool:
            calls = [pool.submit(client.create, f"pvc-{number}", timeout=120) for number in range(10)]
            time.sleep(0.3)
            assert client.identity.Probe(csi_pb2.ProbeRequest(), timeout=20).ready.value
            process.send_signal(signal.SIGTERM)
            started = time.monotonic()
            assert process.wait(60) == 0
            assert time.monotonic() - started < 30
            assert all(call.exception() is not None for call in calls)
    finally:
        process.kill()
        process.wait()
