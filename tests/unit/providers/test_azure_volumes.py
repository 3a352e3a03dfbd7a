"""Whose disk is it: names, tags, the older Go driver's disks, disks of others, zones and resource groups."""

from __future__ import annotations

import pytest

from providers.azure import AzureProvider, handles
from providers.azure.places import Place
from providers.errors import (
    AlreadyExistsError,
    CorruptStateError,
    InUseError,
    InvalidParameterError,
    OutcomeUnknownError,
    QuotaExceededError,
    UnavailableError,
    VolumeNotFoundError,
)
from providers.interface import ContentSource, SourceKind
from tests.fakes.arm.cloud import ArmCloud
from tests.fakes.arm.messages import Dropped, Fault, Request, method
from tests.fakes.arm.rig import GIB, Rig, asked, create, soon

GO_TAG = "caa-csi-volume-id"


def at(rig: Rig, name: str) -> str:
    """The handle of the disk of that name."""
    return str(handles.handle(name, Place(rig.cloud.subscription, rig.group)))


def test_a_disk_has_the_go_drivers_name_and_attributes() -> None:
    rig = Rig()
    volume = create(rig.provider())
    resource_id = (
        f"/subscriptions/{rig.cloud.subscription}/resourceGroups/disks/providers/Microsoft.Compute/disks"
        "/csi-vol-pvc-1"
    )
    assert volume.disk_id == resource_id
    assert volume.attributes == {"azure-disk-name": "csi-vol-pvc-1", "azure-resource-id": resource_id}
    noted = rig.cloud.disk("csi-vol-pvc-1").document["tags"]
    assert noted[GO_TAG] == "pvc-1"
    assert noted["caa-csi-cluster-id"] == "c1"
    assert noted["kbs-key-id"] == "default/key/1"


@pytest.mark.parametrize("name", ["pvc-7", "PVC_7", "a b", "n" * 128])
def test_what_the_go_driver_made_is_found_by_its_bare_name_used_and_deleted(name: str) -> None:
    rig = Rig()
    disk = handles.go_name(handles.VOLUME_PREFIX, name)
    rig.add_disk(disk, {GO_TAG: name})
    provider = rig.provider()
    handle = provider.handle_for_name(name)
    volume = provider.get_volume_info(handle, soon())
    assert (volume.name, volume.size_bytes, volume.encryption) == (name, 4 * GIB, None)
    assert volume.attributes["azure-disk-name"] == disk
    assert rig.provider().get_volume_info(volume.handle, soon()) == volume
    assert provider.expand_volume(handle, 6 * GIB, soon()) == 6 * GIB
    snapshot = provider.create_snapshot("snap-1", handle, soon())
    assert snapshot.source_handle == volume.handle
    assert [one.name for one in provider.list_volumes(0, "", soon()).items] == [name]
    replayed = provider.create_volume(asked(name, 6), soon())
    assert replayed.handle == volume.handle
    rig.provider().delete_volume(handle, soon())
    assert rig.cloud.objects() == ["snapshots/disks/csi-snap-snap-1"]


def test_sources_that_the_go_driver_noted_are_told() -> None:
    rig = Rig()
    rig.add_disk("csi-vol-copy", {GO_TAG: "copy", "source-snapshot": "snap-1"})
    rig.add_disk("csi-vol-clone", {GO_TAG: "clone", "source-volume": "pvc-1"})
    provider = rig.provider()
    sources = {volume.name: volume.source for volume in provider.list_volumes(0, "", soon()).items}
    assert sources == {
        "copy": ContentSource(SourceKind.SNAPSHOT, at(rig, "csi-snap-snap-1")),
        "clone": ContentSource(SourceKind.VOLUME, at(rig, "csi-vol-pvc-1")),
    }


def test_a_snapshot_of_the_go_driver_is_listed_restored_and_deleted() -> None:
    rig = Rig()
    provider = rig.provider()
    source = create(provider)
    body = {
        "location": "westeurope",
        "sku": {"name": "Standard_LRS"},
        "tags": {GO_TAG: "pvc-1", "caa-csi-snapshot-id": "snap-1"},
        "properties": {"creationData": {"createOption": "Copy"}, "diskSizeGB": 4},
    }
    rig.cloud.add("snapshots", "disks", "csi-snap-snap-1", body)
    (snapshot,) = provider.list_snapshots(source.handle, 0, "", soon()).items
    assert (snapshot.name, snapshot.source_handle, snapshot.ready) == ("snap-1", source.handle, True)
    restored = ContentSource(SourceKind.SNAPSHOT, snapshot.handle)
    assert create(provider, "copy", source=restored).source == restored
    provider.delete_snapshot(snapshot.handle, soon())
    assert not any("snapshots" in one for one in rig.cloud.objects())


