"""Publish and unpublish: what is left on disk, second calls, restarts, concurrency."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from driver.direct_volumes import DirectVolumes
from driver.errors import (
    Aborted,
    AlreadyExists,
    DriverError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    Unavailable,
)
from driver.mountinfo import MountInfo
from proto import csi_pb2
from tests.lab.caa import attach_scan
from tests.unit.driver.node_support import (
    CONTEXT,
    KEY,
    NO_CONTEXT,
    POD_UID,
    Worker,
    expand,
    mount_capability,
    names,
    publish,
    record,
    unpublish,
    what_caa_sees,
)

_Mode = csi_pb2.VolumeCapability.AccessMode


def test_a_publish_leaves_the_record_and_an_empty_target(node: Worker) -> None:
    """Field cases C1 and C3."""
    target = node.target()
    publish(node.start(), target, readonly=True)
    assert record(node, target) == {
        "volume-type": "directvol",
        "device": "disk-1",
        "fstype": "ext4",
        "metadata": {
            "cloud-volume-path": "disk-1",
            "cloud-volume-id": "local:vol-1",
            "cloud-provider": "local",
            "encrypt-type": "luks2",
            "kbs-key-id": KEY,
        },
        "options": ["ro"],
    }
    assert names(Path(target)) == set()
    assert names(node.root) == {node.record(target).name}


def test_both_of_caas_scans_read_the_record_alike(node: Worker) -> None:
    """Field case C3."""
    target = node.target()
    publish(node.start(), target)
    assert attach_scan(node.root, pod_uid=POD_UID) == ["disk-1"]
    seen = what_caa_sees(node.root, target, pod_uid=POD_UID)
    assert seen == {
        target: {"fs_type": "ext4", "lun": "0", "disk_id": "disk-1", "encrypt_type": "luks2", "key_id": KEY}
    }


def test_the_longest_path_is_published_and_a_longer_one_touches_nothing(node: Worker) -> None:
    """Field case C2."""
    node.kubelet.mkdir()
    stem = str(node.kubelet) + "/"
    fits, too_long = stem + "p" * (189 - len(stem)), stem + "p" * (190 - len(stem))
    plugin = node.start()
    publish(plugin, fits)
    unpublish(plugin, fits)
    before = (node.kubelet.stat().st_mtime_ns, node.root.stat().st_mtime_ns)
    with pytest.raises(InvalidArgument, match="189 bytes"):
        publish(plugin, too_long)
    assert (node.kubelet.stat().st_mtime_ns, node.root.stat().st_mtime_ns) == before
    assert names(node.kubelet) == names(node.root) == set()
    unpublish(plugin, too_long)  # never published: fine
    unpublish(plugin, "/" + "p" * 300)


def test_a_path_of_128_bytes_of_multibyte_characters_is_published(node: Worker) -> None:
    """Field case C2."""
    node.kubelet.mkdir()
    stem = str(node.kubelet) + "/"
    target = stem + "ä" * ((128 - len(stem)) // 2) + "x" * ((128 - len(stem)) % 2)
    assert len(target.encode()) == 128
    plugin = node.start()
    publish(plugin, target)
    assert Path(target).is_dir()
    unpublish(plugin, target)
    assert names(node.kubelet) == names(node.root) == set()


@pytest.mark.parametrize("restart", [False, True])
class TestSecondPublish:
    """Field case C6: the table, by the same process and by one that has just started."""

    def test_the_same_again_is_ok_and_changes_nothing(self, node: Worker, restart: bool) -> None:
        target = node.target()
        plugin = node.start()
        publish(plugin, target)
        (node.record(target) / "sandbox-7").touch()
        before = (node.record(target) / "mountInfo.json").stat()
        publish(node.start() if restart else plugin, target)
        after = (node.record(target) / "mountInfo.json").stat()
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
        assert names(node.record(target)) == {"mountInfo.json", "sandbox-7"}

    def test_a_compatible_access_mode_is_the_same(self, node: Worker, restart: bool) -> None:
        """Field case A10: ReadWriteOnce and ReadWriteOncePod mean one thing here."""
        target = node.target()
        plugin = node.start()
        publish(plugin, target, capability=mount_capability(mode=_Mode.SINGLE_NODE_WRITER))
        again = mount_capability(mode=_Mode.SINGLE_NODE_SINGLE_WRITER)
        publish(node.start() if restart else plugin, target, capability=again)

    def test_other_arguments_are_refused(self, node: Worker, restart: bool) -> None:
        target = node.target()
        plugin = node.start()
        publish(plugin, target)
        before = record(node, target)
        plugin = node.start() if restart else plugin
        with pytest.raises(AlreadyExists, match="options"):
            publish(plugin, target, readonly=True)
        with pytest.raises(AlreadyExists, match="metadata"):
            publish(plugin, target, context=CONTEXT | {"kbs-key-id": "default/key/vol2"})
        with pytest.raises(AlreadyExists, match="device"):
            publish(
                plugin, target, volume_id="local:vol-2", context=CONTEXT | {"cloud-volume-path": "disk-2"}
            )
        assert record(node, target) == before

    def test_another_target_is_refused_until_the_first_is_unpublished(
        self, node: Worker, restart: bool
    ) -> None:
        first, second = node.target(), node.target(pod_uid="another-pod")
        plugin = node.start()
        publish(plugin, first)
        plugin = node.start() if restart else plugin
        for readonly in (False, True):
            with pytest.raises(FailedPrecondition, match="already"):
                publish(plugin, second, readonly=readonly)
        assert not Path(second).exists()
        assert names(node.root) == {node.record(first).name}
        unpublish(plugin, first)
        publish(plugin, second)

    def test_a_missing_target_directory_is_made_again(self, node: Worker, restart: bool) -> None:
        target = node.target()
        plugin = node.start()
        publish(plugin, target)
        Path(target).rmdir()
        publish(node.start() if restart else plugin, target)
        assert Path(target).is_dir()


@pytest.mark.parametrize(
    "content", [b"", b'{"volume-type":"directvol","device":"disk-1","fst', b"null", None]
)
def test_a_damaged_record_is_rewritten_and_its_sandbox_id_kept(node: Worker, content: bytes | None) -> None:
    """Field case C4."""
    target = node.target()
    publish(node.start(), target)
    good = record(node, target)
    (node.record(target) / "sandbox-7").touch()
    path = node.record(target) / "mountInfo.json"
    path.unlink() if content is None else path.write_bytes(content)
    publish(node.start(), target)
    assert record(node, target) == good
    assert names(node.record(target)) == {"mountInfo.json", "sandbox-7"}


@pytest.mark.parametrize("content", [b"", b'{"volume-type":"directvol","device":"disk-1","fst', None])
def test_a_damaged_record_is_removed_by_unpublish(node: Worker, content: bytes | None) -> None:
    """Field case C4."""
    target = node.target()
    publish(node.start(), target)
    path = node.record(target) / "mountInfo.json"
    path.unlink() if content is None else path.write_bytes(content)
    unpublish(node.start(), target)
    assert names(node.root) == set()
    assert not Path(target).exists()


def test_a_failed_publish_shifts_nobodys_lun(node: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case C5."""
    plugin = node.start()
    target_a, target_b = node.target("pvc-a"), node.target("pvc-b")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _no_space)
        with pytest.raises(Internal, match="No space left"):
            publish(plugin, target_a, volume_id="local:a", context={"cloud-volume-path": "disk-a"})
    assert not Path(target_a).exists()
    publish(plugin, target_b, volume_id="local:b", context={"cloud-volume-path": "disk-b"})
    assert attach_scan(node.root, pod_uid=POD_UID) == ["disk-b"]
    publish(plugin, target_a, volume_id="local:a", context={"cloud-volume-path": "disk-a"})
    assert attach_scan(node.root, pod_uid=POD_UID) == ["disk-a", "disk-b"]
    unpublish(plugin, target_a, volume_id="local:a")
    assert attach_scan(node.root, pod_uid=POD_UID) == ["disk-b"]
    assert what_caa_sees(node.root, target_b, pod_uid=POD_UID)[target_b]["lun"] == "0"


