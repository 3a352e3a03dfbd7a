"""Parameters about the disk itself, and the limits of each SKU."""

from __future__ import annotations

import pytest

from providers.azure.disk_types import GIB, SKUS, DiskType
from providers.errors import InvalidParameterError, SizeOutOfRangeError
from tests.fakes.arm.rig import Rig, asked, soon

SET = (
    "/subscriptions/01234567-89ab-cdef-0123-456789abcdef/resourceGroups/keys/providers/Microsoft.Compute"
    "/diskEncryptionSets/set-1"
)


def test_both_spellings_of_the_sku_are_taken() -> None:
    assert DiskType.parse({"azureDiskSKU": "Premium_LRS"}) == DiskType.parse({"azureDiskSku": "Premium_LRS"})
    assert DiskType.parse({}).created_as() == "StandardSSD_LRS"


@pytest.mark.parametrize(
    "parameters",
    [
        {"azureDiskSKU": "premium_lrs"},
        {"azureDiskSKU": ""},
        {"azureDiskSKU": "Premium_LRS", "azureDiskSku": "Standard_LRS"},
        {"azureDiskSKU": "Premium_LRS", "azureDiskIops": "5000"},
        {"azureDiskSKU": "StandardSSD_ZRS", "azureDiskMbps": "200"},
        {"azureDiskSKU": "PremiumV2_LRS", "azureDiskIops": "2999"},
        {"azureDiskSKU": "PremiumV2_LRS", "azureDiskMbps": "124"},
        {"azureDiskSKU": "PremiumV2_LRS", "azureDiskIops": "3000", "azureDiskMbps": "751"},
        {"azureDiskSKU": "UltraSSD_LRS", "azureDiskIops": "400001"},
        {"azureDiskSKU": "UltraSSD_LRS", "azureDiskIops": "0"},
        {"azureDiskSKU": "UltraSSD_LRS", "azureDiskIops": "1e3"},
        {"azureDiskSKU": "UltraSSD_LRS", "azureDiskMbps": "-1"},
        {"azureDiskEncryptionSetId": "set-1"},
        {"azureDiskEncryptionSetId": SET.replace("diskEncryptionSets", "disks")},
        {"azureDiskEncryptionSetId": SET + "\n"},
        {"azureDiskIops": "5000"},  # the usual SKU takes none
        {"azureNoSuch": "x"},
        {"azureResourceGroup": "elsewhere"},
        {"azureSubscriptionId": "76543210-89ab-cdef-0123-456789abcdef"},
    ],
)
def test_values_that_can_not_work_are_refused_without_a_call(parameters: dict[str, str]) -> None:
    rig = Rig()
    with pytest.raises(InvalidParameterError):
        rig.provider().validate_parameters(parameters)
    assert rig.cloud.requests == []


@pytest.mark.parametrize(
    ("sku", "gib", "iops"),
    [("PremiumV2_LRS", 10, 5001), ("UltraSSD_LRS", 4, 4001)],
)
def test_iops_that_the_size_does_not_allow_are_refused_before_the_call(sku: str, gib: int, iops: int) -> None:
    rig = Rig()
    parameters = {"azureDiskSKU": sku, "azureDiskIops": str(iops)}
    with pytest.raises(InvalidParameterError, match="azureDiskIops"):
        rig.provider().create_volume(asked("pvc-1", gib, parameters, zones=("westeurope-1",)), soon())
    assert rig.cloud.objects() == []


@pytest.mark.parametrize(("sku", "gib"), [("Premium_LRS", 32768), ("UltraSSD_LRS", 3)])
def test_sizes_that_the_sku_does_not_have_are_refused(sku: str, gib: int) -> None:
    """Field case A5."""
    rig = Rig()
    with pytest.raises(SizeOutOfRangeError, match=sku):
        rig.provider().create_volume(asked("pvc-1", gib, {"azureDiskSKU": sku}), soon())
    assert rig.cloud.objects() == []


def test_limits_of_sizes_follow_the_sku() -> None:
    """Field case A5."""
    provider = Rig().provider()
    assert provider.size_limits({"azureDiskSKU": "UltraSSD_LRS"}) == (4 * GIB, 65536 * GIB)
    assert provider.size_limits({"azureDiskSKU": "Premium_LRS"}) == (GIB, 32767 * GIB)
    assert provider.size_limits({"azureLocation": "westeurope"}) == (GIB, 32767 * GIB)
    assert set(SKUS) >= {"StandardSSD_LRS", "PremiumV2_LRS"}


def test_the_disk_is_what_the_class_says() -> None:
    rig = Rig()
    parameters = {
        "azureDiskSKU": "PremiumV2_LRS",
        "azureDiskIops": "4000",
        "azureDiskMbps": "250",
        "azureDiskEncryptionSetId": SET,
        "azureLocation": "North Europe",
    }
    volume = rig.provider().create_volume(asked("pvc-1", 16, parameters, zones=("northeurope-3",)), soon())
    document = rig.cloud.disk("csi-vol-pvc-1").document
    assert document["location"] == "northeurope"
    assert document["zones"] == ["3"]
    assert document["sku"] == {"name": "PremiumV2_LRS"}
    properties = document["properties"]
    assert (properties["diskIOPSReadWrite"], properties["diskMBpsReadWrite"]) == (4000, 250)
    assert properties["encryption"] == {
        "type": "EncryptionAtRestWithCustomerKey",
        "diskEncryptionSetId": SET,
    }
    assert (properties["networkAccessPolicy"], properties["publicNetworkAccess"]) == ("DenyAll", "Disabled")
    assert volume.zones == ("northeurope-3",)
