"""One volume, as cluster, cloud and node know it, and where they disagree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from cli.inspect.story import Section, Story, Value
from cli.kubernetes_api import Json
from cli.kubernetes_objects import (
    ATTACHMENTS,
    Claimed,
    claimed_volumes,
    name_of,
    pods_with_volumes,
    says_encrypted,
)
from cli.owners import owners_of, volume_ids
from cli.scene import DRIVER, Scene, Skipped, cause
from driver import mountinfo
from driver.direct_volumes import directory_name, read_regular, target_path_of
from driver.encryption import ENCRYPT_TYPE, KBS_KEY_ID
from driver.errors import DriverError
from driver.mountinfo import CLOUD_VOLUME_PATH
from providers.errors import ProviderError, VolumeNotFoundError
from providers.interface import Volume, VolumeHealth, VolumeSnapshotter

Found = TypeVar("Found")


@dataclass
class _Volume:
    """What is known so far of the one volume."""

    claimed: Claimed | None = None
    volume: Volume | None = None
    disk_id: str = ""


def inspect_claim(claim: str, scene: Scene) -> Story:
    """The story of the volume of a PersistentVolumeClaim, ``namespace/name``.

    Raises:
        click.ClickException: there is no such claim, it has no volume of this driver, or the cluster can't be
            asked.
    """
    namespace, _, name = claim.partition("/")
    found = _required(
        lambda: scene.object(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"), "the claim"
    )
    if found is None:
        raise click.ClickException(f"there is no claim {claim}")
    story = Story("volume", claim)
    story.sections.append(Section("claim", "PersistentVolumeClaim", _claim_facts(found)))
    claimed = next(
        (one for one in _required(lambda: claimed_volumes(scene), "volumes") if one.claim == claim), None
    )
    if claimed is None:
        phase = found.get("status", {}).get("phase")
        raise click.ClickException(
            f"the claim {claim} ({phase}) has no volume of this driver; kubectl -n {namespace} describe pvc "
            f"{name}"
        )
    return _tell(story, _Volume(claimed=claimed), scene)


def inspect_volume(volume_id: str, scene: Scene) -> Story:
    """The story of the volume with this id (a PV's ``volumeHandle``), or of the PersistentVolume so named.

    Raises:
        click.ClickException: neither cluster nor cloud can be asked, or neither knows it.
    """
    story = Story("volume", volume_id)
    subject = _Volume()
    claims = _seen(story, lambda: claimed_volumes(scene), "the cluster")
    subject.claimed = next((one for one in claims or () if volume_id in (one.volume_id, one.name)), None)
    if subject.claimed is None:
        _find_in_cloud(story, subject, volume_id, scene)
        if subject.volume is None:
            is_word = not {":", "/"} & set(volume_id)
            hint = f"; a claim is named with its namespace, as default/{volume_id}" if is_word else ""
            why = f" ({'; '.join(story.unseen)})" if story.unseen else ""
            raise click.ClickException(f"no volume {volume_id} is known{hint}{why}")
    return _tell(story, subject, scene)


def inspect_record(directory: Path, scene: Scene) -> Story:
    """The story of the volume of a record, a directory with ``mountInfo.json`` below Kata's root.

    Raises:
        click.ClickException: the record can't be read.
    """
    try:
        info = _record(directory)
    except (mountinfo.Damaged, OSError) as error:
        raise click.ClickException(f"{directory / mountinfo.FILE_NAME}: {error}") from None
    story = Story("volume", str(directory))
    subject = _Volume(disk_id=info.device)
    story.sections.append(Section("record", "mountInfo.json", _record_facts(directory, info)))
    claims = _seen(story, lambda: claimed_volumes(scene), "the cluster") or ()
    subject.claimed = next(
        (one for one in claims if one.attributes.get(CLOUD_VOLUME_PATH) == info.device), None
    )
    volumes = _seen(story, scene.volumes, "the cloud") or ()
    subject.volume = next((one for one in volumes if one.disk_id == info.device), None)
    return _tell(story, subject, scene)


# --- collecting -------------------------------------------------------------------------------------------


def _tell(story: Story, subject: _Volume, scene: Scene) -> Story:
    if subject.claimed is None and subject.volume is not None:
        owners = _seen(story, lambda: owners_of(scene), "the PersistentVolume") or {}
        subject.claimed = owners.get(subject.volume.handle)
    if subject.claimed is not None:
        story.sections.append(
            Section("persistentVolume", "PersistentVolume", _claimed_facts(subject.claimed))
        )
        if subject.volume is None:
            _find_in_cloud(story, subject, subject.claimed.volume_id, scene)
    if subject.volume is not None:
        subject.disk_id = subject.volume.disk_id
        story.sections.append(Section("disk", "Disk in the cloud", _disk_facts(subject.volume)))
        _tell_more_of_the_cloud(story, subject.volume, scene)
    elif subject.claimed is not None:
        subject.disk_id = subject.disk_id or subject.claimed.attributes.get(CLOUD_VOLUME_PATH, "")
    if subject.claimed is not None:
        _tell_use(story, subject.claimed, scene)
    if not any(section.key == "record" for section in story.sections):
        _tell_records(story, subject.disk_id, scene)
    _judge(story, subject)
    return story


def _find_in_cloud(story: Story, subject: _Volume, volume_id: str, scene: Scene) -> None:
    def find() -> Volume | None:
        cloud = scene.require_cloud()
        handle = volume_ids(scene).volume_handle(volume_id)
        if handle is None:
            return None
        try:
            return cloud.provider.get_volume_info(handle, cloud.deadline())
        except VolumeNotFoundError:
            story.alarms.append(f"the cloud has no volume {volume_id}")
            return None

    subject.volume = _seen(story, find, "the cloud")


def _tell_more_of_the_cloud(story: Story, volume: Volume, scene: Scene) -> None:
    cloud = scene.require_cloud()
    provider = cloud.provider
    if isinstance(provider, VolumeHealth):
        conditions = _seen(
            story, lambda: provider.volume_conditions([volume], cloud.deadline()), "the disk's health"
        )
        condition = (conditions or {}).get(volume.handle)
        if condition is not None:
            facts: dict[str, Value] = {"abnormal": condition.abnormal, "message": condition.message}
            story.sections.append(Section("condition", "Health", facts))
            if condition.abnormal:
                story.alarms.append(f"the cloud says of the disk: {condition.message}")
    else:
        story.unseen.append(f"the disk's health: the provider {provider.name!r} can't tell")
    if isinstance(provider, VolumeSnapshotter):
        page = _seen(
            story, lambda: provider.list_snapshots(volume.handle, 0, "", cloud.deadline()), "snapshots"
        )
        if page is not None:
            snapshots = [
                f"{one.name}: {one.handle}, {one.size_bytes} bytes, "
                f"{one.created_at.isoformat(timespec='seconds')}, "
                f"{'ready' if one.ready else 'not ready yet'}"
                for one in page.items
            ]
            story.sections.append(
                Section("snapshots", "Snapshots", {"count": len(snapshots), "snapshots": snapshots})
            )
    else:
        story.unseen.append(f"snapshots: the provider {provider.name!r} has none")


def _tell_use(story: Story, claimed: Claimed, scene: Scene) -> None:
    attachments = _seen(story, lambda: scene.objects(ATTACHMENTS), "VolumeAttachments")
    for one in attachments or ():
        source = one["spec"]["source"].get("persistentVolumeName")
        if one["spec"].get("attacher") == DRIVER and source == claimed.name:
            story.sections.append(Section("attachment", "VolumeAttachment", _attachment_facts(one)))
    pods = _seen(story, lambda: pods_with_volumes(scene), "pods")
    if pods is not None:
        users = [
            f"{name_of(pod)} on {pod['spec'].get('nodeName') or 'no node yet'}, runtimeClassName "
            f"{pod['spec'].get('runtimeClassName') or 'none'}, "
            f"{pod.get('status', {}).get('phase', 'phase unknown')}"
            for pod in pods.get(claimed.claim, ())
        ]
        story.sections.append(Section("pods", "Pods that use it", {"count": len(users), "pods": users}))


def _tell_records(story: Story, disk_id: str, scene: Scene) -> None:
    def find() -> list[Path]:
        root = scene.require_records()
        return [root / directory_name(target) for target in scene.records.find(disk_id)]

    if not disk_id:
        story.unseen.append("records on this node: the disk's id is not known")
        return
    for directory in _seen(story, find, "records on this node") or ():
        try:
            facts = _record_facts(directory, _record(directory))
        except (mountinfo.Damaged, OSError):
            continue  # it is changed or removed just now
        story.sections.append(Section("record", "mountInfo.json on this node", facts))


def _seen(story: Story, look: Callable[[], Found], what: str) -> Found | None:
    """What ``look`` finds; None, and a note in the story, if it can't."""
    try:
        return look()
    except (Skipped, ProviderError, DriverError) as error:
        note = f"{what}: {cause(error)}"
        if note not in story.unseen:
            story.unseen.append(note)
        return None


def _required(look: Callable[[], Found], what: str) -> Found:
    try:
        return look()
    except Skipped as error:
        raise click.ClickException(f"{what} can't be looked at: {error}") from None


def _record(directory: Path) -> mountinfo.MountInfo:
    return mountinfo.decode(read_regular(directory / mountinfo.FILE_NAME))


# --- facts ------------------------------------------------------------------------------------------------


def _claim_facts(claim: Json) -> dict[str, Value]:
    specification, status = claim["spec"], claim.get("status", {})
    return {
        "name": name_of(claim),
        "phase": status.get("phase"),
        "storage class": specification.get("storageClassName"),
        "asked for": specification["resources"]["requests"].get("storage"),
        "has": (status.get("capacity") or {}).get("storage"),
        "volume": specification.get("volumeName"),
    }


def _claimed_facts(claimed: Claimed) -> dict[str, Value]:
    return {
        "name": claimed.name,
        "volume id": claimed.volume_id,
        "claim": claimed.claim or None,
        "phase": claimed.phase,
        "storage class": claimed.class_name,
        **{f"attribute {key}": value for key, value in sorted(claimed.attributes.items())},
    }


def _disk_facts(volume: Volume) -> dict[str, Value]:
    encryption = volume.encryption
    return {
        "disk id": volume.disk_id,
        "handle": volume.handle,
        "name": volume.name,
        "size, bytes": volume.size_bytes,
        "created with, bytes": volume.created_size_bytes,
        "encryption": encryption.encrypt_type if encryption is not None else "none",
        "key": encryption.kbs_key_id if encryption is not None else None,
        "file system": volume.fs_type,
        "copied from": f"{volume.source.kind.value} {volume.source.handle}"
        if volume.source is not None
        else None,
        "zones": list(volume.zones),
        "published to": volume.published_node_id or None,
        "attached to": volume.attached_to or None,
        **dict(sorted(volume.attributes.items())),
    }


def _record_facts(directory: Path, info: mountinfo.MountInfo) -> dict[str, Value]:
    sandboxes = sorted(one.name for one in directory.iterdir() if one.name != mountinfo.FILE_NAME)
    return {
        "directory": str(directory),
        "target path": target_path_of(directory.name),
        "device": info.device,
        "file system": info.fs_type,
        "options": list(info.options),
        **dict(sorted(info.metadata.items())),
        "sandboxes noted": sandboxes,
    }


def _attachment_facts(attachment: Json) -> dict[str, Value]:
    status = attachment.get("status") or {}
    error = status.get("attachError") or status.get("detachError") or {}
    return {
        "name": name_of(attachment),
        "node": attachment["spec"]["nodeName"],
        "attached": bool(status.get("attached")),
        "ends since": attachment["metadata"].get("deletionTimestamp"),
        "error": error.get("message"),
    }


# --- judging ----------------------------------------------------------------------------------------------


def _judge(story: Story, subject: _Volume) -> None:
    sources: dict[str, Mapping[str, Value]] = {}
    if subject.claimed is not None:
        sources["the PersistentVolume"] = subject.claimed.attributes
    if subject.volume is not None:
        encryption = subject.volume.encryption
        sources["the disk's tags"] = (
            {ENCRYPT_TYPE: encryption.encrypt_type, KBS_KEY_ID: encryption.kbs_key_id} if encryption else {}
        )
    for section in story.sections:
        if section.key == "record":
            sources[f"the record {section.facts['directory']}"] = section.facts
    for source, told in sources.items():
        if not says_encrypted(told):
            story.alarms.append(
                f"NOT encrypted, as far as {source} goes: no {ENCRYPT_TYPE} (or none that is heeded) or no "
                f"{KBS_KEY_ID}"
            )
    keys = {str(told[KBS_KEY_ID]) for told in sources.values() if told.get(KBS_KEY_ID)}
    if len(keys) > 1:
        story.alarms.append(f"there are different keys: {', '.join(sorted(keys))}")
    volume = subject.volume
    if volume is not None and volume.attached_to and not _has_pod(story):
        story.remarks.append(
            f"the machine {volume.attached_to} has the disk, and no pod is seen to use the claim"
        )
    if story.alarms:
        story.conclusion = "Not as it should be: see the alarms."
    elif keys:
        story.conclusion = (
            f"To be encrypted in the guest with the key {keys.pop()}. That is what cluster and cloud say; "
            "what is on the disk is proved by 'inspect' of its image or snapshot, and by the guest at each "
            "mount."
        )


def _has_pod(story: Story) -> bool:
    return any(section.key == "pods" and section.facts["count"] for section in story.sections)
