"""The direct-volume root: names, readiness, and records that are there as a whole or not at all."""

from __future__ import annotations

import base64
import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver import mountinfo
from driver.direct_volumes import DirectVolumes, TargetPathTooLong, directory_name
from driver.errors import Internal, Unavailable
from driver.mountinfo import MountInfo
from tests.unit.driver.node_support import Worker, names

_VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "direct_volume_names.json").read_text())
_INFO = MountInfo("disk-1", "ext4", {"cloud-volume-path": "disk-1", "cloud-volume-id": "local:vol-1"})
_OTHER = MountInfo("disk-2", "ext4", {"cloud-volume-path": "disk-2", "cloud-volume-id": "local:vol-2"})


@pytest.mark.parametrize("vector", _VECTORS["accepted"], ids=lambda vector: vector["why"])
def test_names_follow_the_shared_vectors(vector: dict[str, str]) -> None:
    """Field cases C1 and C2."""
    assert directory_name(vector["target_path"]) == vector["name"]


@pytest.mark.parametrize("vector", _VECTORS["refused"], ids=lambda vector: vector["why"])
def test_a_name_that_no_file_system_takes_is_refused(vector: dict[str, str]) -> None:
    """Field case C2."""
    with pytest.raises(TargetPathTooLong, match="189"):
        directory_name(vector["target_path"])


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=150))
def test_a_name_decodes_to_the_raw_bytes_of_its_path(path: str) -> None:
    """Field case C1: the decoder is Go's URLEncoding, which demands the padding."""
    try:
        name = directory_name(path)
    except TargetPathTooLong:
        assert len(path.encode()) > 189
        return
    assert base64.b64decode(name, altchars=b"-_", validate=True) == path.encode()
    assert "/" not in name
    assert len(name) % 4 == 0


def test_a_record_is_private_and_alone(node: Worker) -> None:
    """Field cases C3 and C4: modes, and nothing beside mountInfo.json."""
    DirectVolumes(node.root).write("/t", _INFO)
    record = node.record("/t")
    assert names(node.root) == {record.name}
    assert names(record) == {"mountInfo.json"}
    assert record.stat().st_mode & 0o7777 == 0o700
    assert (record / "mountInfo.json").stat().st_mode & 0o7777 == 0o600


def test_a_record_reads_back_after_a_restart(node: Worker) -> None:
    DirectVolumes(node.root).write("/t", _INFO)
    assert DirectVolumes(node.root).read("/t") == _INFO
    assert DirectVolumes(node.root).read("/u") is None
    assert DirectVolumes(node.root).read("/" + "p" * 200) is None


def test_rewriting_keeps_the_sandbox_id_that_kata_wrote(node: Worker) -> None:
    """Field case C4."""
    volumes = DirectVolumes(node.root)
    volumes.write("/t", _INFO)
    (node.record("/t") / "sandbox-7").touch()
    (node.record("/t") / "mountInfo.json").write_bytes(b"")
    volumes.write("/t", _OTHER)
    assert volumes.read("/t") == _OTHER
    assert volumes.sandbox_ids("/t") == ("sandbox-7",)
    assert volumes.published_at("/t") == 0, "nobody knows since when"
    assert names(node.record("/t")) == {"mountInfo.json", "sandbox-7"}
    assert names(node.root) == {node.record("/t").name}


def test_there_is_no_sandbox_until_kata_notes_one(node: Worker) -> None:
    volumes = DirectVolumes(node.root)
    assert volumes.sandbox_ids("/t") == ()
    volumes.write("/t", _INFO)
    assert volumes.sandbox_ids("/t") == ()


@pytest.mark.parametrize("content", [b"", b'{"volume-type":"directvol","dev', b"[]", None, b"x" * 70_000])
def test_a_damaged_record_is_told_from_a_missing_one(node: Worker, content: bytes | None) -> None:
    """Field case C4."""
    node.record("/t").mkdir()
    if content is not None:
        (node.record("/t") / "mountInfo.json").write_bytes(content)
    volumes = DirectVolumes(node.root)
    with pytest.raises(mountinfo.Damaged):
        volumes.read("/t")
    assert volumes.find(_INFO.device) == []
    volumes.remove("/t")
    assert names(node.root) == set()


