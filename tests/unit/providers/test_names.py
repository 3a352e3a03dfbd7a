"""Backend names: distinct, stable, fit for every backend. Field case A7."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from providers.names import MAXIMUM_LENGTH, backend_name, is_backend_name

PREFIXES = st.sampled_from(["csi-vol-", "csi-snap-"])
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=128)
NEAR_NAMES = st.text("aA-_.1\u00e9", min_size=1, max_size=6)
FITS = re.compile(r"[a-z0-9][a-z0-9._-]*[a-z0-9]", re.ASCII)


@given(PREFIXES, NAMES | NEAR_NAMES)
@example("csi-vol-", "n" * 128)
@example("csi-vol-", "..")
@example("csi-vol-", "\u0130")
def test_every_name_fits_every_backend(prefix: str, name: str) -> None:
    made = backend_name(prefix, name)
    assert len(made) <= MAXIMUM_LENGTH
    assert FITS.fullmatch(made)
    assert made.startswith(prefix)
    assert is_backend_name(prefix, made)
    assert backend_name(prefix, name) == made


@given(PREFIXES, st.sets(NAMES | NEAR_NAMES, min_size=2, max_size=20))
def test_no_two_names_meet_even_without_case(prefix: str, names: set[str]) -> None:
    assert len({backend_name(prefix, name).casefold() for name in names}) == len(names)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("n" * 127 + "a", "n" * 127 + "b"),
        ("a-b", "a_b"),
        ("PVC-1", "pvc-1"),
        ("\u00e9", "e\u0301"),
        ("a", "a "),
        (".", ".."),
        ("a_b", "a-b_" + "0" * 32),
    ],
)
def test_names_that_look_alike_do_not_meet(one: str, other: str) -> None:
    assert backend_name("csi-vol-", one) != backend_name("csi-vol-", other)


def test_a_name_can_not_pose_as_the_made_up_one_of_another() -> None:
    made = backend_name("csi-vol-", "a_b")
    posing = made.removeprefix("csi-vol-")
    assert backend_name("csi-vol-", posing) != made


def test_names_never_change() -> None:
    """A released name is the only way back to the disk."""
    assert backend_name("csi-vol-", "pvc-0d9c9a4e-6f1e-4b1e-9f0e-3b8d3d3f3f3f") == (
        "csi-vol-pvc-0d9c9a4e-6f1e-4b1e-9f0e-3b8d3d3f3f3f"
    )
    assert backend_name("csi-vol-", "PVC 1") == "csi-vol-pvc-1_6debb22762b3afea40a62f9a1a510859"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "../../x",
        "csi-snap-a",
        "csi-vol-",
        "csi-vol-..",
        "csi-vol-a/b",
        "csi-vol-a\n",
        "csi-vol-a\0",
        "csi-vol-A",
        "csi-vol-\u0661",
        "csi-vol-a_b",
        "csi-vol-a_" + "g" * 32,
        "csi-vol-" + "a" * 73,
    ],
)
def test_other_texts_are_no_names_of_ours(text: str) -> None:
    """Field case C9."""
    assert not is_backend_name("csi-vol-", text)
