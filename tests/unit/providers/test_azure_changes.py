"""Growing, modifying, fencing, health, and snapshots that are copied in the background."""

from __future__ import annotations

import pytest

from providers.errors import (
    InUseError,
    InvalidParameterError,
    OutcomeUnknownError,
    SizeOutOfRangeError,
    SnapshotNotFoundError,
    UnavailableError,
    VolumeNotFoundError,
)
from providers.interface import ContentSource, SourceKind
from tests.fakes.arm.cloud import ArmCloud
from tests.fakes.arm.messages import Dropped, Fault, method
from tests.fakes.arm.rig import GIB, Rig, asked, create, soon


def test_an_expansion_that_is_done_already_sends_nothing() -> None:
    """Field case F1."""
    rig = Rig()
    provider = rig.provider()
    volume = create(provider)
    for size in (4 * GIB, GIB):
        assert provider.expand_volume(volume.handle, size, soon()) == 4 * GIB
    assert not any(request.method == "PATCH" for request in rig.cloud.requests)


def test_growth_that_azure_does_not_allow_while_attached_is_in_use() -> None:
    rig = Rig()
    provider = rig.provider()
    volume = create(provider, gib=4095)
    rig.cloud.attach("csi-vol-pvc-1", "podvm-1")
    assert provider.expand_volume(volume.handle, 4096 * GIB, soon()) == 4096 * GIB
    with pytest.raises(InUseError, match="podvm-1"):
        provider.expand_volume(volume.handle, 4097 * GIB, soon())
    rig.cloud.attach("csi-vol-pvc-1", "")
    assert provider.expand_volume(volume.handle, 4097 * GIB, soon()) == 4097 * GIB


def test_growth_beyond_the_sku_is_out_of_range() -> None:
    provider = Rig().provider()
    volume = create(provider)
    with pytest.raises(SizeOutOfRangeError):
        provider.expand_volume(volume.handle, 32768 * GIB, soon())


def test_a_modification_changes_what_it_names() -> None:
    rig = Rig()
    provider = rig.provider()
    parameters = {"azureDiskSKU": "PremiumV2_LRS", "azureDiskIops": "3500", "azureDiskMbps": "200"}
    request = asked("pvc-1", 16, parameters, zones=("westeurope-1",))
    volume = provider.create_volume(request, soon())
    provider.modify_volume(volume.handle, {"azureDiskIops": "4000"}, soon())
    properties = rig.cloud.disk("csi-vol-pvc-1").properties
    assert (properties["diskIOPSReadWrite"], properties["diskMBpsReadWrite"]) == (4000, 200)
    sent = len([one for one in rig.cloud.requests if one.method == "PATCH"])
    provider.modify_volume(volume.handle, {"azureDiskIops": "4000", "azureDiskMbps": "200"}, soon())
    assert len([one for one in rig.cloud.requests if one.method == "PATCH"]) == sent == 1
    # The request that made it still describes it.
    assert rig.provider().create_volume(request, soon()).handle == volume.handle


def test_a_modification_that_the_volume_can_not_have_is_refused() -> None:
    rig = Rig()
    provider = rig.provider()
    volume = create(provider)
    for parameters in (
        {"azureDiskIops": "4000"},
        {"azureDiskSKU": "Premium"},
        {"azureDiskSKU": "UltraSSD_LRS", "azureDiskIops": "4001"},
    ):
        with pytest.raises(InvalidParameterError):
            provider.modify_volume(volume.handle, parameters, soon())
    assert not any(request.method == "PATCH" for request in rig.cloud.requests)
    with pytest.raises(VolumeNotFoundError):
        provider.modify_volume(provider.handle_for_name("no"), {"azureDiskSKU": "Premium_LRS"}, soon())


def test_another_sku_while_attached_is_in_use() -> None:
    rig = Rig()
    provider = rig.provider()
    volume = create(provider)
    rig.cloud.attach("csi-vol-pvc-1", "podvm-1")
    with pytest.raises(InUseError):
        provider.modify_volume(volume.handle, {"azureDiskSKU": "Premium_LRS"}, soon())


def test_the_note_of_a_node_is_written_once_and_by_one() -> None:
    rig = Rig()
    provider = rig.provider()
    handle = create(provider).handle
    noted = dict(rig.cloud.disk("csi-vol-pvc-1").document["tags"])
    provider.set_published_node(handle, "node/a", "", soon())
    assert provider.get_volume_info(handle, soon()).published_node_id == "node/a"
    with pytest.raises(OutcomeUnknownError):
        rig.provider().set_published_node(handle, "node/b", "", soon())
    provider.set_published_node(handle, "node/a", "", soon())  # a replay
    rig.provider().set_published_node(handle, "node/b", "node/a", soon())
    assert provider.get_volume_info(handle, soon()).published_node_id == "node/b"
    provider.set_published_node(handle, "", "node/b", soon())
    assert rig.cloud.disk("csi-vol-pvc-1").document["tags"] == noted
    with pytest.raises(VolumeNotFoundError):
        provider.set_published_node(provider.handle_for_name("no"), "node/a", "", soon())


