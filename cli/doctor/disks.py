"""Cluster against cloud: disks without PersistentVolume, the other way around, closed fences."""

from __future__ import annotations

from collections.abc import Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Final

from cli.doctor.model import Finding, fail, ok, warn
from cli.kubernetes_api import Json, NoAnswer
from cli.kubernetes_objects import ATTACHMENTS, CLAIMS, Claimed, claimed_volumes, pods_with_volumes
from cli.owners import owners_of, volume_ids
from cli.scene import DRIVER, Scene, Skipped, cause
from driver.errors import DriverError
from providers.errors import ProviderError, VolumeNotFoundError
from providers.interface import Volume, VolumeFence

_QUESTIONS: Final = 16
"""To the cloud at a time."""
_SHOWN: Final = 50
"""Disks without an owner that are told one by one: those of other clusters in the account are among them."""
DETACHING_SECONDS: Final = 180.0
"""For which a VolumeAttachment may wait for its PodVM to end before somebody should look."""


def without_volume(scene: Scene) -> Iterable[Finding]:
    """Each PersistentVolume of this driver has its disk."""
    listed = {volume.handle for volume in scene.volumes()}
    claimed = claimed_volumes(scene)
    # One that is not listed is asked for, which takes time: it might just be new.
    with ThreadPoolExecutor(_QUESTIONS) as pool:
        answers = list(pool.map(lambda one: _is_there(scene, one, listed), claimed))
    found: list[Finding] = []
    for one, answer in zip(claimed, answers, strict=True):
        if isinstance(answer, str):
            found.append(Finding.skipped(f"PersistentVolume {one.name}: {answer}"))
        elif not answer:
            found.append(
                fail(
                    f"PersistentVolume {one.name} (claim {one.claim or 'none'}) has no disk: the cloud "
                    f"knows no {one.volume_id}",
                    "if the disk was deleted on purpose, delete claim and PersistentVolume; else restore a "
                    "snapshot; check also that region, subscription or pool of this controller are those "
                    "of the volume",
                )
            )
    return found or [ok(f"{len(claimed)} PersistentVolume(s), each with its disk")]


def _is_there(scene: Scene, one: Claimed, listed: Container[str]) -> bool | str:
    """Whether the cloud has the disk; why that can't be told, else."""
    cloud = scene.require_cloud()
    try:
        handle = volume_ids(scene).volume_handle(one.volume_id)
        if handle is not None and handle not in listed:
            cloud.provider.get_volume_info(handle, cloud.deadline())
    except VolumeNotFoundError:
        return False
    except (DriverError, ProviderError) as error:
        return cause(error)
    return handle is not None


def without_claim(scene: Scene) -> Iterable[Finding]:
    """Each disk of this driver has its PersistentVolume."""
    # First the disks: a PersistentVolume made since is then seen, too.
    volumes = scene.volumes()
    owners = owners_of(scene)
    # The provisioner names a volume after the uid of its claim.
    waiting = {
        f"pvc-{claim['metadata']['uid']}"
        for claim in scene.objects(CLAIMS)
        if claim.get("status", {}).get("phase") == "Pending"
    }
    ownerless = [one for one in volumes if one.handle not in owners and one.name not in waiting]
    found = [
        warn(
            f"the disk {volume.disk_id} (volume {volume.name}, {volume.size_bytes} bytes) has no "
            "PersistentVolume in this cluster",
            "if no other cluster uses the account and nobody needs the data, delete the disk in the cloud; "
            "else import it with a PersistentVolume of its own",
        )
        for volume in ownerless[:_SHOWN]
    ]
    if len(ownerless) > _SHOWN:
        found.append(
            warn(
                f"{len(ownerless) - _SHOWN} more disks have no PersistentVolume in this cluster", "see above"
            )
        )
    return found or [ok(f"{len(volumes)} disk(s), each with its PersistentVolume")]


def fence(scene: Scene) -> Iterable[Finding]:
    """No machine has a disk that no pod uses any more, and so keeps it from other nodes."""
    provider = scene.require_cloud().provider
    if not isinstance(provider, VolumeFence):
        raise Skipped(f"the provider {provider.name!r} has no fence")
    volumes, owners = scene.volumes(), owners_of(scene)
    in_use = pods_with_volumes(scene)
    attachments = {
        one["spec"]["source"].get("persistentVolumeName"): one
        for one in scene.objects(ATTACHMENTS)
        if one["spec"].get("attacher") == DRIVER
    }
    now = _api_time(scene)
    found: list[Finding] = []
    for volume in volumes:
        owner = owners.get(volume.handle)
        if not volume.attached_to or (owner is not None and in_use.get(owner.claim)):
            continue
        attachment = attachments.get(owner.name) if owner is not None else None
        if attachment is not None and not _is_stuck(attachment, now):
            continue  # a pod just ended, or starts
        found.append(_orphan(volume, owner))
    held = sum(bool(volume.attached_to) for volume in volumes)
    return found or [ok(f"{held} disk(s) attached, each to the machine of a pod that is there")]


def _api_time(scene: Scene) -> float:
    """The API server's clock, by which it dates objects; this machine's may be wrong."""
    try:
        answer = scene.require_cluster().get("/version")
    except NoAnswer as error:
        raise Skipped(str(error)) from None
    return scene.now() if answer is None or answer.sent_at is None else answer.sent_at.timestamp()


def _orphan(volume: Volume, owner: Claimed | None) -> Finding:
    claim = f"claim {owner.claim or 'none'}" if owner is not None else "no claim"
    noted = f", published to {volume.published_node_id}" if volume.published_node_id else ""
    return fail(
        f"the machine {volume.attached_to} still has the disk {volume.disk_id} of volume {volume.name} "
        f"({claim}{noted}), and no pod uses it: the fence stays closed, and no other node gets the volume",
        f"if {volume.attached_to} is the PodVM of a pod that is gone, delete that machine in the cloud; the "
        "volume is free then",
    )


def _is_stuck(attachment: Json, now: float) -> bool:
    """Whether a VolumeAttachment has been waiting to end for too long."""
    since = attachment["metadata"].get("deletionTimestamp")
    return bool(since) and now - datetime.fromisoformat(since).timestamp() > DETACHING_SECONDS
