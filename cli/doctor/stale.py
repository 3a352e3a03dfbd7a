"""Records whose pods are gone, and what proves that nobody needs one any more."""

from __future__ import annotations

from collections.abc import Iterable

from cli.doctor.model import Finding, fail, ok
from cli.doctor.records import Record, records
from cli.scene import Scene, Skipped
from providers.errors import ProviderError
from providers.interface import VolumeFence


def stale_records(scene: Scene) -> Iterable[Finding]:
    """Each record belongs to a pod that kubelet still has."""
    found = []
    for record in records(scene):
        why = record.why_stale(scene.paths)
        if why is None:
            continue
        proof = why_unused(scene, record)
        found.append(
            fail(
                f"{record.name} is stale: {why}" + (f", and {proof}" if proof else ""),
                "it moves the disks of every later pod on this node: "
                + (
                    "remove it with --fix"
                    if proof
                    else "make sure that its PodVM is gone (in the cloud, or with --provider here), then "
                    f"remove {record.directory}"
                ),
            )
        )
    return found or [ok(f"{len(records(scene))} record(s), each with the directory of its pod")]


def why_unused(scene: Scene, record: Record) -> str | None:
    """Why certainly no PodVM has the record's disk; None if one may, although its pod is gone.

    Only the cloud can tell: times of files on this node can't, since a clock may have been set back. On
    libvirt, to remove a record takes the disk from its machine, which may be writing.
    """
    device, cloud = record.device(), scene.cloud
    if device is None or isinstance(cloud, str) or not isinstance(cloud.provider, VolumeFence):
        return None
    try:
        volume = next((one for one in scene.volumes() if one.disk_id == device), None)
        # Asked now, not read from the listing: something is removed by what it says.
        if volume is None or cloud.provider.get_volume_info(volume.handle, cloud.deadline()).attached_to:
            return None
    except (Skipped, ProviderError):
        return None
    return f"the cloud says that no machine has {device}"