def test_the_machine_that_has_the_disk_is_named() -> None:
    rig = Rig()
    provider = rig.provider()
    handle = create(provider).handle
    rig.cloud.attach("csi-vol-pvc-1", "podvm-3")
    assert provider.get_volume_info(handle, soon()).attached_to == "podvm-3"
    document = rig.cloud.disk("csi-vol-pvc-1").document
    document["managedByExtended"] = [document.pop("managedBy")]  # a shared disk
    assert provider.get_volume_info(handle, soon()).attached_to == "podvm-3"


@pytest.mark.parametrize(
    ("state", "abnormal", "words"),
    [
        ("Unattached", False, "available"),
        ("Attached", False, "podvm-1"),
        ("Reserved", False, "stopped"),
        ("ActiveSAS", True, "revoke"),
        ("Frozen", True, "hibernated"),
        ("ActiveUpload", True, "uploaded"),
        ("SomethingNew", False, "SomethingNew"),
    ],
)
def test_health_is_what_azure_says_in_words(state: str, abnormal: bool, words: str) -> None:
    rig = Rig()
    provider = rig.provider()
    volumes = [create(provider, f"pvc-{number}") for number in range(1, 6)]
    rig.cloud.attach("csi-vol-pvc-1", "podvm-1" if words == "podvm-1" else "")
    rig.cloud.disk("csi-vol-pvc-1").properties["diskState"] = state
    for asked_for in (volumes[:1], volumes):
        conditions = provider.volume_conditions(asked_for, soon())
        assert set(conditions) == {volume.handle for volume in asked_for}
        assert conditions[volumes[0].handle].abnormal is abnormal
        assert words in conditions[volumes[0].handle].message


def test_a_snapshot_is_ready_once_its_copy_is_complete() -> None:
    rig = Rig(ArmCloud(copy_seconds=3600))
    provider = rig.provider()
    volume = create(provider)
    snapshot = provider.create_snapshot("snap-1", volume.handle, soon())
    assert not snapshot.ready
    source = ContentSource(SourceKind.SNAPSHOT, snapshot.handle)
    with pytest.raises(UnavailableError, match="%"):
        create(provider, "copy", source=source)
    rig.cloud.resources["snapshots", "disks", "csi-snap-snap-1"].copied_at = 0.0
    assert provider.create_snapshot("snap-1", volume.handle, soon()).ready
    assert create(provider, "copy", source=source).source == source
    assert not rig.cloud.violations


def test_snapshots_are_incremental_and_closed_to_the_network() -> None:
    rig = Rig()
    provider = rig.provider()
    provider.create_snapshot("snap-1", create(provider).handle, soon())
    document = rig.cloud.resources["snapshots", "disks", "csi-snap-snap-1"].document
    assert document["properties"]["incremental"] is True
    assert document["properties"]["networkAccessPolicy"] == "DenyAll"
    assert document["properties"]["publicNetworkAccess"] == "Disabled"
    assert document["tags"]["caa-csi-snapshot-id"] == "snap-1"
    assert document["tags"]["kbs-key-id"] == "default/key/1"


def test_a_clone_is_made_where_its_source_is() -> None:
    rig = Rig()
    provider = rig.provider()
    parameters = {"azureLocation": "northeurope"}
    source = provider.create_volume(asked("pvc-1", 4, parameters), soon())
    clone = create(provider, "clone", source=ContentSource(SourceKind.VOLUME, source.handle))
    assert rig.cloud.disk("csi-vol-clone").document["location"] == "northeurope"
    assert clone.source is not None


def test_a_snapshot_that_azure_failed_to_take_is_cleaned_up() -> None:
    rig = Rig(ArmCloud(operation_looks=1))
    provider = rig.provider()
    volume = create(provider)
    rig.cloud.failing.append("InternalDiskManagementError")
    with pytest.raises(UnavailableError):
        provider.create_snapshot("snap-1", volume.handle, soon())
    assert rig.cloud.objects() == ["disks/disks/csi-vol-pvc-1"]


def test_what_a_failed_snapshot_left_is_no_snapshot_and_can_be_deleted() -> None:
    rig = Rig()
    provider = rig.provider()
    snapshot = provider.create_snapshot("snap-1", create(provider).handle, soon())
    rig.cloud.resources["snapshots", "disks", "csi-snap-snap-1"].properties["provisioningState"] = "Failed"
    assert provider.list_snapshots(None, 0, "", soon()).items == ()
    with pytest.raises(SnapshotNotFoundError):
        provider.get_snapshot(snapshot.handle, soon())
    provider.delete_snapshot(snapshot.handle, soon())
    assert rig.cloud.objects() == ["disks/disks/csi-vol-pvc-1"]


def test_what_is_being_changed_is_copied_once_that_is_done() -> None:
    """Azure refuses to copy from a disk that an operation is at work on."""
    rig = Rig(ArmCloud(operation_looks=4))
    provider = rig.provider()
    volume = create(provider)
    rig.cloud.faults += [
        Fault(method("PATCH"), after=Dropped),
        Fault(method("PATCH"), before=Dropped, times=9),
    ]
    with pytest.raises(OutcomeUnknownError):
        provider.expand_volume(volume.handle, 5 * GIB, soon())
    assert provider.create_snapshot("snap-1", volume.handle, soon()).size_bytes == 5 * GIB
