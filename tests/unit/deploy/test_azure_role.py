"""The role definition names what the provider really calls, and nothing more."""

from __future__ import annotations

import json
from pathlib import Path

from providers.interface import ContentSource, SourceKind
from tests.fakes.arm.cloud import ArmCloud
from tests.fakes.arm.rig import GIB, Rig, asked, create, soon

ROLE = Path(__file__).parents[3] / "deploy" / "azure" / "role.json"
SET = (
    "/subscriptions/01234567-89ab-cdef-0123-456789abcdef/resourceGroups/keys/providers/Microsoft.Compute"
    "/diskEncryptionSets/set-1"
)


def test_the_role_allows_just_the_calls_that_are_made() -> None:
    rig = Rig(ArmCloud(operation_looks=1))
    provider = rig.provider()
    volume = create(provider)
    provider.create_volume(asked("sealed", 4, {"azureDiskEncryptionSetId": SET}), soon())
    snapshot = provider.create_snapshot("snap-1", volume.handle, soon())
    create(provider, "restored", source=ContentSource(SourceKind.SNAPSHOT, snapshot.handle))
    create(provider, "clone", source=ContentSource(SourceKind.VOLUME, volume.handle))
    provider.expand_volume(volume.handle, 5 * GIB, soon())
    provider.modify_volume(volume.handle, {"azureDiskSKU": "Premium_LRS"}, soon())
    provider.set_published_node(volume.handle, "node/a", "", soon())
    provider.volume_conditions([volume], soon())
    assert provider.check_backend(soon()) is None
    provider.list_volumes(0, "", soon())
    provider.list_snapshots(None, 0, "", soon())
    provider.delete_snapshot(snapshot.handle, soon())
    provider.delete_volume(volume.handle, soon())

    role = json.loads(ROLE.read_text())
    assert set(role["Actions"]) == rig.cloud.actions
    assert len(role["Actions"]) == len(set(role["Actions"]))
    assert role["NotActions"] == role["DataActions"] == role["NotDataActions"] == []
