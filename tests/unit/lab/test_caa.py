"""The CAA stand-in reads the direct-volume root as CAA does, and refuses what would misplace a disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.direct_volumes import directory_name
from driver.mountinfo import MountInfo
from tests.lab.caa import Caa, Disagreement, OciMount, attach_scan, container_scan, serial_of

POD = "/var/lib/kubelet/pods/2c8b/volumes/kubernetes.io~csi"

Publish = Callable[..., str]


def target_path(name: str, pod: str = POD) -> str:
    return f"{pod}/{name}/mount"


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    """Writes a mountInfo.json; gives back the target path."""

    def write(name: str, info: Any, pod: str = POD) -> str:
        folder = tmp_path / directory_name(target_path(name, pod))
        folder.mkdir()
        (folder / "mountInfo.json").write_bytes(
            info if isinstance(info, bytes) else json.dumps(info).encode()
        )
        return target_path(name, pod)

    return write


def entry(disk: str, **metadata: Any) -> dict[str, Any]:
    return {
        "volume-type": "directvol",
        "device": disk,
        "fstype": "ext4",
        "metadata": metadata,
        "options": [],
    }


def test_luns_count_the_entries_that_a_container_does_not_mount(tmp_path: Path, publish: Publish) -> None:
    names = ["pvc-b", "pvc-a", "pvc-c"]
    targets = {name: publish(name, entry(f"disk-{name}")) for name in names}
    in_order = sorted(names, key=lambda name: directory_name(targets[name]))
    mounted = in_order[2]
    volumes, counted = container_scan(tmp_path, [OciMount(targets[mounted], "/data")])
    assert counted == attach_scan(tmp_path) == [f"disk-{name}" for name in in_order]
    assert volumes == {
        "vol-2": {"mount_point": "/data", "fs_type": "ext4", "lun": "2", "disk_id": f"disk-{mounted}"}
    }


def test_the_annotation_is_what_go_would_write(tmp_path: Path, publish: Publish) -> None:
    info = entry("ignored", **{"cloud-volume-path": "vol-0123abcd", "encrypt-type": "luks2"})
    info["metadata"]["kbs-key-id"] = "default/key/one"
    target = publish("pvc-a", info)
    caa = Caa(tmp_path)
    annotation = caa.create_container([OciMount(target, "/data")], sandbox_id="5a11")
    assert annotation == (
        '{"vol-0":{"disk_id":"vol-0123abcd","encrypt_type":"luks2","fs_type":"ext4",'
        '"key_id":"default/key/one","lun":"0","mount_point":"/data"}}'
    )
    folder = tmp_path / directory_name(target)
    assert sorted(file.name for file in folder.iterdir()) == ["5a11", "mountInfo.json"]
    assert (folder / "5a11").read_bytes() == b""


def test_a_container_without_volumes_gets_no_annotation(tmp_path: Path, publish: Publish) -> None:
    publish("pvc-a", entry("disk-a"))
    assert Caa(tmp_path).create_container([OciMount("/etc/hosts", "/etc/hosts")], sandbox_id="s") == ""


@pytest.mark.parametrize("value", [True, 7, ["luks2"], {}])
def test_metadata_that_is_not_text_is_counted_by_one_scan_and_dropped_by_the_other(
    tmp_path: Path, publish: Publish, value: object
) -> None:
    bad = publish("pvc-a", entry("disk-a", readonly=value))
    good = publish("pvc-b", entry("disk-b"))
    assert attach_scan(tmp_path) == ["disk-b"]
    assert sorted(container_scan(tmp_path, [])[1]) == ["disk-a", "disk-b"]
    with pytest.raises(Disagreement, match="counts LUNs by"):
        Caa(tmp_path).create_container([OciMount(good, "/data")], sandbox_id="s")
    with pytest.raises(Disagreement, match="runtime fails"):
        Caa(tmp_path).create_container([OciMount(bad, "/data")], sandbox_id="s")


def test_a_field_in_other_case_is_read_by_the_typed_scan_alone(tmp_path: Path, publish: Publish) -> None:
    publish("pvc-a", {"Device": "disk-a"})
    assert attach_scan(tmp_path) == ["disk-a"]
    assert container_scan(tmp_path, [])[1] == []


@pytest.mark.parametrize("content", [b"", b'{"device": "x"', b'["x"]', b'{"device": NaN}', b"{}", b"null"])
def test_what_cannot_be_read_is_skipped(tmp_path: Path, publish: Publish, content: bytes) -> None:
    publish("pvc-a", content)
    assert attach_scan(tmp_path) == container_scan(tmp_path, [])[1] == []


@pytest.mark.parametrize("content", [b"", b'{"device": "x"', b'{"device": NaN}'])
def test_a_pod_does_not_start_with_a_record_that_cannot_be_read(
    tmp_path: Path, publish: Publish, content: bytes
) -> None:
    target = publish("pvc-a", content)
    with pytest.raises(Disagreement, match="runtime fails"):
        Caa(tmp_path).create_container([OciMount(target, "/data")], sandbox_id="s")


@pytest.mark.parametrize("name", ["not-base64!", "YQ", "YQ+=", "YQ=="])
def test_folders_that_name_no_csi_volume_are_skipped(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "mountInfo.json").write_text(json.dumps(entry("disk")))
    (tmp_path / "a-file").touch()
    assert attach_scan(tmp_path) == container_scan(tmp_path, [])[1] == []


def test_without_a_sandbox_uid_every_entry_of_the_node_is_taken(tmp_path: Path, publish: Publish) -> None:
    publish("pvc-a", entry("disk-a"))
    publish("pvc-b", entry("disk-b"), pod="/var/lib/kubelet/pods/9f00/volumes/kubernetes.io~csi")
    assert sorted(attach_scan(tmp_path)) == ["disk-a", "disk-b"]
    assert attach_scan(tmp_path, pod_uid="9f00") == ["disk-b"]
    assert container_scan(tmp_path, [], pod_uid="9f00")[1] == ["disk-b"]


def test_a_device_that_exists_on_the_worker_is_refused(tmp_path: Path, publish: Publish) -> None:
    target = publish("pvc-a", entry("/dev/null", **{"cloud-volume-path": "disk-a"}))
    with pytest.raises(Disagreement, match="runtime fails"):
        Caa(tmp_path).create_container([OciMount(target, "/data")], sandbox_id="s")


def test_serials_fit_and_differ() -> None:
    names = [f"/disks/csi-vol-pvc-{'0' * 60}{number}.raw" for number in range(1000)]
    serials = {serial_of(name) for name in names}
    assert len(serials) == len(names)
    assert {len(serial) for serial in serials} == {20}


_words = st.text(min_size=1, max_size=30)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(_words, _words), min_size=1, max_size=5, unique_by=lambda pair: pair[0]))
def test_what_the_node_plugin_writes_both_scans_read_alike(volumes: list[tuple[str, str]]) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for number, (key, disk) in enumerate(volumes):
            metadata = {"cloud-volume-path": disk, "kbs-key-id": key}
            info = MountInfo(device=disk, fs_type="ext4", metadata=metadata)
            place = root / directory_name(target_path(f"pvc-{number}"))
            place.mkdir()
            (place / "mountInfo.json").write_bytes(info.encode())
        mounts = [OciMount(target_path(f"pvc-{number}"), f"/{number}") for number in range(len(volumes))]
        found, counted = container_scan(root, mounts)
        assert counted == attach_scan(root)
        assert sorted(counted) == sorted(disk for _, disk in volumes)
        assert {(volume["key_id"], volume["disk_id"]) for volume in found.values()} == set(volumes)
