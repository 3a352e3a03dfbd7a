"""Taking a snapshot once, though EC2 has no client token for it, and the temporary ones that clones are made
from."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from itertools import count

from providers.aws import tags as tag_keys
from providers.aws.batching import Batcher
from providers.aws.failures import NO_SNAPSHOT, NO_VOLUME, NoAnswer, Refused, as_provider_error
from providers.aws.records import SnapshotRecord, VolumeRecord
from providers.aws.region import Region
from providers.aws.volumes import LOOKS, may_exist, tag_specification, wait_until_gone
from providers.deadline import Deadline
from providers.errors import OutcomeUnknownError, UnavailableError, VolumeNotFoundError
from providers.observation import waiting

_log = logging.getLogger(__name__)

COMPLETED = "completed"
_FAILED = frozenset({"error", "recoverable", "recovering"})

ByKey = Batcher[tuple[SnapshotRecord, ...]]


class Snapshots:
    """The snapshots of one region."""

    def __init__(self, region: Region) -> None:
        self._region = region

    def find(self, name: str, deadline: Deadline) -> SnapshotRecord | None:
        """The snapshot of that CSI name."""
        return self._oldest(self._region.snapshots_by_key, tag_keys.snapshot_key(name), deadline)

    def take(self, name: str, source: VolumeRecord, deadline: Deadline) -> SnapshotRecord:
        """Take the snapshot; it is waited for a moment only, as one of much data takes long."""
        facts = source.facts
        key = tag_keys.snapshot_key(name)
        tags = {
            **tag_keys.common(name, key, self._region.settings.cluster_id, facts.fs_type, facts.encryption),
            tag_keys.NAME: tag_keys.SNAPSHOT_PREFIX + key,
            tag_keys.SNAPSHOT_KEY: key,
        }
        if facts.key:
            tags[tag_keys.VOLUME_KEY] = facts.key
        record = self._take(self._region.snapshots_by_key, key, source, tags, deadline)
        until = time.monotonic() + self._region.settings.timings.snapshot
        while record.state != COMPLETED and time.monotonic() < until:
            record = self._again(record, deadline)
        return record

    def temporary(self, volume_key: str, source: VolumeRecord, deadline: Deadline) -> SnapshotRecord:
        """A completed snapshot of ``source`` for the clone with that key.

        A long one outlasts many calls; each replay finds it and goes on waiting.
        """
        found = self._oldest(self._region.temporary_by_key, volume_key, deadline)
        if found is None or found.volume_id != source.volume_id:
            settings = self._region.settings
            tags = {
                **tag_keys.common(volume_key, volume_key, settings.cluster_id, source.facts.fs_type, None),
                tag_keys.NAME: f"csi-clone-{volume_key}",
                tag_keys.TEMPORARY_KEY: volume_key,
            }
            found = self._take(self._region.temporary_by_key, volume_key, source, tags, deadline)
        with may_exist("the temporary snapshot"):
            return self.wait_until_completed(found, deadline)

    def drop_temporary(self, volume_key: str, deadline: Deadline) -> None:
        """Delete what a clone with that key left behind."""
        for record in self._region.temporary_by_key.get(volume_key, deadline) or ():
            self._delete(record.snapshot_id, deadline)

    def wait_until_completed(self, record: SnapshotRecord, deadline: Deadline) -> SnapshotRecord:
        """The snapshot once a volume can be made from it.

        Raises:
            UnavailableError: it failed; nothing can be made from it.
        """
        with waiting("snapshot-complete"):
            while record.state != COMPLETED:
                if record.state in _FAILED:
                    raise UnavailableError(
                        f"snapshot {record.snapshot_id} is in state {record.state}; delete it and take "
                        "another"
                    )
                record = self._again(record, deadline)
        return record

    def delete(self, snapshot_id: str, deadline: Deadline) -> None:
        """Delete the snapshot, and any other of its name that two controllers may have taken at once."""
        record = self._region.snapshots_by_id.get(snapshot_id, deadline)
        key = record.tags.get(tag_keys.SNAPSHOT_KEY) if record is not None else None
        if record is not None and key and self._region.is_ours(record):
            for one in self._region.snapshots_by_key.get(key, deadline) or ():
                if one.volume_id == record.volume_id and one.snapshot_id != snapshot_id:
                    self._delete(one.snapshot_id, deadline)
        self._delete(snapshot_id, deadline)

    def _delete(self, snapshot_id: str, deadline: Deadline) -> None:
        try:
            self._region.ec2.change("delete_snapshot", deadline, repeatable=True, SnapshotId=snapshot_id)
        except Refused as error:
            if error.code not in NO_SNAPSHOT:
                raise as_provider_error("DeleteSnapshot", error) from error
        except NoAnswer as error:
            raise UnavailableError(f"DeleteSnapshot: {error}; it is tried again") from error
        wait_until_gone(self._region.snapshots_by_id, snapshot_id, self._region.settings.timings, deadline)

    def _take(
        self, found_by: ByKey, key: str, source: VolumeRecord, tags: Mapping[str, str], deadline: Deadline
    ) -> SnapshotRecord:
        """Take a snapshot that ``found_by`` does not know yet; the one that is left, should another
        controller take one of that name at the same time."""
        arguments = {
            "VolumeId": source.volume_id,
            "TagSpecifications": [
                tag_specification("snapshot", {**self._region.settings.extra_tags, **tags})
            ],
        }
        made = ""
        try:
            answer = self._region.ec2.change("create_snapshot", deadline, repeatable=False, **arguments)
            made = answer["SnapshotId"]
        except NoAnswer:
            _log.info("CreateSnapshot was not answered; looking whether it was done")
        except Refused as error:
            if error.code in NO_VOLUME:
                raise VolumeNotFoundError("the volume to take a snapshot of does not exist") from error
            raise as_provider_error("CreateSnapshot", error) from error
        with may_exist("the snapshot"):
            return self._settled(found_by, key, made, deadline)

    def _settled(self, found_by: ByKey, key: str, made: str, deadline: Deadline) -> SnapshotRecord:
        until = time.monotonic() + self._region.settings.timings.consistency
        for look in count(1):
            found = found_by.get(key, deadline) or ()
            if found and (not made or made in {one.snapshot_id for one in found}):
                break
            if not made and time.monotonic() >= until and look >= LOOKS:
                raise OutcomeUnknownError(
                    "CreateSnapshot was not answered and no snapshot is seen; call again"
                )
        oldest = min(found, key=_age)
        if made and oldest.snapshot_id != made:
            _log.warning("snapshot %s is deleted: %s has its name already", made, oldest.snapshot_id)
            self._delete(made, deadline)
        return oldest

    def _oldest(self, found_by: ByKey, key: str, deadline: Deadline) -> SnapshotRecord | None:
        found = found_by.get(key, deadline)
        if not found:
            return None
        oldest = min(found, key=_age)
        if len(found) > 1:
            others = ", ".join(sorted({one.snapshot_id for one in found} - {oldest.snapshot_id}))
            _log.warning(
                "several snapshots have the name %s: %s is used, not %s", key, oldest.snapshot_id, others
            )
        return oldest

    def _again(self, record: SnapshotRecord, deadline: Deadline) -> SnapshotRecord:
        found = self._region.snapshots_by_id.get(record.snapshot_id, deadline)
        if found is None:
            raise OutcomeUnknownError(f"snapshot {record.snapshot_id} was deleted meanwhile; call again")
        return found


def _age(record: SnapshotRecord) -> tuple[object, str]:
    return record.started_at, record.snapshot_id
