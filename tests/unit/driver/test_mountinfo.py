"""mountInfo.json: exact keys, strings only, and no reading of what is no record."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.mountinfo import METADATA_KEYS, Damaged, MountInfo, decode

_TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
_INFOS = st.builds(
    MountInfo,
    device=_TEXT.filter(bool),
    fs_type=st.sampled_from(["ext4", "xfs"]),
    metadata=st.dictionaries(st.sampled_from(sorted(METADATA_KEYS)), _TEXT),
    options=st.lists(st.sampled_from(["ro", "nodev", "nosuid"]), unique=True).map(tuple),
)


def test_the_file_has_the_keys_kata_and_caa_read_and_no_others() -> None:
    """Field case C3."""
    info = MountInfo("vol-0abc12345", "ext4", {"cloud-volume-path": "vol-0abc12345"}, ("ro",))
    assert json.loads(info.encode()) == {
        "volume-type": "directvol",
        "device": "vol-0abc12345",
        "fstype": "ext4",
        "metadata": {"cloud-volume-path": "vol-0abc12345"},
        "options": ["ro"],
    }


@given(_INFOS)
def test_a_record_reads_back_as_it_was_written(info: MountInfo) -> None:
    assert decode(info.encode()) == info


@given(_INFOS, st.data())
def test_a_truncated_record_is_damaged(info: MountInfo, data: st.DataObject) -> None:
    """Field case C4."""
    content = info.encode()
    with pytest.raises(Damaged):
        decode(content[: data.draw(st.integers(0, len(content) - 1))])


@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            _TEXT | st.none() | st.integers() | st.booleans(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_anything_else_is_damaged_and_never_an_uncaught_error(content: bytes) -> None:
    with pytest.raises(Damaged):
        decode(content)


def test_deep_nesting_is_damaged() -> None:
    with pytest.raises(Damaged):
        decode(b"[" * 60_000)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("volume-type", "block"),
        ("device", 7),
        ("device", ""),
        ("fstype", None),
        ("fstype", "bind"),
        ("metadata", {"cloud-volume-path": 1}),
        ("metadata", {"cloud-volume-path": True}),
        ("metadata", ["cloud-volume-path"]),
        ("options", "ro"),
        ("options", [1]),
        ("options", ["rbind"]),
    ],
)
def test_a_record_that_a_reader_would_take_differently_is_damaged(key: str, value: object) -> None:
    """Field case C3: CAA's typed scan drops what its untyped scan counts."""
    good = json.loads(MountInfo("disk-1", "ext4", {"cloud-volume-path": "disk-1"}).encode())
    decode(json.dumps(good).encode())
    with pytest.raises(Damaged):
        decode(json.dumps(good | {key: value}).encode())


def test_metadata_of_an_older_driver_is_left_out() -> None:
    good = json.loads(MountInfo("disk-1", "ext4", {"cloud-volume-path": "disk-1"}).encode())
    good["metadata"]["cdhKey"] = "kbs:///default/key/1"
    assert decode(json.dumps(good).encode()).metadata == {"cloud-volume-path": "disk-1"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MountInfo("", "ext4", {}), "device"),
        (lambda: MountInfo("disk-1", "", {}), "file system"),
        (lambda: MountInfo("disk-1", "bind", {}), "file system"),
        (lambda: MountInfo("disk-1", "ext4", {}, ("ro", "bind")), "bind"),
        (
            lambda: MountInfo("disk-1", "ext4", {"csi.storage.k8s.io/serviceAccount.tokens": "x"}),
            "allow-list",
        ),
    ],
)
def test_a_record_that_must_not_exist_can_not_be_made(make: Callable[[], MountInfo], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