def _no_space(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_unpublish_is_idempotent_and_removes_its_own_only(node: Worker) -> None:
    """Field cases C5 and C7."""
    plugin = node.start()
    target, other = node.target("pvc-1"), node.target("pvc-2")
    publish(plugin, target)
    publish(plugin, other, volume_id="local:vol-2", context={"cloud-volume-path": "disk-2"})
    (node.record(target) / "sandbox-7").touch()
    for _ in range(2):
        unpublish(plugin, target)
        assert names(node.root) == {node.record(other).name}
        assert not Path(target).exists()
        assert Path(other).is_dir()


def test_the_record_goes_even_when_the_target_is_missing(node: Worker) -> None:
    """Field case C7 a."""
    target = node.target()
    publish(node.start(), target)
    Path(target).rmdir()
    unpublish(node.start(), target)
    assert names(node.root) == set()


def test_a_target_with_content_is_an_error_until_it_is_empty(node: Worker) -> None:
    """Field case C7 c; the record must not stay to be counted for other PodVMs."""
    target = node.target()
    plugin = node.start()
    publish(plugin, target)
    data = Path(target) / "data"
    data.write_text("precious")
    for _ in range(2):
        with pytest.raises(FailedPrecondition, match="not empty"):
            unpublish(plugin, target)
        assert data.read_text() == "precious"
        assert names(node.root) == set()
    data.unlink()
    unpublish(plugin, target)
    assert not Path(target).exists()


def test_a_disk_has_one_target_whatever_its_volumes_are_called(node: Worker) -> None:
    """Field case C6: two volumes over one disk would put it into two VMs."""
    target, other = node.target("pvc-1"), node.target("pvc-2")
    plugin = node.start()
    publish(plugin, target, volume_id="local:vol-1")
    with pytest.raises(FailedPrecondition, match="delete the other pod first"):
        publish(plugin, other, volume_id="static-volume")
    unpublish(plugin, target, volume_id="local:vol-1")
    publish(plugin, other, volume_id="static-volume")


def test_a_record_with_nulls_as_go_writes_them_counts(node: Worker) -> None:
    """Field case C6: an empty list or map of Go is null in JSON, and CAA's scans take it."""
    target, other = node.target("pvc-1"), node.target("pvc-2")
    plugin = node.start()
    publish(plugin, target)
    record = node.record(target) / "mountInfo.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "options": None}))
    with pytest.raises(FailedPrecondition, match="delete the other pod first"):
        publish(node.start(), other, volume_id="local:other")
    assert expand(node.start(), target, required=1 << 30) == 1 << 30


def test_two_volumes_over_one_disk_published_at_once_end_with_one_record(
    node: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field case C6, both calls inside the node plugin at the same moment."""
    targets = {"pvc-1": node.target("pvc-1"), "local:csi-vol-pvc-1": node.target("pvc-2")}
    plugin = node.start()
    inside, proceed = threading.Event(), threading.Event()
    write = DirectVolumes.write

    def slow_write(volumes: DirectVolumes, target_path: str, info: MountInfo) -> None:
        inside.set()
        assert proceed.wait(60)
        write(volumes, target_path, info)

    monkeypatch.setattr(DirectVolumes, "write", slow_write)
    first = threading.Thread(target=publish, args=(plugin, targets["pvc-1"]), kwargs={"volume_id": "pvc-1"})
    first.start()
    assert inside.wait(60)
    with pytest.raises(Aborted):
        publish(plugin, targets["local:csi-vol-pvc-1"], volume_id="local:csi-vol-pvc-1")
    proceed.set()
    first.join(60)
    assert names(node.root) == {node.record(targets["pvc-1"]).name}


@pytest.mark.parametrize(
    "volume_id", ["../../../escape/x", "a/b", ".", "x\0y", "v" * 300, "/etc/passwd", "ä b&<"]
)
def test_an_id_is_never_used_as_a_path_or_refused_for_its_form(node: Worker, volume_id: str) -> None:
    """Field case C9."""
    target = node.target()
    canary = node.root.parent / "canary"
    canary.write_text("alive")
    plugin = node.start()
    publish(plugin, target, volume_id=volume_id)
    assert names(node.root) == {node.record(target).name}
    assert names(node.root.parent) == {"direct-volumes", "k", "canary"}
    unpublish(plugin, target, volume_id=volume_id)
    unpublish(plugin, target, volume_id=volume_id)
    assert names(node.root) == set()
    assert canary.read_text() == "alive"


@pytest.mark.parametrize("path", ["relative/x", "/var/lib/kubelet/../../etc", "/x\0y", "/"])
def test_a_bad_target_path_is_refused_by_both(node: Worker, path: str) -> None:
    """Field case C9."""
    with pytest.raises(InvalidArgument):
        publish(node.start(), path)
    with pytest.raises(InvalidArgument):
        unpublish(node.start(), path)
    assert names(node.root) == set()


def test_a_target_inside_the_direct_volume_root_is_refused(node: Worker) -> None:
    """Field case C9: it would be another volume's record."""
    target = node.target()
    plugin = node.start()
    publish(plugin, target)
    for path in (node.record(target) / "mountInfo.json", node.record(target), node.root, node.root / "x"):
        with pytest.raises(InvalidArgument, match="direct-volume root"):
            unpublish(plugin, str(path))
        with pytest.raises(InvalidArgument, match="direct-volume root"):
            publish(plugin, str(path), volume_id="local:vol-2")
    assert names(node.record(target)) == {"mountInfo.json"}


def test_publish_needs_no_stage_before_or_after_a_restart(node: Worker) -> None:
    """Field case D1."""
    target = node.target()
    stage = csi_pb2.NodeStageVolumeRequest(
        volume_id="local:vol-1",
        staging_target_path="/stage",
        volume_capability=mount_capability(),
        volume_context=CONTEXT,
    )
    node.start().NodeStageVolume(stage, NO_CONTEXT)
    assert names(node.root) == set()
    publish(node.start(), target)
    unstage = csi_pb2.NodeUnstageVolumeRequest(volume_id="local:vol-1", staging_target_path="/stage")
    node.start().NodeUnstageVolume(unstage, NO_CONTEXT)
    publish(node.start(), target)


def test_nothing_is_done_while_the_root_is_not_the_hosts(node: Worker) -> None:
    """Field case D2: neither a publish that nobody sees, nor an unpublish that forgets the real record."""
    target = node.target()
    publish(node.start(), target)
    away = node.root.rename(node.root.parent / "away")
    other = node.target("pvc-2")
    for plugin in (node.start(), node.start()):
        with pytest.raises(Unavailable, match="missing"):
            publish(plugin, other, volume_id="local:vol-2")
        with pytest.raises(Unavailable, match="missing"):
            unpublish(plugin, target)
        with pytest.raises(Unavailable, match="missing"):
            expand(plugin, target)
        assert not Path(other).exists()
        assert Path(target).is_dir()
        assert not node.root.exists()
    away.rename(node.root)
    unpublish(node.start(), target)


def test_calls_on_one_volume_or_one_target_do_not_overlap(
    node: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Per-volume lock: the second call is ABORTED, another volume's is not."""
    plugin = node.start()
    target, other = node.target("pvc-1"), node.target("pvc-2")
    reached, go_on = threading.Event(), threading.Event()
    real_fsync, slow = os.fsync, threading.local()

    def fsync(descriptor: int) -> None:
        if getattr(slow, "here", False):
            reached.set()
            assert go_on.wait(60)
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)

    def first() -> None:
        slow.here = True
        publish(plugin, target)

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert reached.wait(60)
        with pytest.raises(Aborted):
            publish(plugin, target)
        with pytest.raises(Aborted):
            publish(plugin, node.target("pvc-3"))
        with pytest.raises(Aborted):
            unpublish(plugin, target)
        with pytest.raises(Aborted):
            publish(plugin, target, volume_id="local:vol-2")
        publish(plugin, other, volume_id="local:vol-2", context={"cloud-volume-path": "disk-2"})
    finally:
        go_on.set()
        thread.join()
    publish(plugin, target)
    assert names(node.root) == {node.record(target).name, node.record(other).name}


def test_racing_publishes_of_one_volume_to_many_targets_end_with_one(node: Worker) -> None:
    """Field case C6 under concurrency."""
    plugin = node.start()
    targets = [node.target(f"pvc-{number}") for number in range(16)]
    barrier = threading.Barrier(len(targets))
    outcomes: list[str] = []

    def race(target: str) -> None:
        barrier.wait()
        try:
            publish(plugin, target)
            outcomes.append("OK")
        except DriverError as error:
            outcomes.append(error.code.name)

    threads = [threading.Thread(target=race, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("OK") == 1
    assert set(outcomes) <= {"OK", "ABORTED", "FAILED_PRECONDITION"}
    assert len(names(node.root)) == 1
    assert sum(Path(target).exists() for target in targets) == 1