def test_removal_takes_the_sandbox_ids_and_no_other_record(node: Worker) -> None:
    """Field case C5."""
    volumes = DirectVolumes(node.root)
    volumes.write("/t", _INFO)
    volumes.write("/u", _OTHER)
    (node.record("/t") / "sandbox-7").touch()
    volumes.remove("/t")
    volumes.remove("/t")
    volumes.remove("/" + "p" * 200)
    assert names(node.root) == {node.record("/u").name}


def test_a_record_with_a_directory_in_it_is_left_for_a_person(node: Worker) -> None:
    volumes = DirectVolumes(node.root)
    volumes.write("/t", _INFO)
    precious = node.record("/t") / "folder" / "data"
    precious.parent.mkdir()
    precious.write_text("precious")
    with pytest.raises(Internal, match="holds a directory"):
        volumes.remove("/t")
    assert precious.read_text() == "precious"
    assert volumes.read("/t") == _INFO


def test_leftovers_of_a_killed_process_are_cleared_at_start_and_nothing_else(node: Worker) -> None:
    """Field case C4."""
    DirectVolumes(node.root).write("/t", _INFO)
    leftover = node.root / ".confidential-csi-abc"
    leftover.mkdir()
    (leftover / "mountInfo.json").write_bytes(b"half")
    (node.root / "of someone else").mkdir()
    (node.root / ".hidden").touch()
    before = names(node.root)
    DirectVolumes(node.root).clear_leftovers()
    assert names(node.root) == before - {leftover.name}


def test_what_a_live_process_prepares_is_not_cleared_away(
    node: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second plugin process starts while the first is about to put a record in place."""
    sync = os.fsync
    swept = []

    def sweep_then_sync(descriptor: int) -> None:
        DirectVolumes(node.root).clear_leftovers()
        swept.append(descriptor)
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", sweep_then_sync)
        DirectVolumes(node.root).write("/t", _INFO)
    assert swept
    assert DirectVolumes(node.root).read("/t") == _INFO


def test_a_record_whose_preparation_was_cleared_away_is_not_put_in_place_empty(
    node: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window before the lock is taken: the write fails, and is repeated by its caller."""
    make = tempfile.mkdtemp

    def make_and_lose(**arguments: object) -> str:
        work = make(prefix=str(arguments["prefix"]), dir=str(arguments["dir"]))
        DirectVolumes(node.root).clear_leftovers()
        return work

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.mkdtemp", make_and_lose)
        with pytest.raises(Internal, match="can't write the record"):
            DirectVolumes(node.root).write("/t", _INFO)
    assert names(node.root) == set()


@pytest.mark.parametrize("kind", ["directory", "pipe", "link", "socket"])
def test_an_odd_entry_of_someone_else_disturbs_no_other_volume(node: Worker, kind: str) -> None:
    """One bad entry must not keep every pod of the node from starting, nor hold a thread for ever."""
    volumes = DirectVolumes(node.root)
    odd = node.root / directory_name("/odd") / "mountInfo.json"
    odd.parent.mkdir()
    if kind == "directory":
        odd.mkdir()
    elif kind == "pipe":
        os.mkfifo(odd)
    elif kind == "link":
        odd.symlink_to("/etc/passwd")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(odd))
    volumes.write("/t", _INFO)
    assert volumes.find(_INFO.device) == ["/t"]
    with pytest.raises(mountinfo.Damaged):
        volumes.read("/odd")


def test_disks_are_found_by_id_whoever_wrote_or_removed_the_record(node: Worker) -> None:
    """Field case C6: the root is the only state."""
    mine, theirs = DirectVolumes(node.root), DirectVolumes(node.root)
    mine.write("/t", _INFO)
    assert mine.find(_INFO.device) == theirs.find(_INFO.device) == ["/t"]
    theirs.write("/u", _INFO)
    assert mine.find(_INFO.device) == ["/t", "/u"]
    theirs.remove("/t")
    assert mine.find(_INFO.device) == ["/u"]
    theirs.remove("/u")
    theirs.write("/u", _OTHER)
    assert mine.find(_INFO.device) == []
    assert mine.find(_OTHER.device) == ["/u"]


