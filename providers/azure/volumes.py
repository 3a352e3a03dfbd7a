"""Creating a disk once, whatever happens, and deleting and changing it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from providers.azure import tags as tag_keys
from providers.azure.calls import Arm
from providers.azure.disk_types import DEFAULT_SKU, GIB, SKUS, DiskType
from providers.azure.failures import Failed, Refused, as_provider_error, is_quota
from providers.azure.handles import volume_name
from providers.azure.places import Place
from providers.azure.records import DELETING, FAILED, DiskRecord
from providers.azure.resources import Resources
from providers.azure.sending import Json, pause
from providers.deadline import Deadline
from providers.disk_facts import source_text
from providers.errors import (
    AlreadyExistsError,
    InUseError,
    OutcomeUnknownError,
    ProviderError,
    UnavailableError,
)
from providers.interface import VolumeRequest

_log = logging.getLogger(__name__)


class Volumes:
    """The disks of all resource groups."""

    def __init__(self, disks: Resources[DiskRecord]) -> None:
        self._disks = disks

    def existing(self, place: Place, request: VolumeRequest, deadline: Deadline) -> DiskRecord | None:
        """The disk that an earlier call of that name made, once nothing is being done to it.

        Raises:
            AlreadyExistsError: Azure's name is taken by a disk that is not this volume's.
        """
        name = volume_name(request.name)
        record = self._disks.look(place, name, deadline)
        if record is None:
            return self._disks.find(place, name, deadline)  # perhaps the Go driver's, under another name
        if not self._disks.is_named(record, name) or record.facts.name != request.name:
            raise AlreadyExistsError(
                f"the disk {record.name} belongs to volume {record.facts.name!r}; use another name"
            )
        cluster_id = self._disks.subscriptions.settings.cluster_id
        if record.facts.cluster_id not in ("", cluster_id):
            raise AlreadyExistsError(
                f"the disk {record.name} belongs to cluster {record.facts.cluster_id!r}; use another name"
            )
        record = self._disks.settled(record, deadline)
        return None if record is None or record.provisioning_state == DELETING else record

    def create(
        self,
        place: Place,
        request: VolumeRequest,
        disk_type: DiskType,
        *,
        location: str,
        zones: Sequence[str],
        source_id: str,
        deadline: Deadline,
    ) -> DiskRecord:
        """Make the disk, in the first of ``zones`` (numbers; empty: in none) that has room.

        A PUT by name makes one disk however often it is sent, and by whomever.

        Args:
            source_id: ARM id of the disk or snapshot to copy; empty for a blank disk.
        """
        name = volume_name(request.name)
        body = self._body(request, disk_type, location, source_id)
        left = list(zones)
        pauses = self._arm(place).pauses()
        while True:
            try:
                self._put(place, name, {**body, "zones": left[:1]} if left else body, deadline)
                break
            except (Refused, Failed) as error:
                existing = self._left_by(place, name, request, error, deadline)
                if existing is not None:
                    return existing
                if is_quota(error.code) and len(left) > 1:
                    del left[0]
                elif not (isinstance(error, Refused) and error.conflict):
                    raise as_provider_error(f"creating the disk {name}", error) from error
                elif not pause(next(pauses), error.retry_after, deadline):
                    raise OutcomeUnknownError(
                        f"{name} is being changed by another call; call again"
                    ) from error
        return self._disks.wait_until(place, name, lambda record: record.facts.name == request.name, deadline)

    def repair(self, record: DiskRecord, deadline: Deadline) -> DiskRecord:
        """The disk, whose last operation failed, after Azure was asked once more for what it already is.

        Data on it, if there are any, are kept: a PUT never makes an existing disk anew.
        """
        document = self._arm(record.place).get("disks", record.place.group, record.name, deadline)
        if document is None:
            raise OutcomeUnknownError(f"{record.name} was deleted by another call; call again")
        properties = document["properties"]
        body = _only(document, "location", "zones", "tags")
        body["sku"] = {"name": record.sku}
        body["properties"] = {
            "creationData": _only(properties["creationData"], "createOption", "sourceResourceId"),
            "networkAccessPolicy": "DenyAll",
            "publicNetworkAccess": "Disabled",
            **_only(properties, "diskSizeGB"),
        }
        if record.encryption_set:
            body["properties"]["encryption"] = _only(properties["encryption"], "type", "diskEncryptionSetId")
        if record.sku in SKUS and SKUS[record.sku].iops is not None:
            body["properties"] |= _only(properties, "diskIOPSReadWrite", "diskMBpsReadWrite")
        try:
            self._put(record.place, record.name, body, deadline)
        except (Refused, Failed) as error:
            raise OutcomeUnknownError(
                f"the disk {record.name} is in the state {FAILED}, and Azure does not repair it "
                f"({error.code}); look at it in Azure"
            ) from error
        return self._disks.wait_until(
            record.place, record.name, lambda seen: seen.provisioning_state != FAILED, deadline
        )

    def delete(self, record: DiskRecord, deadline: Deadline) -> None:
        """Delete the disk, whose tags were looked at."""
        if record.attached_to:
            raise _in_use(record)
        try:
            self._arm(record.place).delete("disks", record.place.group, record.name, deadline)
        except (Refused, Failed) as error:
            now = self._disks.look(record.place, record.name, deadline)
            if now is None:
                return
            if now.attached_to:
                raise _in_use(now) from error
            raise UnavailableError(
                f"deleting {record.name}: Azure answered {error.code}; it is tried again"
            ) from error

    def change(self, record: DiskRecord, action: str, body: Json, deadline: Deadline) -> DiskRecord | None:
        """Change the disk; None if Azure refuses and the disk is gone.

        Raises:
            InUseError: it can't be changed so while a machine has it.
        """
        try:
            self._arm(record.place).patch("disks", record.place.group, record.name, body, deadline)
        except (Refused, Failed) as error:
            now = self._disks.look(record.place, record.name, deadline)
            if now is None:
                return None
            if _has(now, body):
                return now
            if error.code == "OperationNotAllowed" and now.attached_to:
                raise InUseError(
                    f"{action} {record.name}: Azure does not allow it while the machine {now.attached_to!r} "
                    "has the disk; delete the pod that uses it, and try again"
                ) from error
            raise as_provider_error(f"{action} {record.name}", error) from error
        return self._disks.wait_until(record.place, record.name, lambda seen: _has(seen, body), deadline)

    def _put(self, place: Place, name: str, body: Json, deadline: Deadline) -> None:
        self._arm(place).put("disks", place.group, name, body, deadline)

    def _arm(self, place: Place) -> Arm:
        return self._disks.subscriptions.arm(place)

    def _body(self, request: VolumeRequest, disk_type: DiskType, location: str, source_id: str) -> Json:
        settings = self._disks.subscriptions.settings
        properties: Json = {
            "creationData": {"createOption": "Copy", "sourceResourceId": source_id}
            if source_id
            else {"createOption": "Empty"},
            "diskSizeGB": request.size_bytes // GIB,
            "networkAccessPolicy": "DenyAll",
            "publicNetworkAccess": "Disabled",
        }
        if disk_type.iops is not None:
            properties["diskIOPSReadWrite"] = disk_type.iops
        if disk_type.mbps is not None:
            properties["diskMBpsReadWrite"] = disk_type.mbps
        if disk_type.encryption_set is not None:
            properties["encryption"] = {
                "type": "EncryptionAtRestWithCustomerKey",
                "diskEncryptionSetId": disk_type.encryption_set,
            }
        tags = {
            **settings.extra_tags,
            **tag_keys.of_labels(request.labels),
            **tag_keys.common(
                request.name, tag_keys.VOLUME, settings.cluster_id, request.fs_type, request.encryption
            ),
            tag_keys.CREATED_SIZE: str(request.size_bytes),
            tag_keys.CREATED_AS: disk_type.created_as(),
        }
        if request.source is not None:
            tags[tag_keys.SOURCE] = source_text(request.source)
        return {
            "location": location,
            "sku": {"name": disk_type.sku or DEFAULT_SKU},
            "tags": tags,
            "properties": properties,
        }

    def _left_by(
        self,
        place: Place,
        name: str,
        request: VolumeRequest,
        error: Refused | Failed,
        deadline: Deadline,
    ) -> DiskRecord | None:
        """The disk that there is in spite of the error, made by another call; one that failed is removed."""
        try:
            record = self._disks.settled(self._disks.look(place, name, deadline), deadline)
            if record is None or record.facts.name != request.name:
                return None
            if record.provisioning_state != FAILED:
                return record
            # Made by the call that failed just now: nobody was told of it, and nothing can have used it.
            if isinstance(error, Failed) and not record.attached_to and not record.facts.node_id:
                self.delete(record, deadline)
        except ProviderError as second:
            raise OutcomeUnknownError(
                f"creating {name} failed ({error.code}), and what it left is not known; call again"
            ) from second
        return None


def _only(document: Json, *keys: str) -> Json:
    return {key: document[key] for key in keys if document.get(key)}


def check_created_as(record: DiskRecord, disk_type: DiskType, location: str) -> None:
    """Refuse an existing disk that was made with other parameters; ``location`` is empty if none was given.

    Raises:
        AlreadyExistsError: it was.
    """
    created_as = record.facts.created_as
    # The Go driver wrote no such tag.
    wanted = disk_type.created_as() if created_as is not None else disk_type.sku or record.sku
    if wanted != (record.sku if created_as is None else created_as):
        raise AlreadyExistsError(
            f"the volume exists as {created_as or record.sku!r}, not {wanted!r}; use another name"
        )
    encryption_set = disk_type.encryption_set or ""
    if created_as is not None and encryption_set.lower() != record.encryption_set.lower():
        raise AlreadyExistsError("the volume exists with another disk encryption set; use another name")
    if location and location != record.location:
        raise AlreadyExistsError(
            f"the volume exists in {record.location}, not in {location}; use another name"
        )


def _has(record: DiskRecord, body: Json) -> bool:
    """Whether the disk is what the change asked for."""
    properties = body.get("properties", {})
    return bool(
        record.size_gib >= properties.get("diskSizeGB", 0)
        and record.iops == properties.get("diskIOPSReadWrite", record.iops)
        and record.mbps == properties.get("diskMBpsReadWrite", record.mbps)
        and record.sku == body.get("sku", {}).get("name", record.sku)
        and record.tags == body.get("tags", record.tags)
    )


def _in_use(record: DiskRecord) -> InUseError:
    return InUseError(
        f"the virtual machine {record.attached_to!r} has the disk {record.name}; delete the pod that uses it"
    )
