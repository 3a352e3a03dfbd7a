"""Kill -9 before every system call of a publish and of an unpublish, then look as CAA looks, then replay.

The child is forked, counts its own calls of the ``os`` functions that the node plugin uses, and kills
itself at the chosen one. What it leaves must be nothing or whole to every reader.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.direct_volumes import DirectVolumes
from driver.errors import DriverError
from driver.node import NodeService
from tests.lab.caa import attach_scan
from tests.unit.driver.node_support import (
    CONTEXT,
    KEY,
    POD_UID,
    Worker,
    names,
    publish,
    unpublish,
    what_caa_sees,
    worker,
)

_STEPS = ("close", "fsync", "mkdir", "open", "rename", "rmdir", "scandir", "stat", "unlink", "write")
_MANY = 1000

_ENCRYPTED = {"encrypt-type": "luks2", "kbs-key-id": KEY}


def _run_killed(work: Callable[[], object], step: int) -> bool:
    """Run ``work`` in a child that is killed before its ``step``-th system call; False if it ended first."""
    child = os.fork()
    if child == 0:
        try:
            _count_down(step)
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed instead of being killed"
    return False


def _count_down(step: int) -> None:
    left = step

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return real(*args, **options)

        return call

    for name in _STEPS:
        setattr(os, name, counted(getattr(os, name)))


def _assert_nothing_or_whole(node: Worker, target_a: str, target_b: str) -> bool:
    """Check what every reader of the root sees; True if volume A is published."""
    volumes = what_caa_sees(node.root, target_a, target_b, pod_uid=POD_UID)
    lun = 0
    for target, disk in ((target_a, "disk-a"), (target_b, "disk-b")):
        if target in volumes:
            whole = {"fs_type": "ext4", "disk_id": disk, "encrypt_type": "luks2", "key_id": KEY}
            assert volumes[target] == whole | {"lun": str(lun)}
            lun += 1
    assert len(attach_scan(node.root)) == lun
    assert target_b in volumes
    return target_a in volumes


def _assert_settled(node: Worker, *published: str) -> None:
    """The root holds these records, whole, and nothing else."""
    assert names(node.root) == {node.record(target).name for target in published}
    for target in published:
        assert (node.record(target) / "mountInfo.json").stat().st_size > 0
        assert Path(target).is_dir()


def _publish_a(node: Worker, target: str) -> None:
    publish(node.start(), target, volume_id="local:a", context={"cloud-volume-path": "disk-a", **_ENCRYPTED})


def _unpublish_a(node: Worker, target: str) -> None:
    unpublish(node.start(), target, volume_id="local:a")


def _pod(node: Worker) -> tuple[str, str]:
    """Volume A's target, and that of a volume B which is published all the time."""
    target_a, target_b = node.target("pvc-a"), node.target("pvc-b")
    publish(
        node.start(), target_b, volume_id="local:b", context={"cloud-volume-path": "disk-b", **_ENCRYPTED}
    )
    return target_a, target_b


@pytest.mark.parametrize("then", ["replay", "unpublish"])
def test_a_publish_killed_anywhere_is_nothing_or_whole(node: Worker, then: str) -> None:
    """Field cases C4 and C5."""
    target_a, target_b = _pod(node)
    seen = []
    for step in range(_MANY):
        killed = _run_killed(partial(_publish_a, node, target_a), step)
        seen.append(_assert_nothing_or_whole(node, target_a, target_b))
        record = node.record(target_a)
        assert not record.exists() or names(record) == {"mountInfo.json"}, "Kata would see a sandbox id"
        if then == "replay":
            _publish_a(node, target_a)
            _assert_settled(node, target_a, target_b)
            assert attach_scan(node.root, pod_uid=POD_UID) == ["disk-a", "disk-b"]
        _unpublish_a(node, target_a)
        _assert_settled(node, target_b)
        assert not Path(target_a).exists()
        if not killed:
            break
    assert len(seen) > 15, "the seam does not count"
    assert seen == sorted(seen), "a record appears once, and stays"
    assert not seen[0]
    assert seen[-1]


