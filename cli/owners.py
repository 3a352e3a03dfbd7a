"""Which PersistentVolume a disk belongs to, by any of the ids under which it can be known."""

from __future__ import annotations

from collections.abc import Mapping

from cli.kubernetes_objects import Claimed, claimed_volumes
from cli.scene import Scene
from driver.volume_id import Ids
from providers.registry import installed_providers


def volume_ids(scene: Scene) -> Ids:
    """The ids of this cloud's volumes.

    Raises:
        Skipped: there is no cloud.
    """
    return Ids(scene.require_cloud().provider, installed_providers())


def owners_of(scene: Scene) -> Mapping[str, Claimed]:
    """The PersistentVolume of each listed volume, by the volume's handle.

    Raises:
        Skipped: cluster or cloud can't be asked.
    """
    ids = volume_ids(scene)
    claimed = claimed_volumes(scene)
    by_id = {one.volume_id: one for one in claimed}
    found: dict[str, Claimed] = {}
    for volume in scene.volumes():
        by_name = scene.require_cloud().provider.handle_for_name(volume.name)
        for volume_id in (ids.format(volume.handle), volume.older_id, ids.format(by_name)):
            if volume_id in by_id:
                found[volume.handle] = by_id[volume_id]
    return found
