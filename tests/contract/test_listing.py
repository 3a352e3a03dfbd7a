"""Pages of volumes and snapshots."""

from __future__ import annotations

import pytest

from providers.errors import InvalidTokenError, UnavailableError
from providers.interface import BlockVolumeProvider, Volume
from tests.contract.backend import Backend
from tests.contract.calls import create, snapshots, snapshotter, soon, volumes

BAD_TOKENS = ("abc", "-1", "99", "é", " ", "=", "/etc/passwd", "Li4vLi4veA==", "x" * 5000)


@pytest.mark.needs("lister")
def test_an_empty_backend_has_one_empty_page(provider: BlockVolumeProvider) -> None:
    """Field case E1."""
    for entries in (0, 1, 10):
        page = volumes(provider, entries)
        assert (page.items, page.next_token) == ((), "")


@pytest.mark.needs("lister")
@pytest.mark.parametrize("entries", [1, 2, 3, 4, 5, 6, 100])
def test_pages_hold_every_volume_once(provider: BlockVolumeProvider, entries: int) -> None:
    """Field case E1: the last page, full or not, has no token."""
    made = [create(provider, name) for name in ("pvc-3", "PVC-1", "pvc-2", "\u03b1", "pvc-1")]
    seen: list[Volume] = []
    page = volumes(provider, entries)
    pages = 1
    while page.next_token:
        assert len(page.items) == entries
        seen += page.items
        page = volumes(provider, entries, page.next_token)
        pages += 1
    seen += page.items
    assert sorted(seen, key=lambda volume: volume.name) == sorted(made, key=lambda volume: volume.name)
    assert pages == -(-len(made) // entries)
    assert list(volumes(provider).items) == seen


@pytest.mark.needs("lister")
def test_a_page_survives_deletions_before_it(provider: BlockVolumeProvider) -> None:
    for name in ("pvc-1", "pvc-2", "pvc-3"):
        create(provider, name)
    page = volumes(provider, 1)
    provider.delete_volume(page.items[0].handle, soon())
    rest = volumes(provider, 0, page.next_token)
    assert {page.items[0].name, *(volume.name for volume in rest.items)} == {"pvc-1", "pvc-2", "pvc-3"}


@pytest.mark.needs("lister", "snapshotter")
@pytest.mark.parametrize("token", BAD_TOKENS)
def test_tokens_of_others_are_refused(provider: BlockVolumeProvider, token: str) -> None:
    """Field case E1."""
    create(provider)
    with pytest.raises(InvalidTokenError):
        volumes(provider, 1, token)
    with pytest.raises(InvalidTokenError):
        snapshots(provider, None, 1, token)


@pytest.mark.needs("snapshotter")
def test_snapshots_are_listed_by_source_even_when_it_is_gone(backend: Backend) -> None:
    """Field case E1."""
    provider = backend.connect()
    assert snapshots(provider).items == ()
    a, b = create(provider, "A"), create(provider, "B")
    s1, s2, s3 = (
        snapshotter(provider).create_snapshot(name, volume.handle, soon())
        for name, volume in (("s1", a), ("s2", a), ("s3", b))
    )
    first = snapshots(provider, entries=2)
    second = snapshots(provider, entries=2, token=first.next_token)
    assert len(first.items) == 2
    assert len(second.items) == 1
    assert second.next_token == ""
    assert {*first.items, *second.items} == {s1, s2, s3}
    for nothing in ("nope", "../../x", "", "csi-vol-nope"):
        page = snapshots(provider, nothing, 1)
        assert (page.items, page.next_token) == ((), "")
    provider.delete_volume(a.handle, soon())
    assert set(snapshots(backend.connect(), a.handle).items) == {s1, s2}
    one = snapshots(provider, a.handle, entries=1)
    two = snapshots(provider, a.handle, entries=1, token=one.next_token)
    assert {*one.items, *two.items} == {s1, s2}
    assert two.next_token == ""


@pytest.mark.needs("lister")
def test_an_unreachable_backend_is_not_listed_as_empty(backend: Backend) -> None:
    provider = backend.connect()
    with backend.unreachable(), pytest.raises(UnavailableError):
        volumes(provider)
