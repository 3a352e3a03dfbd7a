"""Ids: what resolves, what is unknown, and that they stay short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.errors import FailedPrecondition
from driver.volume_id import MAXIMUM_LENGTH, Ids
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider

PROVIDER = MemoryProvider(MemoryCloud())
IDS = Ids(PROVIDER, ("aws", "azure", "memory"))

handles = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=100)


@given(handles)
def test_an_id_resolves_to_its_handle_and_fits(handle: str) -> None:
    volume_id = IDS.format(handle)
    assert len(volume_id.encode()) <= MAXIMUM_LENGTH
    assert IDS.volume_handle(volume_id) == handle
    assert IDS.snapshot_handle(volume_id) == handle


def test_a_bare_name_is_the_older_driver_s_volume_but_no_snapshot() -> None:
    name = "pvc-0d9c9a4e-6f1e-4b1e-9f0e-3b8d3d3f3f3f"
    assert IDS.volume_handle(name) == PROVIDER.handle_for_name(name)
    assert IDS.snapshot_handle(name) is None


@pytest.mark.parametrize("text", ["aws:vol-0123456789abcdef0", "azure:x"])
def test_another_provider_s_id_is_neither_found_nor_missing(text: str) -> None:
    for resolve in (IDS.volume_handle, IDS.snapshot_handle):
        with pytest.raises(FailedPrecondition):
            resolve(text)


@pytest.mark.parametrize(
    "text",
    [
        "../../../escape/x",
        "a/b",
        ".",
        "..",
        "-",
        "x\0y",
        "x\n",
        "y" * 129,
        "memory:",
        "memory:a b",
        "memory:" + "x" * 101,
        "aws:",
        "aws:a b",
        "gcp:disk",
        "memory :x",
        "\u03b1",
    ],
)
def test_what_no_driver_made_is_unknown(text: str) -> None:
    """Field case C9."""
    assert IDS.volume_handle(text) is None
    assert IDS.snapshot_handle(text) is None


@given(st.text())
def test_any_text_is_a_handle_or_unknown(text: str) -> None:
    try:
        handle = IDS.volume_handle(text)
    except FailedPrecondition:
        assert text.startswith(("aws:", "azure:"))
    else:
        assert handle is None or (handle.isascii() and handle.isprintable() and " " not in handle)
