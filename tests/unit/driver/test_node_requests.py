"""What a publish takes from its request: disk, encryption, capability; and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driver.errors import (
    FailedPrecondition,
    InvalidArgument,
)
from proto import csi_pb2
from tests.unit.driver.node_support import (
    CONTEXT,
    KEY,
    NO_CONTEXT,
    POD_UID,
    Worker,
    mount_capability,
    names,
    publish,
    record,
    unpublish,
    what_caa_sees,
)

_Mode = csi_pb2.VolumeCapability.AccessMode
_ARM = (
    "/subscriptions/0b1f6471-1bf0-4dda-aec3-cb9272f09590/resourceGroups/my_rg(1)/providers/"
    "Microsoft.Compute/disks/csi-vol-pvc-1"
)


def test_only_allowed_keys_and_no_secret_reach_the_file(node: Worker) -> None:
    """Field cases L1, L2 and C3."""
    target = node.target()
    context = CONTEXT | {
        "csi.storage.k8s.io/serviceAccount.tokens": "TOK3N",
        "csi.storage.k8s.io/pod.uid": POD_UID,
        "awsSecretKey": "S3CR3T",
        "cdhKey": "kbs:///x/y/z",
        "storage.kubernetes.io/csiProvisionerIdentity": "1-2-driver",
        "cloudProviderVolumePath": "/images",
    }
    publish(node.start(), target, context=context, secrets={"k": "S3CR3T"})
    content = (node.record(target) / "mountInfo.json").read_text()
    assert "TOK3N" not in content
    assert "S3CR3T" not in content
    assert set(json.loads(content)["metadata"]) == {
        "cloud-volume-path",
        "cloud-volume-id",
        "cloud-provider",
        "encrypt-type",
        "kbs-key-id",
    }


@pytest.mark.parametrize(
    ("volume_id", "context", "disk", "provider"),
    [
        ("vol-0abc12345", {"cloud-provider": "aws"}, "vol-0abc12345", "aws"),
        ("vol-0abc12345", {}, "vol-0abc12345", "aws"),
        (_ARM, {}, _ARM, "azure"),
        ("pvc-1", {"ebs-volume-id": "vol-0abc12345", "cloudProvider": "aws"}, "vol-0abc12345", "aws"),
        ("pvc-1", {"azure-resource-id": _ARM, "cloud-volume-path": ""}, _ARM, "azure"),
        ("pvc-1", {"cloud-volume-path": "a-disk"}, "a-disk", None),
        ("local:pvc-1", {"cloud-volume-path": "a-disk"}, "a-disk", "local"),
        ("local:pvc-1", {"cloud-volume-path": "a-disk", "cloud-provider": "libvirt"}, "a-disk", "libvirt"),
    ],
)
def test_the_disk_is_known_from_id_and_context_alone(
    node: Worker, volume_id: str, context: dict[str, str], disk: str, provider: str | None
) -> None:
    """Field cases C10 and D1: statically provisioned, never created or staged here."""
    target = node.target()
    publish(node.start(), target, volume_id=volume_id, context=context)
    written = record(node, target)
    metadata = {"cloud-volume-path": disk, "cloud-volume-id": volume_id}
    if provider is not None:
        metadata["cloud-provider"] = provider
    assert written["device"] == disk
    assert written["metadata"] == metadata


def test_the_record_names_the_volume_as_the_controller_does(node: Worker) -> None:
    """``cloud-volume-id`` is the CSI name, which the controller puts into the context."""
    target = node.target()
    publish(node.start(), target, context=CONTEXT | {"cloud-volume-id": "pvc-1"})
    assert record(node, target)["metadata"]["cloud-volume-id"] == "pvc-1"


@pytest.mark.parametrize(
    ("volume_id", "context"),
    [
        ("pvc-1", {}),
        ("local:pvc-1", {"cloud-provider": "local"}),
        ("vol-xyz", {}),
        ("vol-0abc12345\n", {}),
        ("../vol-0abc12345", {}),
        ("pvc-1", {"ebs-volume-id": "vol-1\n"}),
        ("pvc-1", {"azure-resource-id": "csi-vol-pvc-1"}),
        ("pvc-1", {"cloud-volume-path": "a\nb"}),
        ("pvc-1", {"cloud-volume-path": " a"}),
        ("pvc-1", {"cloud-volume-path": "d" * 513}),
        ("pvc-1", {"cloud-volume-path": "a", "cloud-provider": "aws\n"}),
    ],
)
def test_a_volume_whose_disk_is_not_named_is_refused(
    node: Worker, volume_id: str, context: dict[str, str]
) -> None:
    """Field case C10."""
    target = node.target()
    with pytest.raises(InvalidArgument):
        publish(node.start(), target, volume_id=volume_id, context=context)
    assert names(node.root) == set()
    assert not Path(target).exists()


def test_a_disk_id_that_names_something_on_the_worker_is_refused(node: Worker, tmp_path: Path) -> None:
    """Contract: the Kata shim would hot-plug it."""
    disk = tmp_path / "disk.raw"
    target = node.target()
    publish(node.start(), target, context={"cloud-volume-path": str(disk)})  # names nothing here: fine
    unpublish(node.start(), target)
    disk.touch()
    link = tmp_path / "dangling"
    link.symlink_to("/nowhere")
    for path in (str(disk), str(link), "/dev/null", "/dev/not-here-but-in-the-host", "/sys/block/sda"):
        with pytest.raises(FailedPrecondition, match="this worker"):
            publish(node.start(), target, context={"cloud-volume-path": path})
    assert names(node.root) == set()


@pytest.mark.parametrize(
    "encryption",
    [
        {"encrypt-type": "luks2"},
        {"kbs-key-id": KEY},
        {"encrypt-type": "", "kbs-key-id": KEY},
        {"encrypt-type": "luks2", "kbs-key-id": ""},
        {"encrypt-type": "", "kbs-key-id": ""},
        {"encrypt-type": " luks2 ", "kbs-key-id": KEY},
        {"encrypt-type": "LUKS2", "kbs-key-id": KEY},
        {"encrypt-type": "aes", "kbs-key-id": KEY},
        {"encrypt-type": "luks2", "kbs-key-id": f"kbs:///{KEY}"},
        {"encrypt-type": "luks2", "kbs-key-id": "default/key/.."},
        {"encrypt-type": "luks2", "kbs-key-id": f"{KEY}\n"},
    ],
)
def test_half_or_malformed_encryption_is_refused(node: Worker, encryption: dict[str, str]) -> None:
    """Field cases L3 and J1: it would end as a plaintext mount."""
    target = node.target()
    with pytest.raises(InvalidArgument):
        publish(node.start(), target, context={"cloud-volume-path": "disk-1"} | encryption)
    assert names(node.root) == set()
    assert not Path(target).exists()


def test_the_older_drivers_spelling_of_the_type_is_kept(node: Worker) -> None:
    target = node.target()
    publish(node.start(), target, context=CONTEXT | {"encrypt-type": "luks"})
    assert what_caa_sees(node.root, target)[target]["encrypt_type"] == "luks"


_BLOCK = csi_pb2.VolumeCapability(
    block=csi_pb2.VolumeCapability.BlockVolume(), access_mode=_Mode(mode=_Mode.SINGLE_NODE_WRITER)
)


def _with_flags(*flags: str) -> csi_pb2.VolumeCapability:
    capability = mount_capability()
    capability.mount.mount_flags.extend(flags)
    return capability


@pytest.mark.parametrize(
    "capability",
    [
        _BLOCK,
        mount_capability(mode=_Mode.MULTI_NODE_MULTI_WRITER),
        mount_capability(mode=_Mode.MULTI_NODE_SINGLE_WRITER),
        mount_capability(mode=_Mode.MULTI_NODE_READER_ONLY),
        mount_capability(mode=_Mode.SINGLE_NODE_MULTI_WRITER),
        mount_capability(fs_type="bind"),
        mount_capability(fs_type="ntfs"),
        mount_capability(fs_type="xfs"),  # with encryption
        _with_flags("bind"),
        _with_flags("rbind"),
        _with_flags("nodev", "sync"),
    ],
    ids=str,
)
def test_what_the_guest_cannot_honor_is_refused(node: Worker, capability: csi_pb2.VolumeCapability) -> None:
    """Field case A10; NodePublish and NodeStage name FAILED_PRECONDITION for it."""
    target = node.target()
    with pytest.raises(FailedPrecondition):
        publish(node.start(), target, capability=capability)
    assert names(node.root) == set()
    assert not Path(target).exists()
    request = csi_pb2.NodeStageVolumeRequest(
        volume_id="v", staging_target_path="/s", volume_capability=capability, volume_context=CONTEXT
    )
    with pytest.raises(FailedPrecondition):
        node.start().NodeStageVolume(request, NO_CONTEXT)


def test_a_missing_capability_is_an_invalid_argument(node: Worker) -> None:
    """Field case A10."""
    request = csi_pb2.NodePublishVolumeRequest(
        volume_id="v", target_path=node.target(), volume_context=CONTEXT
    )
    with pytest.raises(InvalidArgument, match="missing"):
        node.start().NodePublishVolume(request, NO_CONTEXT)
    no_mode = csi_pb2.VolumeCapability(mount=csi_pb2.VolumeCapability.MountVolume())
    for capability in (csi_pb2.VolumeCapability(), no_mode):
        with pytest.raises(InvalidArgument) as caught:
            publish(node.start(), node.target(), capability=capability)
        assert not isinstance(caught.value, FailedPrecondition)
    with pytest.raises(InvalidArgument, match="missing"):
        node.start().NodeStageVolume(csi_pb2.NodeStageVolumeRequest(volume_id="v"), NO_CONTEXT)


def test_file_system_and_honored_flags_are_recorded(node: Worker) -> None:
    target = node.target()
    capability = _with_flags("nosuid", "noatime", "nodev", "nosuid")
    capability.mount.fs_type = "xfs"
    publish(
        node.start(), target, context={"cloud-volume-path": "disk-1"}, capability=capability, readonly=True
    )
    written = record(node, target)
    assert written["fstype"] == "xfs"
    assert written["options"] == ["ro", "noatime", "nodev", "nosuid"]


def test_an_empty_fs_type_is_ext4(node: Worker) -> None:
    """Field case C3: Kata takes an empty one for a missing mount."""
    target = node.target()
    publish(node.start(), target, capability=mount_capability(fs_type=""))
    assert record(node, target)["fstype"] == "ext4"
