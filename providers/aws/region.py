"""One region: its EC2, and the shared questions about what is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from providers.aws import tags as tag_keys
from providers.aws.batching import Batcher
from providers.aws.calls import Answer, Ec2
from providers.aws.failures import NO_SNAPSHOT, NO_VOLUME, Refused, as_provider_error
from providers.aws.records import GONE, ModificationRecord, SnapshotRecord, VolumeRecord
from providers.aws.settings import Settings
from providers.deadline import Deadline


class _Tagged(Protocol):
    @property
    def tags(self) -> Mapping[str, str]: ...


Record = TypeVar("Record", bound=_Tagged)

_IDS = 500
"""Of one call (EC2 API reference, DescribeVolumes: more make it fail)."""
_VALUES = 200
"""Of one filter (EC2 user guide, "Filter your resources")."""
_PAGE = 500
_REMEMBERED = 10_000
"""Deletions, at most. To forget one costs a call or two, no more."""


@dataclass(frozen=True)
class _Kind:
    """A kind of objects, as EC2 describes it."""

    action: str
    member: str
    parameter: str
    filter_name: str
    unknown: frozenset[str]
    more: Mapping[str, object] = field(default_factory=dict)
    """Further arguments of a call by filter."""


_VOLUMES = _Kind("describe_volumes", "Volumes", "VolumeIds", "volume-id", NO_VOLUME)
_SNAPSHOTS = _Kind(
    "describe_snapshots",
    "Snapshots",
    "SnapshotIds",
    "snapshot-id",
    NO_SNAPSHOT,
    {"OwnerIds": ["self"]},
)
_MODIFICATIONS = _Kind(
    "describe_volumes_modifications", "VolumesModifications", "VolumeIds", "volume-id", frozenset()
)


class Region:
    """What is in one region. Objects that EC2 reports as deleted, or that are another cluster's by their
    tags, are not found by name; those that are being deleted are not found at all."""

    def __init__(self, ec2: Ec2, settings: Settings) -> None:
        timings = settings.timings
        self.ec2 = ec2
        self.settings = settings
        self.name = ec2.region
        self._deleted: set[str] = set()
        self.volumes_by_id = Batcher(self._volumes_by_id, _IDS, timings, "volumes-by-id")
        self.volumes_by_key = Batcher(self._volumes_by_key, _VALUES, timings, "volumes-by-name")
        self.snapshots_by_id = Batcher(self._snapshots_by_id, _IDS, timings, "snapshots-by-id")
        self.snapshots_by_key = Batcher(
            self._by_key(tag_keys.SNAPSHOT_KEY), _VALUES, timings, "snapshots-by-name"
        )
        self.temporary_by_key = Batcher(
            self._by_key(tag_keys.TEMPORARY_KEY), _VALUES, timings, "temporary-snapshots"
        )
        self.modifications = Batcher(self._modifications, _VALUES, timings, "modifications")

    def note_deletion(self, volume_id: str) -> None:
        """EC2 took the deletion of that volume."""
        if len(self._deleted) >= _REMEMBERED:
            self._deleted.clear()
        self._deleted.add(volume_id)

    def took_deletion(self, volume_id: str) -> bool:
        """Whether EC2 took its deletion, as far as this process knows."""
        return volume_id in self._deleted

    def all_volumes(self, deadline: Deadline) -> Iterator[VolumeRecord]:
        """Every volume of this cluster and of the Go driver."""
        found = self._describe(_VOLUMES, deadline, [_filter("tag-key", [tag_keys.VOLUME_KEY])])
        volumes = (VolumeRecord.of(answer) for answer in found)
        return (one for one in volumes if one.state not in GONE and self.is_ours(one))

    def all_snapshots(self, filters: Mapping[str, str], deadline: Deadline) -> Iterator[SnapshotRecord]:
        """Every snapshot of this cluster and of the Go driver; of those, what ``filters`` let through."""
        chosen = [_filter(name, [value]) for name, value in filters.items()]
        chosen.append(_filter("tag-key", [tag_keys.SNAPSHOT_KEY]))
        found = self._describe(_SNAPSHOTS, deadline, chosen)
        snapshots = (SnapshotRecord.of(answer) for answer in found)
        return (one for one in snapshots if self.is_ours(one))

    def is_ours(self, record: _Tagged) -> bool:
        """Whether it belongs to this cluster. The Go driver's objects name no cluster."""
        cluster = record.tags.get(tag_keys.CLUSTER, "")
        return cluster == self.settings.cluster_id or tag_keys.FORMAT not in record.tags

    def _volumes_by_id(self, ids: Sequence[str], deadline: Deadline) -> Mapping[str, VolumeRecord]:
        found = self._by_ids(_VOLUMES, ids, deadline)
        records = (VolumeRecord.of(answer) for answer in found)
        return {record.volume_id: record for record in records if record.state not in GONE}

    def _snapshots_by_id(self, ids: Sequence[str], deadline: Deadline) -> Mapping[str, SnapshotRecord]:
        found = self._by_ids(_SNAPSHOTS, ids, deadline)
        records = (SnapshotRecord.of(answer) for answer in found)
        return {record.snapshot_id: record for record in records}

    def _by_ids(self, kind: _Kind, ids: Sequence[str], deadline: Deadline) -> list[Answer]:
        # One unknown id spoils the call; as a filter, ids that match nothing are simply left out.
        if self._deleted.isdisjoint(ids):
            try:
                return list(self.ec2.pages(kind.action, kind.member, deadline, **{kind.parameter: list(ids)}))
            except Refused as error:
                if error.code not in kind.unknown:
                    raise as_provider_error(kind.action, error) from error
        return [
            answer
            for start in range(0, len(ids), _VALUES)
            for answer in self._describe(
                kind, deadline, [_filter(kind.filter_name, ids[start : start + _VALUES])]
            )
        ]

    def _volumes_by_key(
        self, keys: Sequence[str], deadline: Deadline
    ) -> Mapping[str, tuple[VolumeRecord, ...]]:
        found = self._describe(_VOLUMES, deadline, [_filter(f"tag:{tag_keys.VOLUME_KEY}", keys)])
        records = (VolumeRecord.of(answer) for answer in found)
        return self._grouped(tag_keys.VOLUME_KEY, (one for one in records if one.state not in GONE))

    def _by_key(
        self, key_tag: str
    ) -> Callable[[Sequence[str], Deadline], Mapping[str, tuple[SnapshotRecord, ...]]]:
        def fetch(keys: Sequence[str], deadline: Deadline) -> Mapping[str, tuple[SnapshotRecord, ...]]:
            found = self._describe(_SNAPSHOTS, deadline, [_filter(f"tag:{key_tag}", keys)])
            return self._grouped(key_tag, (SnapshotRecord.of(answer) for answer in found))

        return fetch

    def _modifications(self, ids: Sequence[str], deadline: Deadline) -> Mapping[str, ModificationRecord]:
        # By filter: asked by id, a volume that was never modified would spoil the call.
        found = self._describe(_MODIFICATIONS, deadline, [_filter("volume-id", ids)])
        return {one["VolumeId"]: ModificationRecord.of(one) for one in found}

    def _describe(
        self, kind: _Kind, deadline: Deadline, filters: Sequence[Mapping[str, object]]
    ) -> Iterator[Answer]:
        try:
            yield from self.ec2.pages(
                kind.action, kind.member, deadline, Filters=filters, MaxResults=_PAGE, **kind.more
            )
        except Refused as error:
            raise as_provider_error(kind.action, error) from error

    def _grouped(self, key_tag: str, records: Iterator[Record]) -> dict[str, tuple[Record, ...]]:
        groups: defaultdict[str, list[Record]] = defaultdict(list)
        for record in records:
            if self.is_ours(record):
                groups[record.tags[key_tag]].append(record)
        return {key: tuple(group) for key, group in groups.items()}


def _filter(name: str, values: Sequence[str]) -> dict[str, object]:
    # "*", "?" and "\\" in a filter's value are wildcards and escapes; keys and ids of ours hold none.
    return {"Name": name, "Values": list(values)}