def test_a_killed_rewrite_keeps_the_sandbox_id_and_is_old_or_new(node: Worker) -> None:
    """Field case C4: over a truncated record beside which Kata wrote the sandbox id."""
    target_a, target_b = _pod(node)
    seen = []
    for step in range(_MANY):
        _publish_a(node, target_a)
        record = node.record(target_a)
        (record / "sandbox-7").touch()
        content = (record / "mountInfo.json").read_bytes()
        (record / "mountInfo.json").write_bytes(content[:40])
        killed = _run_killed(partial(_publish_a, node, target_a), step)
        seen.append(_assert_nothing_or_whole(node, target_a, target_b))
        assert names(record) == {"mountInfo.json", "sandbox-7"}
        assert (record / "mountInfo.json").read_bytes() in (content, content[:40])
        _publish_a(node, target_a)
        assert (record / "mountInfo.json").read_bytes() == content
        assert DirectVolumes(node.root).sandbox_ids(target_a) == ("sandbox-7",)
        _assert_settled(node, target_a, target_b)
        if not killed:
            break
    assert len(seen) > 15, "the seam does not count"
    assert seen == sorted(seen)


@pytest.mark.parametrize("then", ["replay", "publish"])
def test_an_unpublish_killed_anywhere_is_whole_or_nothing(node: Worker, then: str) -> None:
    """Field case C5."""
    target_a, target_b = _pod(node)
    seen = []
    for step in range(_MANY):
        _publish_a(node, target_a)
        record = node.record(target_a)
        (record / "sandbox-7").touch()
        killed = _run_killed(partial(_unpublish_a, node, target_a), step)
        seen.append(_assert_nothing_or_whole(node, target_a, target_b))
        assert not record.exists() or names(record) == {"mountInfo.json", "sandbox-7"}
        if then == "publish":
            _publish_a(node, target_a)
            _assert_settled(node, target_a, target_b)
        _unpublish_a(node, target_a)
        _assert_settled(node, target_b)
        assert not Path(target_a).exists()
        if not killed:
            break
    assert len(seen) > 10, "the seam does not count"
    assert seen == sorted(seen, reverse=True), "a record disappears once, and for good"
    assert seen[0]
    assert not seen[-1]


@dataclass(frozen=True)
class _Call:
    """One call of a history."""

    publishes: bool
    volume: int
    place: int
    readonly: bool
    killed_at: int | None
    restart: bool

    def target(self, node: Worker) -> str:
        return node.target(f"pvc-{self.volume}", pod_uid=f"pod-{self.place}")

    def outcome(self, node: Worker, plugin: NodeService) -> str:
        """The name of the status code it ends with."""
        volume_id, target = f"local:vol-{self.volume}", self.target(node)
        context = CONTEXT | {"cloud-volume-path": f"disk-{self.volume}"}
        try:
            if self.publishes:
                publish(plugin, target, volume_id=volume_id, context=context, readonly=self.readonly)
            else:
                unpublish(plugin, target, volume_id=volume_id)
        except DriverError as error:
            return error.code.name
        return "OK"

    def expected(self, held: tuple[str, bool] | None, target: str) -> str:
        """What the specification's table says, given what the volume is published as."""
        if not self.publishes or held is None:
            return "OK"
        if held[0] != target:
            return "FAILED_PRECONDITION"
        return "OK" if held[1] == self.readonly else "ALREADY_EXISTS"


_CALLS = st.builds(
    _Call,
    publishes=st.booleans(),
    volume=st.integers(0, 2),
    place=st.integers(0, 1),
    readonly=st.booleans(),
    killed_at=st.none() | st.integers(0, 45),
    restart=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_CALLS, max_size=12))
def test_any_history_with_kills_ends_as_its_model(calls: list[_Call]) -> None:
    """Field cases C4 to C7: a killed call is replayed, as kubelet does, by a new plugin or by one that
    was there all the time; the root equals the model after each."""
    with worker() as node:
        plugin = node.start()
        model: dict[int, tuple[str, bool]] = {}
        for call in calls:
            if call.killed_at is not None:
                _run_killed(partial(call.outcome, node, plugin), call.killed_at)
            if call.restart or call.killed_at is not None:
                plugin = node.start()
            target, held = call.target(node), model.get(call.volume)
            outcome = call.outcome(node, plugin)
            assert outcome == call.expected(held, target)
            if call.publishes and outcome == "OK":
                model[call.volume] = (target, call.readonly)
            elif not call.publishes and held is not None and held[0] == target:
                del model[call.volume]
            _assert_settled(node, *(path for path, _ in model.values()))
            seen = what_caa_sees(node.root, *(path for path, _ in model.values()))
            assert {path: volume["disk_id"] for path, volume in seen.items()} == {
                path: f"disk-{volume}" for volume, (path, _) in model.items()
            }
            assert len(attach_scan(node.root)) == len(model)
