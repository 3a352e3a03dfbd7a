"""Notes of the node that a volume is published to, and which machine has its disk."""

from __future__ import annotations

import pytest

from providers.errors import OutcomeUnknownError, UnavailableError, VolumeNotFoundError
from providers.interface import BlockVolumeProvider, VolumeFence
from tests.contract.backend import Backend
from tests.contract.calls import create, soon, volumes

ONE, TWO = "node/worker-1", "node/worker-2.example"


def note(provider: BlockVolumeProvider, handle: str, node_id: str, replacing: str) -> None:
    """Set the note."""
    assert isinstance(provider, VolumeFence)
    provider.set_published_node(handle, node_id, replacing, soon())


def noted(backend: Backend, handle: str) -> str:
    """The note, as a controller reads it that knows nothing of others."""
    return backend.connect().get_volume_info(handle, soon()).published_node_id


@pytest.mark.needs("fence")
def test_a_note_is_kept_with_the_disk(backend: Backend) -> None:
    provider = backend.connect()
    handle, other = create(provider, "pvc-1").handle, create(provider, "pvc-2").handle
    assert noted(backend, handle) == ""
    for node_id, replacing in ((ONE, ""), (ONE, ONE), (TWO, ONE), ("", TWO), ("", ""), (ONE, "")):
        note(backend.connect(), handle, node_id, replacing)
        assert noted(backend, handle) == node_id
    assert noted(backend, other) == ""
    listed = {volume.handle: volume.published_node_id for volume in volumes(backend.connect()).items}
    assert listed == {handle: ONE, other: ""}


@pytest.mark.needs("fence")
def test_a_note_that_changed_meanwhile_stays(backend: Backend) -> None:
    provider = backend.connect()
    handle = create(provider).handle
    note(provider, handle, ONE, "")
    for node_id in (TWO, ""):
        with pytest.raises(OutcomeUnknownError):
            note(backend.connect(), handle, node_id, TWO if node_id == "" else "")
    assert noted(backend, handle) == ONE


@pytest.mark.needs("fence")
def test_a_note_changes_nothing_else(backend: Backend) -> None:
    provider = backend.connect()
    volume = create(provider)
    held = backend.objects()
    note(provider, volume.handle, ONE, "")
    note(provider, volume.handle, "", ONE)
    assert backend.objects() == held
    assert provider.get_volume_info(volume.handle, soon()) == volume


@pytest.mark.needs("fence")
def test_the_machine_that_has_the_disk_is_named(backend: Backend) -> None:
    provider = backend.connect()
    handle = create(provider).handle
    assert provider.get_volume_info(handle, soon()).attached_to == ""
    with backend.attached(handle):
        assert backend.connect().get_volume_info(handle, soon()).attached_to != ""
        assert volumes(backend.connect()).items[0].attached_to != ""
        note(backend.connect(), handle, ONE, "")
    assert provider.get_volume_info(handle, soon()).attached_to == ""
    assert noted(backend, handle) == ONE


@pytest.mark.needs("fence")
def test_what_does_not_exist_is_not_noted(provider: BlockVolumeProvider) -> None:
    with pytest.raises(VolumeNotFoundError):
        note(provider, provider.handle_for_name("no-such"), ONE, "")


@pytest.mark.needs("fence")
def test_an_unreachable_backend_is_not_noted(backend: Backend) -> None:
    provider = backend.connect()
    handle = create(provider).handle
    with backend.unreachable(), pytest.raises(UnavailableError):
        note(provider, handle, ONE, "")
    assert noted(backend, handle) == ""