def test_names_that_differ_in_case_only_never_meet_in_one_disk() -> None:
    """Field case A7: the Go driver would have used one disk for both, as Azure ignores case."""
    rig = Rig()
    rig.add_disk("csi-vol-PVC-1", {GO_TAG: "PVC-1"})
    provider = rig.provider()
    before = rig.cloud.objects()
    lower = provider.handle_for_name("pvc-1")
    assert not provider.volume_exists(lower, soon())
    provider.delete_volume(lower, soon())
    with pytest.raises(AlreadyExistsError, match="PVC-1"):
        create(provider, "pvc-1")
    assert rig.cloud.objects() == before
    assert provider.get_volume_info(provider.handle_for_name("PVC-1"), soon()).name == "PVC-1"


def test_names_that_the_go_driver_cut_to_one_are_told_apart_by_the_tag() -> None:
    """Field case A7."""
    rig = Rig()
    one, other = "n" * 100 + "1", "n" * 100 + "2"
    rig.add_disk(handles.go_name(handles.VOLUME_PREFIX, one), {GO_TAG: one})
    provider = rig.provider()
    assert provider.volume_exists(provider.handle_for_name(one), soon())
    assert not provider.volume_exists(provider.handle_for_name(other), soon())
    provider.delete_volume(provider.handle_for_name(other), soon())
    made = create(provider, other)
    assert made.name == other
    assert len(rig.cloud.objects()) == 2


def test_a_disk_of_our_name_without_a_tag_is_neither_adopted_nor_deleted() -> None:
    rig = Rig()
    rig.add_disk("csi-vol-pvc-1", {"owner": "somebody"})
    provider = rig.provider()
    handle = provider.handle_for_name("pvc-1")
    for call in (
        lambda: create(provider),
        lambda: provider.delete_volume(handle, soon()),
        lambda: provider.get_volume_info(handle, soon()),
    ):
        with pytest.raises(CorruptStateError, match=GO_TAG):
            call()
    assert provider.list_volumes(0, "", soon()).items == ()
    assert not any(request.changes for request in rig.cloud.requests)


def test_a_disk_of_another_cluster_is_not_adopted() -> None:
    rig = Rig()
    create(rig.provider(cluster_id="blue"))
    with pytest.raises(AlreadyExistsError, match="blue"):
        create(rig.provider(cluster_id="green"))


def test_a_disk_that_no_driver_made_works_by_its_handle() -> None:
    """Field case C10."""
    rig = Rig()
    rig.add_disk("Ledger_1")
    provider = rig.provider()
    handle = at(rig, "Ledger_1")
    volume = provider.get_volume_info(handle, soon())
    assert (volume.name, volume.size_bytes, volume.published_node_id) == ("Ledger_1", 4 * GIB, "")
    provider.set_published_node(handle, "node/a", "", soon())
    assert provider.get_volume_info(handle, soon()).published_node_id == "node/a"
    assert provider.expand_volume(handle, 5 * GIB, soon()) == 5 * GIB
    assert provider.list_volumes(0, "", soon()).items == ()
    provider.delete_volume(handle, soon())
    assert rig.cloud.objects() == []


@pytest.mark.parametrize("group", ["g" * 90, "g" * 60, "g" * 42, "a(b).c_d-e", "Gruppe-\u00e9"])
def test_any_resource_group_fits_in_a_handle(group: str) -> None:
    rig = Rig(ArmCloud(groups={group}), group)
    volume = create(rig.provider(), "pvc-0d9c9a4e-6f1e-4b1e-9f0e-3b8d3d3f3f3f")
    assert len(volume.handle.encode()) <= 100
    assert (group.lower() in volume.handle) is (group.isascii() and len(group) <= 42)
    assert rig.provider().get_volume_info(volume.handle, soon()) == volume
    rig.provider().delete_volume(volume.handle, soon())
    assert rig.cloud.objects() == []