def test_records_of_others_and_stray_files_do_not_disturb_the_search(node: Worker) -> None:
    volumes = DirectVolumes(node.root)
    (node.root / "a file").write_text("x")
    (node.root / "not base64!").mkdir()
    (node.root / directory_name("/foreign")).mkdir()
    foreign = json.dumps({"volume-type": "block", "device": "/dev/sdb", "fstype": "ext4"})
    (node.root / directory_name("/foreign") / "mountInfo.json").write_text(foreign)
    volumes.write("/t", _INFO)
    assert volumes.find(_INFO.device) == ["/t"]


@pytest.mark.parametrize("step", ["mkdir", "open", "write", "fsync", "rename"])
def test_a_failed_write_leaves_nothing(node: Worker, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Field case C5: each system call fails in turn, the first and each later time it is used."""
    failures = 0
    for occurrence in range(10):
        volumes = DirectVolumes(node.root)
        with monkeypatch.context() as patch:
            _fail_at(patch, step, occurrence)
            try:
                volumes.write("/t", _INFO)
            except Internal as error:
                failures += 1
                assert "No space left" in str(error)
            else:
                break
        assert names(node.root) == set()
    assert failures >= 1
    assert DirectVolumes(node.root).read("/t") == _INFO


def _fail_at(patch: pytest.MonkeyPatch, name: str, occurrence: int) -> None:
    real = getattr(os, name)
    calls = 0

    def failing(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == occurrence + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **options)

    patch.setattr(os, name, failing)


def test_a_root_on_tmpfs_is_ready(node: Worker) -> None:
    volumes = DirectVolumes(node.root)
    assert volumes.readiness() is None
    volumes.require_ready()


def test_a_missing_root_is_not_ready_until_it_appears(node: Worker) -> None:
    """Field case D2."""
    volumes = DirectVolumes(node.root / "later")
    assert "missing" in (volumes.readiness() or "")
    with pytest.raises(Unavailable, match="hostPath"):
        volumes.require_ready()
    assert volumes.find(_INFO.device) == []
    (node.root / "later").mkdir()
    assert volumes.readiness() is None


def test_a_file_is_no_root(node: Worker) -> None:
    """Field case D2."""
    (node.root / "file").touch()
    assert "not a directory" in (DirectVolumes(node.root / "file").readiness() or "")


_IN_A_NAMESPACE = """
import subprocess, sys
from pathlib import Path
from driver.direct_volumes import DirectVolumes

folder = Path(sys.argv[1])
def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)
volumes = DirectVolumes(folder / "root")
for name in ("lower", "upper", "work", "root"):
    (folder / name).mkdir()
assert volumes.readiness() is None, volumes.readiness()
layers = "lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work".format(folder)
mount("-t", "overlay", "-o", layers, "overlay", str(folder / "root"))
print(volumes.readiness())
(folder / "root" / "below").mkdir()
print(DirectVolumes(folder / "root" / "below").readiness())
mount("-t", "tmpfs", "none", str(folder / "root"))
print(volumes.readiness())
mount("-o", "remount,ro", str(folder / "root"))
print(volumes.readiness())
print(volumes.readiness(for_writing=False))
"""


def test_a_root_on_overlayfs_or_read_only_is_not_ready(node: Worker) -> None:
    """Field case D2: the host's directory is not mounted, records would land in the container."""
    command = ["unshare", "-m", "--propagation", "private", sys.executable, "-c", _IN_A_NAMESPACE]
    run = subprocess.run([*command, str(node.root)], capture_output=True, text=True, check=True)
    overlay, below, tmpfs, read_only, to_read = run.stdout.splitlines()
    assert "overlayfs" in overlay
    assert "overlayfs" in below
    assert tmpfs == "None"
    assert "not writable" in read_only
    assert to_read == "None", "attach-libvirt only reads, and its mount allows no more"
