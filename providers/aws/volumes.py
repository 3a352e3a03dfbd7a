"""Creating a volume once, whatever happens, and finding and deleting it."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from providers.aws import tags as tag_keys
from providers.aws.batching import Batcher
from providers.aws.calls import Answer
from providers.aws.disk_types import GIB, DiskType
from providers.aws.failures import NO_SNAPSHOT, NO_VOLUME, USED_BEFORE, NoAnswer, Refused, as_provider_error
from providers.aws.handles import Handle
from providers.aws.records import USABLE, VolumeRecord
from providers.aws.region import Region
from providers.aws.settings import Timings
from providers.deadline import Deadline
from providers.disk_facts import source_text
from providers.errors import (
    AlreadyExistsError,
    DeadlineError,
    InUseError,
    OutcomeUnknownError,
    QuotaExceededError,
    SnapshotNotFoundError,
    UnavailableError,
)
from providers.interface import VolumeRequest
from providers.observation import waiting

_log = logging.getLogger(__name__)

LOOKS = 3
"""At least so many before a volume is taken for gone."""


class Volumes:
    """The volumes of one region."""

    def __init__(self, region: Region) -> None:
        self._region = region

    def find(self, handle: Handle, deadline: Deadline) -> VolumeRecord | None:
        """The volume, or None if EC2 was asked and has none."""
        if handle.object_id:
            return self._region.volumes_by_id.get(handle.object_id, deadline)
        return self.find_by_key(handle.key, deadline)

    def find_by_key(self, key: str, deadline: Deadline) -> VolumeRecord | None:
        """The volume of that name; the oldest, should there be several."""
        found = self._region.volumes_by_key.get(key, deadline)
        if not found:
            return None
        oldest, *others = sorted(found, key=lambda one: (one.created_at, one.volume_id))
        if others:
            _log.warning(
                "several volumes have the name %s: %s is used; look at %s and delete what nothing uses",
                key,
                oldest.volume_id,
                ", ".join(one.volume_id for one in others),
            )
        return oldest

    def create(
        self,
        request: VolumeRequest,
        disk_type: DiskType,
        zones: Sequence[str],
        snapshot_id: str | None,
        deadline: Deadline,
    ) -> VolumeRecord:
        """Make the volume, in the first of ``zones`` that has room; it is usable when this returns.

        EC2 gives one volume to one client token, which is a function of the name; so do two controllers
        that create one name together. A token whose volume was deleted is burned, and the next is used.
        """
        key = tag_keys.volume_key(request.name)
        arguments = self._arguments(request, key, disk_type, snapshot_id)
        for number in count():
            token = client_token(self._region.settings.cluster_id, request.name, number)
            volume_id = self._send({**arguments, "ClientToken": token}, zones, deadline)
            with may_exist("the volume"):
                with waiting("volume-visible"):
                    found = self._wait_until_seen(key, volume_id, deadline)
                if found is None:
                    continue  # burned
                if volume_id is not None and found.volume_id != volume_id:
                    self._drop_duplicate(volume_id, found, deadline)
                return self.wait_until_usable(found, deadline)
        raise AssertionError("unreachable: tokens never end")

    def _send(self, arguments: Mapping[str, object], zones: Sequence[str], deadline: Deadline) -> str | None:
        """The id of the token's volume; None if the token was used for a volume that is different."""
        for zone in zones:
            try:
                answer = self._region.ec2.change(
                    "create_volume", deadline, repeatable=True, AvailabilityZone=zone, **arguments
                )
            except NoAnswer as error:
                raise OutcomeUnknownError(
                    f"CreateVolume: {error}; the volume may exist, call again"
                ) from error
            except Refused as error:
                if error.code == USED_BEFORE:
                    return None
                if error.code == "InsufficientVolumeCapacity" and zone != zones[-1]:
                    continue
                if error.code in NO_SNAPSHOT:
                    raise SnapshotNotFoundError("the snapshot to restore does not exist") from error
                raise as_provider_error("CreateVolume", error) from error
            volume_id: str = answer["VolumeId"]
            return volume_id
        raise QuotaExceededError("no zone has room for the volume")

    def _arguments(
        self, request: VolumeRequest, key: str, disk_type: DiskType, snapshot_id: str | None
    ) -> Answer:
        settings = self._region.settings
        tags = {
            **settings.extra_tags,
            **tag_keys.common(request.name, key, settings.cluster_id, request.fs_type, request.encryption),
            **tag_keys.of_labels(request.labels),
            tag_keys.NAME: tag_keys.VOLUME_PREFIX + key,
            tag_keys.VOLUME_KEY: key,
            tag_keys.CREATED_SIZE: str(request.size_bytes),
            tag_keys.CREATED_AS: str(disk_type),
        }
        if request.source is not None:
            tags[tag_keys.SOURCE] = source_text(request.source)
        arguments: Answer = {
            "Size": request.size_bytes // GIB,
            "VolumeType": disk_type.name,
            "TagSpecifications": [tag_specification("volume", tags)],
        }
        if disk_type.encrypted:
            arguments["Encrypted"] = True
        for name, value in (
            ("Iops", disk_type.iops),
            ("Throughput", disk_type.throughput),
            ("KmsKeyId", disk_type.kms_key),
            ("SnapshotId", snapshot_id),
        ):
            if value is not None:
                arguments[name] = value
        return arguments

    def _wait_until_seen(self, key: str, volume_id: str | None, deadline: Deadline) -> VolumeRecord | None:
        """The volume of the name; None when the token's volume can't be a new one that is not seen yet."""
        until = time.monotonic() + self._region.settings.timings.consistency
        for look in count(1):
            found = self.find_by_key(key, deadline)
            if found is not None:
                return found
            if time.monotonic() >= until and look >= LOOKS:
                _log.info("the client token of %s is used up (its volume %s is gone)", key, volume_id or "")
                return None
        raise AssertionError("unreachable: looks never end")

    def wait_until_usable(self, record: VolumeRecord, deadline: Deadline) -> VolumeRecord:
        """The volume once it is available or in use.

        Raises:
            OutcomeUnknownError: it came to nothing, or is not usable before the deadline.
        """
        found: VolumeRecord | None = record
        with waiting("volume-usable"):
            while found is not None and found.state not in USABLE:
                if found.state == "error":
                    self._delete(record.volume_id, deadline)
                    raise OutcomeUnknownError(
                        "EC2 could not make the volume (its state is error); it is made anew. If awsKmsKeyId "
                        "is set, check that the key is enabled and that the controller's role may use it"
                    )
                found = self._again(record, deadline)
        if found is None:
            raise OutcomeUnknownError("the volume was deleted by another call as it was created; call again")
        return found

    def _again(self, record: VolumeRecord, deadline: Deadline) -> VolumeRecord | None:
        """The volume as it is now, asked for by name if it has one: so all creations share their calls."""
        key = record.tags.get(tag_keys.VOLUME_KEY)
        if not key:
            return self._region.volumes_by_id.get(record.volume_id, deadline)
        found = self._region.volumes_by_key.get(key, deadline) or ()
        return next((one for one in found if one.volume_id == record.volume_id), None)

    def _drop_duplicate(self, volume_id: str, kept: VolumeRecord, deadline: Deadline) -> None:
        # A token lives for a day or so; this volume was made just now, and nobody was told of it.
        duplicate = self._region.volumes_by_id.get(volume_id, deadline)
        if duplicate is not None and not duplicate.attached_to:
            _log.warning("volume %s is deleted: %s has its name already", volume_id, kept.volume_id)
            self._delete(volume_id, deadline)

    def delete(self, handle: Handle, record: VolumeRecord | None, deadline: Deadline) -> None:
        """Delete the volume; ``record`` is what :meth:`find` found."""
        while record is not None and record.state == "creating":
            record = self._region.volumes_by_id.get(
                record.volume_id, deadline
            )  # EC2 refuses until it is made
        if record is not None and record.attached_to:
            raise InUseError(
                f"the instance {record.attached_to} has {record.volume_id}; delete the pod that uses it"
            )
        # Answers lag behind, so a volume that was not seen is not a volume that does not exist.
        # Unless EC2 took its deletion before: the provisioner asks for most deletions twice (it looks at the
        # PersistentVolume as it was before the first), and each call costs a token of the account.
        volume_id = record.volume_id if record is not None else handle.object_id
        if volume_id and (record is not None or not self._region.took_deletion(volume_id)):
            self._delete(volume_id, deadline)

    def _delete(self, volume_id: str, deadline: Deadline) -> None:
        """Delete it, and wait until answers stop showing it: a creation of its name could take it for its
        own otherwise."""
        try:
            self._region.ec2.change("delete_volume", deadline, repeatable=True, VolumeId=volume_id)
        except Refused as error:
            if error.code not in NO_VOLUME:
                raise as_provider_error("DeleteVolume", error) from error
        except NoAnswer as error:
            raise UnavailableError(f"DeleteVolume: {error}; it is tried again") from error
        else:
            self._region.note_deletion(volume_id)
        wait_until_gone(self._region.volumes_by_id, volume_id, self._region.settings.timings, deadline)