def test_an_id_of_a_place_that_this_controller_does_not_know_is_not_taken_for_gone() -> None:
    """Field case A6."""
    rig = Rig()
    volume = create(rig.provider())
    elsewhere = rig.provider(place=Place(rig.cloud.subscription, "other"))
    for call in (elsewhere.delete_volume, elsewhere.get_volume_info, elsewhere.volume_exists):
        with pytest.raises(UnavailableError, match="MORE_RESOURCE_GROUPS"):
            call(volume.handle, soon())
    assert rig.cloud.objects() != []


def test_a_class_can_name_another_resource_group_of_the_controller() -> None:
    rig = Rig(ArmCloud(groups={"disks", "fast"}))
    more = (Place(rig.cloud.subscription, "fast"),)
    provider = rig.provider(more_places=more)
    parameters = {
        "azureResourceGroup": "FAST",
        "azureSubscriptionId": rig.cloud.subscription.upper(),
    }
    volume = provider.create_volume(asked("pvc-1", 4, parameters), soon())
    assert volume.handle == provider.handle_for_request("pvc-1", parameters)
    assert volume.handle != provider.handle_for_name("pvc-1")
    assert "/resourceGroups/fast/" in volume.disk_id
    create(provider, "pvc-2")
    another = rig.provider(more_places=more)
    assert {one.name for one in another.list_volumes(0, "", soon()).items} == {"pvc-1", "pvc-2"}
    assert another.create_snapshot("snap-1", volume.handle, soon()).source_handle == volume.handle
    # One name, one snapshot: in whichever resource group its source is.
    again = another.create_snapshot("snap-1", provider.handle_for_name("pvc-2"), soon())
    assert again.source_handle == volume.handle


@pytest.mark.parametrize(
    ("zones", "parameters", "zone"),
    [
        ((), {}, ""),
        (("westeurope-2", "westeurope-1"), {}, "2"),
        (("eastus-1", "westeurope-3"), {"azureLocation": "westeurope"}, "3"),
        (("northeurope-1",), {"azureLocation": "North Europe"}, "1"),
        (("0",), {}, ""),  # a machine in no zone has a fault domain's number as its label
        (("westeurope-1",), {"azureDiskSKU": "Premium_ZRS"}, ""),
    ],
)
def test_the_zone_comes_from_the_request(
    zones: tuple[str, ...], parameters: dict[str, str], zone: str
) -> None:
    """Field case G1."""
    rig = Rig()
    volume = rig.provider().create_volume(asked("pvc-1", 4, parameters, zones=zones), soon())
    document = rig.cloud.disk("csi-vol-pvc-1").document
    assert document.get("zones", []) == ([zone] if zone else [])
    assert volume.zones == ((f"{document['location']}-{zone}",) if zone else ())


def test_the_usual_zone_is_the_settings() -> None:
    rig = Rig()
    assert create(rig.provider(zone="2")).zones == ("westeurope-2",)


@pytest.mark.parametrize("zones", [("eastus-1",), ("us-east-1a",)])
def test_zones_that_do_not_fit_are_refused(zones: tuple[str, ...]) -> None:
    """Field case G1."""
    rig = Rig()
    with pytest.raises(InvalidParameterError, match="zone"):
        rig.provider().create_volume(asked(zones=zones), soon())
    assert rig.cloud.objects() == []


def test_without_any_region_nothing_is_made() -> None:
    rig = Rig()
    with pytest.raises(InvalidParameterError, match="azureLocation"):
        create(rig.provider(location=""))


@pytest.mark.parametrize(
    "parameters",
    [
        {"azureDiskSKU": "Premium_LRS"},
        {"azureLocation": "northeurope"},
        {
            "azureDiskEncryptionSetId": "/subscriptions/01234567-89ab-cdef-0123-456789abcdef/resourceGroups"
            "/k/providers/Microsoft.Compute/diskEncryptionSets/s"
        },
    ],
)
def test_an_existing_disk_made_with_other_parameters_is_not_the_one(parameters: dict[str, str]) -> None:
    """Field case A4 (vi)."""
    rig = Rig()
    create(rig.provider())
    with pytest.raises(AlreadyExistsError):
        rig.provider().create_volume(asked("pvc-1", 4, parameters), soon())
    assert len(rig.cloud.objects()) == 1


