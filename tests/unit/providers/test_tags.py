"""Tags come back as they were written, and nothing else passes for tags."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.errors import CorruptStateError
from providers.interface import ContentSource, Encryption, SourceKind
from providers.tags import SnapshotTags, VolumeTags, decode_snapshot, decode_volume, encode

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ENCRYPTION = st.none() | st.builds(Encryption, TEXT, TEXT)
SOURCE = st.none() | st.builds(ContentSource, st.sampled_from(SourceKind), TEXT)
TIMES = st.datetimes(timezones=st.just(UTC))
VOLUMES = st.builds(
    VolumeTags, TEXT, st.integers(0, 2**63), ENCRYPTION, TEXT, SOURCE, st.dictionaries(TEXT, TEXT), TIMES
)
SNAPSHOTS = st.builds(SnapshotTags, TEXT, TEXT, ENCRYPTION, TEXT, TIMES)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=5,
)


@given(VOLUMES)
def test_volume_tags_survive(tags: VolumeTags) -> None:
    assert decode_volume(encode(tags)) == tags


@given(SNAPSHOTS)
def test_snapshot_tags_survive(tags: SnapshotTags) -> None:
    assert decode_snapshot(encode(tags)) == tags


@given(VOLUMES, st.data())
def test_a_cut_file_is_corrupt(tags: VolumeTags, data: st.DataObject) -> None:
    whole = encode(tags)
    with pytest.raises(CorruptStateError):
        decode_volume(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(VOLUMES, st.data())
def test_a_field_of_another_type_never_gets_through(tags: VolumeTags, data: st.DataObject) -> None:
    document = json.loads(encode(tags))
    key = data.draw(st.sampled_from(sorted(document)))
    document[key] = data.draw(JSON)
    try:
        decoded = decode_volume(json.dumps(document).encode())
    except CorruptStateError:
        return
    assert json.loads(encode(decoded)).keys() == document.keys()
    assert document["format"] == 1


@given(st.binary(max_size=200))
def test_garbage_is_corrupt(data: bytes) -> None:
    for decode in (decode_volume, decode_snapshot):
        with pytest.raises(CorruptStateError):
            decode(data)


def test_deep_nesting_is_corrupt() -> None:
    with pytest.raises(CorruptStateError):
        decode_volume(b"[" * 100_000)


def test_a_snapshots_tags_are_no_volumes() -> None:
    volume = json.loads(encode(VolumeTags("v", 1, None, "ext4", None, {}, EPOCH)))
    for missing in volume:
        with pytest.raises(CorruptStateError):
            decode_volume(json.dumps({key: volume[key] for key in volume if key != missing}).encode())
    with pytest.raises(CorruptStateError):
        decode_volume(encode(SnapshotTags("s", "csi-vol-v", None, "ext4", EPOCH)))


def test_a_time_without_zone_is_corrupt() -> None:
    tags = json.loads(encode(SnapshotTags("s", "csi-vol-v", None, "ext4", EPOCH)))
    with pytest.raises(CorruptStateError, match="created_at"):
        decode_snapshot(json.dumps({**tags, "created_at": "2026-01-01T00:00:00"}).encode())