def wait_until_gone(batcher: Batcher[Any], key: str, timings: Timings, deadline: Deadline) -> None:
    """Until EC2's answers stop showing what was deleted, but not for longer than they can lag behind."""
    until = time.monotonic() + timings.consistency
    with waiting("deletion-visible"), suppress(UnavailableError, DeadlineError):
        while time.monotonic() < until and batcher.get(key, deadline) is not None:
            pass  # the questions pace themselves


def check_created_as(record: VolumeRecord, disk_type: DiskType, zone: str) -> None:
    """Refuse an existing volume that was made with other parameters.

    Raises:
        AlreadyExistsError: it was.
    """
    created_as = record.facts.created_as
    # The Go driver wrote no such tag, and took EC2's defaults for what was not given.
    differs = record.volume_type != disk_type.name if created_as is None else created_as != str(disk_type)
    if differs:
        raise AlreadyExistsError(
            f"the volume exists as {created_as or record.volume_type!r}, not {str(disk_type)!r}"
        )
    if zone and zone != record.zone:
        raise AlreadyExistsError(f"the volume exists in {record.zone}, not in {zone}; use another name")


@contextmanager
def may_exist(what: str) -> Iterator[None]:
    """Around questions asked after a creation was sent: that they fail says nothing about ``what``.

    Raises:
        OutcomeUnknownError: in place of UnavailableError.
    """
    try:
        yield
    except UnavailableError as error:
        raise OutcomeUnknownError(f"{error}; {what} may exist, call again") from error


def client_token(cluster_id: str, name: str, number: int) -> str:
    """The token of the ``number``-th volume of that name: 64 characters, a function of its arguments."""
    text = f"{cluster_id}\n{number}\n{name}"
    return hashlib.sha256(text.encode()).hexdigest()


def tag_specification(kind: str, tags: Mapping[str, str]) -> Answer:
    """``tags`` as CreateVolume and CreateSnapshot take them; in one order, as tokens compare them."""
    return {
        "ResourceType": kind,
        "Tags": [{"Key": key, "Value": value} for key, value in sorted(tags.items())],
    }