def test_a_disk_that_a_machine_has_is_not_deleted_whenever_that_is_seen() -> None:
    """Field case A9: on state, and on Azure's refusal when the state came too late."""
    rig = Rig()
    provider = rig.provider()
    volume = create(provider)
    rig.cloud.attach("csi-vol-pvc-1", "podvm-7")
    with pytest.raises(InUseError, match="podvm-7"):
        provider.delete_volume(volume.handle, soon())
    assert not any(request.method == "DELETE" for request in rig.cloud.requests)
    rig.cloud.attach("csi-vol-pvc-1", "")

    def attach_late(request: Request) -> bool:
        if method("DELETE")(request):
            rig.cloud.attach("csi-vol-pvc-1", "podvm-8")
        return False

    rig.cloud.faults.append(Fault(attach_late))
    with pytest.raises(InUseError, match="podvm-8"):
        provider.delete_volume(volume.handle, soon())
    assert rig.cloud.objects() != []


def test_a_disk_that_azure_failed_to_make_is_cleaned_up() -> None:
    """Nothing is left, and quota says so by its class."""
    rig = Rig(ArmCloud(operation_looks=1))
    rig.cloud.failing.append("QuotaExceeded")
    with pytest.raises(QuotaExceededError):
        create(rig.provider())
    assert rig.cloud.objects() == []


def test_quota_that_azure_knows_at_once_is_told() -> None:
    """Field case A11."""
    rig = Rig(ArmCloud(quota_gib=3))
    with pytest.raises(QuotaExceededError):
        create(rig.provider())
    assert rig.cloud.objects() == []


def test_a_zone_without_room_is_left_for_the_next() -> None:
    rig = Rig(ArmCloud(operation_looks=1))
    rig.cloud.failing.append("ZonalAllocationFailed")
    volume = rig.provider().create_volume(asked(zones=("westeurope-1", "westeurope-3")), soon())
    assert volume.zones == ("westeurope-3",)


def test_a_failed_disk_that_was_left_is_repaired_and_keeps_its_data() -> None:
    """Its state says that the last operation failed, not that there is nothing on it."""
    rig = Rig()
    provider = rig.provider()
    volume = create(provider)
    provider.set_published_node(volume.handle, "node/a", "", soon())
    disk = rig.cloud.disk("csi-vol-pvc-1")
    disk.content[0] = 1
    disk.properties["provisioningState"] = "Failed"
    conditions = provider.volume_conditions([volume], soon())
    assert conditions[volume.handle].abnormal
    replayed = create(rig.provider())
    assert replayed.published_node_id == "node/a"
    assert disk.properties["provisioningState"] == "Succeeded"
    assert disk.content == {0: 1}
    assert not rig.cloud.violations


def test_a_disk_that_can_not_be_repaired_is_left_as_it_is() -> None:
    rig = Rig(ArmCloud(operation_looks=1))
    create(rig.provider())
    rig.cloud.disk("csi-vol-pvc-1").properties["provisioningState"] = "Failed"
    rig.cloud.failing.append("InternalDiskManagementError")
    with pytest.raises(OutcomeUnknownError, match="Failed"):
        create(rig.provider())
    assert rig.cloud.objects() == ["disks/disks/csi-vol-pvc-1"]


def test_a_volume_that_is_being_deleted_is_gone_and_its_name_is_free_again() -> None:
    rig = Rig(ArmCloud(operation_looks=6))
    provider = rig.provider()
    volume = create(provider)
    rig.cloud.faults.append(Fault(method("DELETE"), after=Dropped))
    rig.cloud.faults.append(Fault(method("DELETE"), before=Dropped, times=9))
    with pytest.raises(OutcomeUnknownError):
        provider.delete_volume(volume.handle, soon())
    rig.cloud.faults.clear()
    assert provider.list_volumes(0, "", soon()).items == ()
    assert not provider.volume_exists(volume.handle, soon())
    with pytest.raises(VolumeNotFoundError):
        provider.get_volume_info(volume.handle, soon())
    assert create(rig.provider(), gib=9).created_size_bytes == 9 * GIB


def test_new_disks_that_listings_do_not_show_yet_are_found_by_name() -> None:
    rig = Rig(ArmCloud(list_lag=60))
    volume = create(rig.provider())
    assert rig.provider().list_volumes(0, "", soon()).items == ()
    assert create(rig.provider()) == volume
    rig.provider().delete_volume(volume.handle, soon())
    assert rig.cloud.objects() == []


def test_listings_of_many_pages_are_whole() -> None:
    rig = Rig(ArmCloud(page_size=2))
    provider: AzureProvider = rig.provider()
    for number in range(5):
        create(provider, f"pvc-{number}")
    assert len(provider.list_volumes(0, "", soon()).items) == 5
