"""Settings, places, handles and tags: texts from outside, and texts that Azure keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.azure import handles, tags
from providers.azure.places import Place, labels_of
from providers.azure.settings import PUBLIC_ENDPOINT, Settings
from providers.errors import ConfigurationError, CorruptStateError, InvalidParameterError
from providers.interface import Encryption

SUBSCRIPTION = "01234567-89ab-cdef-0123-456789abcdef"
OTHER = "76543210-89ab-cdef-0123-456789abcdef"
USUAL = {
    "CONFIDENTIAL_CSI_AZURE_SUBSCRIPTION_ID": SUBSCRIPTION.upper(),
    "CONFIDENTIAL_CSI_AZURE_RESOURCE_GROUP": "Disks",
}

names = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1).filter(
    lambda text: len(text.encode()) <= 128
)
groups = st.text("abcXYZ019-_.()\u00e9", min_size=1, max_size=89).map(lambda text: text + "g")


def test_two_settings_suffice() -> None:
    settings = Settings.from_environment(USUAL)
    assert settings.place == Place(SUBSCRIPTION, "Disks")
    assert settings.places == (settings.place,)
    assert (settings.endpoint, settings.location, settings.zone) == (PUBLIC_ENDPOINT, "", "")


def test_all_settings_are_read() -> None:
    settings = Settings.from_environment(
        {
            **USUAL,
            "CONFIDENTIAL_CSI_AZURE_MORE_RESOURCE_GROUPS": f"more, {OTHER}/other",
            "CONFIDENTIAL_CSI_AZURE_LOCATION": "West Europe",
            "CONFIDENTIAL_CSI_AZURE_ZONE": "westeurope-2",
            "CONFIDENTIAL_CSI_AZURE_ENDPOINT": "https://management.chinacloudapi.cn/",
            "CONFIDENTIAL_CSI_CLUSTER_ID": "blue",
            "CONFIDENTIAL_CSI_EXTRA_TAGS": "team=storage,cost=a b",
        }
    )
    assert settings.more_places == (Place(SUBSCRIPTION, "more"), Place(OTHER, "other"))
    assert (settings.location, settings.zone) == ("westeurope", "2")
    assert settings.endpoint == "https://management.chinacloudapi.cn"
    assert settings.cluster_id == "blue"
    assert settings.extra_tags == {"team": "storage", "cost": "a b"}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("CONFIDENTIAL_CSI_AZURE_SUBSCRIPTION_ID", ""),
        ("CONFIDENTIAL_CSI_AZURE_SUBSCRIPTION_ID", "my subscription"),
        ("CONFIDENTIAL_CSI_AZURE_RESOURCE_GROUP", ""),
        ("CONFIDENTIAL_CSI_AZURE_RESOURCE_GROUP", "a/b"),
        ("CONFIDENTIAL_CSI_AZURE_RESOURCE_GROUP", "ends-with."),
        ("CONFIDENTIAL_CSI_AZURE_RESOURCE_GROUP", "g" * 91),
        ("CONFIDENTIAL_CSI_AZURE_MORE_RESOURCE_GROUPS", "sub/g"),
        ("CONFIDENTIAL_CSI_AZURE_MORE_RESOURCE_GROUPS", "a b"),
        ("CONFIDENTIAL_CSI_AZURE_LOCATION", "https://x"),
        ("CONFIDENTIAL_CSI_AZURE_ZONE", "1"),  # of no location
        ("CONFIDENTIAL_CSI_AZURE_ENDPOINT", "http://management.azure.com"),
        ("CONFIDENTIAL_CSI_AZURE_ENDPOINT", "management.azure.com"),
        ("CONFIDENTIAL_CSI_AZURE_ENDPOINT", "https://user@x"),
        ("CONFIDENTIAL_CSI_AZURE_ENDPOINT", "https://x:y"),
        ("CONFIDENTIAL_CSI_CLUSTER_ID", "a\nb"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", "novalue"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", "a/b=c"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", f"a={'v' * 257}"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", "caa-csi-node=1"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", "KBS-key-id=1"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", "microsoft-x=1"),
        ("CONFIDENTIAL_CSI_EXTRA_TAGS", ",".join(f"k{number}=v" for number in range(31))),
    ],
)
def test_what_can_not_work_is_refused_by_name(setting: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=setting):
        Settings.from_environment({**USUAL, setting: value})


def test_a_resource_group_named_twice_is_one() -> None:
    more = {"CONFIDENTIAL_CSI_AZURE_MORE_RESOURCE_GROUPS": "DISKS"}
    labels = labels_of(Settings.from_environment({**USUAL, **more}).places)
    assert len({place.folded for place in labels.values()}) == 1


@given(names, groups)
def test_handles_fit_and_lead_back(name: str, group: str) -> None:
    """Field case A7: with the longest name and resource group too."""
    place = Place(SUBSCRIPTION, group)
    for made in (handles.volume_name(name), handles.go_name(handles.VOLUME_PREFIX, name)):
        handle = handles.handle(made, place)
        text = str(handle)
        assert len(text) <= 100
        assert text.isascii()
        assert " " not in text
        assert handles.volume(text) == handle
        assert labels_of([place])[handle.label] == place
        assert labels_of([Place(SUBSCRIPTION.upper(), group.upper())])
        assert handles.handle(made, Place(SUBSCRIPTION, group.swapcase())).label == handle.label or (
            group.swapcase().lower() != group.lower()
        )


@given(groups, groups)
def test_no_two_places_share_a_label(one: str, other: str) -> None:
    places = {place.folded: place for place in (Place(SUBSCRIPTION, one), Place(SUBSCRIPTION, other))}
    assert len(labels_of([*places.values(), Place(OTHER, one)])) == 2 * len(places) + 2


@given(st.text(max_size=120))
def test_other_texts_are_no_handles(text: str) -> None:
    parsed = handles.volume(text)
    assert parsed is None or str(parsed) == text


@given(names, names)
def test_names_that_azure_takes_for_one_are_of_one_volume(one: str, other: str) -> None:
    """Field case A7: Azure compares without case."""
    if one != other:
        assert handles.volume_name(one).lower() != handles.volume_name(other).lower()


@given(names, st.sampled_from([tags.VOLUME, tags.SNAPSHOT]))
def test_any_name_comes_back_from_its_tags(name: str, key: str) -> None:
    written = tags.common(name, key, "blue", "ext4", Encryption("luks2", "a/b/c"))
    assert all(tags.is_tag_key(one) and tags.is_tag_value(value) for one, value in written.items())
    facts = tags.read(written, key)
    assert (facts.name, facts.cluster_id, facts.fs_type) == (name, "blue", "ext4")
    assert facts.encryption == Encryption("luks2", "a/b/c")


def test_a_key_id_that_no_tag_holds_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="kbs-key-id"):
        tags.common("pvc-1", tags.VOLUME, "", "ext4", Encryption("luks2", "a/b/" + "c" * 300))


@pytest.mark.parametrize(
    "broken",
    [
        {"caa-csi-created-bytes": "many"},
        {"caa-csi-name": "%"},
        {"encrypt-type": "luks2"},
        {"kbs-key-id": "a/b/c"},
        {"caa-csi-source": "tape x"},
    ],
)
def test_tags_that_were_tampered_with_are_noticed(broken: dict[str, str]) -> None:
    with pytest.raises(CorruptStateError):
        tags.read({"caa-csi-volume-id": "pvc-1", **broken}, tags.VOLUME)
