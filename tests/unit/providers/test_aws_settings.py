"""Settings, tags and handles: texts from outside, and texts that EC2 keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.aws import handles, tags
from providers.aws.settings import Settings
from providers.disk_facts import ENCRYPT_TYPE, source_text
from providers.errors import ConfigurationError, CorruptStateError
from providers.interface import ContentSource, Encryption, SourceKind

names = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1).filter(
    lambda text: len(text.encode()) <= 128
)


def test_the_region_is_taken_from_where_eks_puts_it() -> None:
    for name in ("CONFIDENTIAL_CSI_AWS_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"):
        assert Settings.from_environment({name: "eu-west-1"}).region == "eu-west-1"
    both = {"AWS_REGION": "eu-west-1", "CONFIDENTIAL_CSI_AWS_REGION": "eu-west-2"}
    assert Settings.from_environment(both).region == "eu-west-2"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("CONFIDENTIAL_CSI_AWS_REGION", ""),
        ("CONFIDENTIAL_CSI_AWS_REGION", "http://x"),
        ("CONFIDENTIAL_CSI_AWS_MORE_REGIONS", "eu-west-2,nowhere"),
        ("CONFIDENTIAL_CSI_AWS_ZONE", "us-east-1a"),
        ("CONFIDENTIAL_CSI_CLUSTER_ID", "a&b"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", "novalue"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", "team=a,=b"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", "team=<b>"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", "aws:x=1"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", "kbs-key-id=1"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", "caa-csi-node=1"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", ",".join(f"k{number}=v" for number in range(31))),
    ],
)
def test_a_setting_that_can_t_work_stops_the_start(setting: str, value: str) -> None:
    environment = {"CONFIDENTIAL_CSI_AWS_REGION": "eu-west-1", setting: value}
    with pytest.raises(ConfigurationError, match="CONFIDENTIAL_CSI_"):
        Settings.from_environment(environment)


def test_settings_are_read() -> None:
    settings = Settings.from_environment(
        {
            "AWS_REGION": "eu-west-1",
            "CONFIDENTIAL_CSI_AWS_MORE_REGIONS": "eu-west-2, us-east-1",
            "CONFIDENTIAL_CSI_AWS_ZONE": "eu-west-1b",
            "CONFIDENTIAL_CSI_CLUSTER_ID": "prod-1",
            "CONFIDENTIAL_CSI_EXTRA_TAGS": "team=storage,cost/center=4 2",
        }
    )
    assert settings.more_regions == ("eu-west-2", "us-east-1")
    assert (settings.zone, settings.cluster_id) == ("eu-west-1b", "prod-1")
    assert dict(settings.extra_tags) == {"team": "storage", "cost/center": "4 2"}


@given(names)
def test_a_name_survives_in_tags_that_every_service_takes(name: str) -> None:
    """Field case A7."""
    key = tags.volume_key(name)
    written = tags.common(name, key, "c", "ext4", Encryption("luks2", "default/key/1"))
    written |= tags.of_labels({"pvc/name": name, "pv/name": name})
    assert all(tags.is_tag_text(value, 256) for value in written.values())
    facts = tags.read({**written, tags.VOLUME_KEY: key}, tags.VOLUME_KEY)
    assert (facts.name, facts.key, facts.encryption) == (name, key, Encryption("luks2", "default/key/1"))


@given(names, names)
def test_two_names_have_two_keys(one: str, other: str) -> None:
    """Field case A7."""
    assert (tags.volume_key(one) == tags.volume_key(other)) == (one == other)


def test_a_source_is_read_as_written() -> None:
    source = ContentSource(SourceKind.SNAPSHOT, "us-east-1/snap-0123456789abcdef0")
    assert tags.read({tags.SOURCE: source_text(source)}, tags.VOLUME_KEY).source == source


@pytest.mark.parametrize(
    "broken",
    [
        {tags.SOURCE: "tape x"},
        {tags.CREATED_SIZE: "much"},
        {ENCRYPT_TYPE: "luks2"},
        {tags.CSI_NAME: "%%%"},
        {tags.CSI_NAME: "_____w=="},
    ],
)
def test_tags_that_nobody_wrote_are_reported(broken: dict[str, str]) -> None:
    with pytest.raises(CorruptStateError):
        tags.read(broken, tags.VOLUME_KEY)


@given(names)
def test_a_handle_of_a_name_is_a_handle(name: str) -> None:
    handle = handles.of_name("ap-southeast-2", name)
    assert handles.volume(str(handle)) == handle
    assert len(str(handle)) <= 100
    assert str(handle).isascii()


def test_an_id_of_ec2_is_a_handle_of_that_volume() -> None:
    """Field case C10: a disk that someone imported."""
    assert str(handles.of_name("us-east-1", "vol-0123456789abcdef0")) == "us-east-1/vol-0123456789abcdef0"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "us-east-1",
        "us-east-1/",
        "us-east-1/vol-xyz",
        "us-east-1/vol-0123456789abcdef0\n",
        "us-east-1/vol-0123456789ABCDEF0",
        "evil.example/vol-0123456789abcdef0",
        "us-east-1/../x",
        "vol-0123456789abcdef0",
        "us-east-1/snap-0123456789abcdef",
        "us-east-1/csi-vol-a/b",
        "us-east-1/csi-vol-" + "x" * 100,
        "us-east-1/csi-vol-*",
    ],
)
def test_other_text_is_no_handle(text: str) -> None:
    """Field case C9."""
    assert handles.volume(text) is None


@given(st.text())
def test_any_text_is_a_handle_or_none(text: str) -> None:
    for parse in (handles.volume, handles.snapshot):
        handle = parse(text)
        assert handle is None or str(handle) == text
