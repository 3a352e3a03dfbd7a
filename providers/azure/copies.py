"""Taking incremental snapshots, and deleting them."""

from __future__ import annotations

import time

from providers.azure import tags as tag_keys
from providers.azure.failures import Failed, Refused, as_provider_error
from providers.azure.handles import snapshot_name
from providers.azure.places import Place
from providers.azure.records import DELETING, FAILED, DiskRecord, SnapshotRecord
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
    VolumeNotFoundError,
)
from providers.interface import ContentSource, SourceKind


class Snapshots:
    """The snapshots of all resource groups."""

    def __init__(self, snapshots: Resources[SnapshotRecord]) -> None:
        self._snapshots = snapshots

    def existing(self, place: Place, name: str, deadline: Deadline) -> SnapshotRecord | None:
        """The snapshot that an earlier call of that CSI name made there.

        Raises:
            AlreadyExistsError: Azure's name is taken by another one.
        """
        resource = snapshot_name(name)
        record = self._snapshots.look(place, resource, deadline)
        if record is None:
            return None
        if not self._snapshots.is_named(record, resource) or record.facts.name != name:
            raise AlreadyExistsError(f"{record.name} is the snapshot {record.facts.name!r}; use another name")
        record = self._snapshots.settled(record, deadline)
        if record is None or record.provisioning_state == DELETING:
            return None
        if record.provisioning_state == FAILED:
            self.delete(record, deadline)  # never ready, so never handed out
            return None
        return record

    def create(self, name: str, source: DiskRecord, deadline: Deadline) -> SnapshotRecord:
        """Take it; what is copied is the disk as it is now, and the copying can go on in the background."""
        place, resource = source.place, snapshot_name(name)
        arm = self._snapshots.subscriptions.arm(place)
        pauses = arm.pauses()
        while True:
            try:
                arm.put("snapshots", place.group, resource, self._body(name, source), deadline)
                break
            except (Refused, Failed) as error:
                # Another call may have made it; and what a failed operation left is removed.
                made = self.existing(place, name, deadline)
                if made is not None:
                    return made
                if not (isinstance(error, Refused) and error.conflict):
                    raise self._creation_error(resource, source, error) from error
                if not pause(next(pauses), error.retry_after, deadline):
                    raise OutcomeUnknownError(
                        f"{resource} is being changed by another call; call again"
                    ) from error
        record = self._snapshots.wait_until(place, resource, lambda seen: seen.facts.name == name, deadline)
        until = time.monotonic() + self._snapshots.subscriptions.settings.timings.snapshot
        while not record.ready and time.monotonic() < until and pause(next(pauses), None, deadline):
            seen = self._snapshots.look(place, resource, deadline)
            if seen is None:
                raise OutcomeUnknownError(f"{resource} was deleted by another call; call again")
            record = seen
        return record

    def delete(self, record: SnapshotRecord, deadline: Deadline) -> None:
        """Delete the snapshot, whose tags were looked at."""
        arm = self._snapshots.subscriptions.arm(record.place)
        try:
            arm.delete("snapshots", record.place.group, record.name, deadline)
        except (Refused, Failed) as error:
            if error.code == "OperationNotAllowed":
                raise InUseError(
                    f"Azure does not delete {record.name} while it is copied or exported; try again later"
                ) from error
            raise UnavailableError(
                f"deleting {record.name}: Azure answered {error.code}; it is tried again"
            ) from error

    def _creation_error(self, resource: str, source: DiskRecord, error: Refused | Failed) -> ProviderError:
        if isinstance(error, Refused) and error.not_found:
            return VolumeNotFoundError(f"the volume of disk {source.name} is gone")
        return as_provider_error(f"taking the snapshot {resource}", error)

    def _body(self, name: str, source: DiskRecord) -> Json:
        settings = self._snapshots.subscriptions.settings
        facts = source.facts
        tags = {
            **settings.extra_tags,
            **tag_keys.common(name, tag_keys.SNAPSHOT, settings.cluster_id, facts.fs_type, facts.encryption),
            tag_keys.SOURCE: source_text(ContentSource(SourceKind.VOLUME, source.handle)),
            tag_keys.VOLUME: source.tags.get(tag_keys.VOLUME, source.name),
        }
        return {
            "location": source.location,
            "sku": {"name": "Standard_LRS"},
            "tags": tags,
            "properties": {
                "creationData": {"createOption": "Copy", "sourceResourceId": source.resource_id},
                "incremental": True,
                "networkAccessPolicy": "DenyAll",
                "publicNetworkAccess": "Disabled",
            },
        }
