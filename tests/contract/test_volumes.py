"""Creating, finding and deleting volumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.deadline import Deadline
from providers.errors import (
    DeadlineError,
    InUseError,
    InvalidParameterError,
    SizeOutOfRangeError,
    UnavailableError,
    VolumeNotFoundError,
)
from providers.interface import BlockVolumeProvider, Encryption, VolumeRequest
from tests.contract.backend import Backend
from tests.contract.calls import (
    UNKNOWN_HANDLES,
    capacity,
    create,
    expander,
    request,
    snapshotter,
    soon,
    steps,
)

LONG = "n" * 127
AWKWARD_NAMES = (
    "a-b",
    "a_b",
    "A-b",
    "PVC-1",
    "pvc-1",
    "pvc/\u03b1 b&<",
    "pvc-\u03b1-b--",
    LONG + "a",
    LONG + "b",
    "é",
    "e\u0301",
    ".",
    "..",
    "../../x",
    "-",
    " ",
)


def test_a_new_volume_is_what_was_asked_for(provider: BlockVolumeProvider) -> None:
    volume = create(provider, "pvc-1", extra_steps=3)

    assert volume.name == "pvc-1"
    assert volume.size_bytes == volume.created_size_bytes == steps(provider, 3)
    assert volume.encryption == Encryption("luks2", "default/key/1")
    assert volume.fs_type == "ext4"
    assert volume.source is None
    assert volume.disk_id
    assert provider.get_volume_info(provider.handle_for_name("pvc-1"), soon()) == volume
    assert provider.get_volume_info(volume.handle, soon()) == volume
    assert provider.volume_exists(volume.handle, soon())


def test_a_volume_without_encryption_says_so(provider: BlockVolumeProvider) -> None:
    assert create(provider, encryption=None).encryption is None


def test_the_disk_id_is_no_path_on_a_node(provider: BlockVolumeProvider) -> None:
    disk_id = create(provider).disk_id
    assert not disk_id.startswith("/dev")
    assert not Path(disk_id).exists()
    assert not Path("/dev", disk_id).exists()


def test_a_replayed_create_finds_the_volume_unchanged(backend: Backend) -> None:
    """Field cases A4, D3: whatever is asked for now, and by whichever process."""
    first = create(backend.connect(), "pvc-1", extra_steps=2)
    held = backend.objects()
    again = backend.connect()
    for other in (
        request(again, "pvc-1", extra_steps=2),
        request(again, "pvc-1", extra_steps=0),
        request(again, "pvc-1", extra_steps=5, encryption=None),
        request(again, "pvc-1", encryption=Encryption("luks2", "default/key/2")),
    ):
        assert again.create_volume(other, soon()) == first
    assert backend.objects() == held


def test_a_replayed_create_of_an_attached_volume_is_prompt(backend: Backend) -> None:
    """Field case A3."""
    first = create(backend.connect())
    with backend.attached(first.handle):
        provider = backend.connect()
        assert provider.create_volume(request(provider), Deadline.after(30)) == first


@pytest.mark.needs("expander")
def test_a_create_replayed_after_an_expansion_still_matches(provider: BlockVolumeProvider) -> None:
    """Field case A4 (viii)."""
    volume = create(provider, extra_steps=1)
    expander(provider).expand_volume(volume.handle, steps(provider, 4), soon())
    again = create(provider, extra_steps=1)
    assert (again.handle, again.size_bytes) == (volume.handle, steps(provider, 4))
    assert again.created_size_bytes == steps(provider, 1)


@pytest.mark.needs("expander")
def test_expansion_only_ever_grows(backend: Backend) -> None:
    provider = backend.connect()
    volume = create(provider, extra_steps=1)
    with backend.attached(volume.handle):
        assert expander(provider).expand_volume(volume.handle, steps(provider, 3), soon()) == steps(
            provider, 3
        )
    for smaller in (steps(provider, 3), steps(provider, 2), steps(provider, 0)):
        assert expander(provider).expand_volume(volume.handle, smaller, soon()) == steps(provider, 3)
    assert provider.get_volume_info(volume.handle, soon()).size_bytes == steps(provider, 3)


def test_sizes_that_no_volume_can_have_are_refused(backend: Backend) -> None:
    """Field case A5: the provider's own limits hold even if the caller forgot them."""
    provider = backend.connect()
    for size in (
        -1,
        0,
        provider.minimum_size_bytes - provider.size_step_bytes,
        provider.minimum_size_bytes + 1,
        provider.maximum_size_bytes + provider.size_step_bytes,
        2**62,
    ):
        with pytest.raises(SizeOutOfRangeError):
            provider.create_volume(VolumeRequest("pvc-1", size, None, "ext4"), soon())
    assert backend.objects() == []


def test_deleting_is_idempotent(backend: Backend) -> None:
    """Field case A6."""
    provider = backend.connect()
    handle = create(provider).handle
    for _ in range(2):
        provider.delete_volume(handle, soon())
        assert backend.objects() == []
    provider.delete_volume(provider.handle_for_name("no-such"), soon())
    assert not provider.volume_exists(handle, soon())
    with pytest.raises(VolumeNotFoundError):
        provider.get_volume_info(handle, soon())


def test_a_name_can_be_used_again_after_deletion(provider: BlockVolumeProvider) -> None:
    first = create(provider, extra_steps=1)
    provider.delete_volume(first.handle, soon())
    assert create(provider, extra_steps=2).created_size_bytes == steps(provider, 2)


def test_an_unreachable_backend_is_not_an_empty_one(backend: Backend) -> None:
    """Field case A6: nothing is ever reported as gone because it could not be looked up."""
    provider = backend.connect()
    handle = create(provider).handle
    held = backend.objects()
    with backend.unreachable():
        for handle_asked in (handle, provider.handle_for_name("other")):
            with pytest.raises(UnavailableError):
                provider.delete_volume(handle_asked, soon())
            with pytest.raises(UnavailableError):
                provider.volume_exists(handle_asked, soon())
            with pytest.raises(UnavailableError):
                provider.get_volume_info(handle_asked, soon())
        with pytest.raises(UnavailableError):
            create(provider, "other")
    assert backend.objects() == held
    provider.delete_volume(handle, soon())


def test_awkward_names_get_volumes_of_their_own(backend: Backend) -> None:
    """Field case A7."""
    provider = backend.connect()
    handles = {create(provider, name, extra_steps=i).handle: i for i, name in enumerate(AWKWARD_NAMES)}
    assert len({handle.casefold() for handle in handles}) == len(AWKWARD_NAMES)
    assert len(backend.objects()) == len(AWKWARD_NAMES)
    again = backend.connect()
    for i, name in enumerate(AWKWARD_NAMES):
        volume = create(again, name, extra_steps=i)
        assert handles[volume.handle] == i
        assert volume.name == name
        assert len(volume.handle) <= 100
        assert volume.handle.isascii()
        assert volume.handle.isprintable()
        assert " " not in volume.handle
        again.delete_volume(volume.handle, soon())
    assert backend.objects() == []


def test_a_disk_in_a_running_machine_is_not_deleted(backend: Backend) -> None:
    """Field case A9."""
    provider = backend.connect()
    volume = create(provider)
    held = backend.objects()
    with backend.attached(volume.handle):
        with pytest.raises(InUseError):
            provider.delete_volume(volume.handle, soon())
        assert backend.objects() == held
        assert provider.get_volume_info(volume.handle, soon()) == volume
    provider.delete_volume(volume.handle, soon())
    assert backend.objects() == []


@pytest.mark.parametrize("handle", UNKNOWN_HANDLES)
def test_foreign_handles_are_unknown(backend: Backend, handle: str) -> None:
    """Field case C9: and nothing else is touched."""
    provider = backend.connect()
    create(provider)
    held = backend.objects()
    provider.delete_volume(handle, soon())
    assert not provider.volume_exists(handle, soon())
    with pytest.raises(VolumeNotFoundError):
        provider.get_volume_info(handle, soon())
    assert backend.objects() == held


@pytest.mark.needs("expander")
@pytest.mark.parametrize("handle", [*UNKNOWN_HANDLES, "csi-vol-gone"])
def test_what_does_not_exist_is_not_expanded(provider: BlockVolumeProvider, handle: str) -> None:
    with pytest.raises(VolumeNotFoundError):
        expander(provider).expand_volume(handle, steps(provider, 1), soon())


def test_a_passed_deadline_ends_a_create(backend: Backend) -> None:
    """Field case B3."""
    provider = backend.connect()
    with pytest.raises(DeadlineError):
        provider.create_volume(request(provider), Deadline.after(0))
    with pytest.raises(DeadlineError):
        provider.create_volume(request(provider), Deadline.after(60, cancelled=lambda: True))
    assert backend.objects() == []


def test_parameters_that_are_not_the_providers_own_are_refused(provider: BlockVolumeProvider) -> None:
    provider.validate_parameters({})
    with pytest.raises(InvalidParameterError, match="no-such-parameter"):
        provider.validate_parameters({"no-such-parameter": "x"})


@pytest.mark.needs("capacity")
def test_capacity_is_a_whole_number_of_steps(provider: BlockVolumeProvider) -> None:
    free = capacity(provider).available_bytes({}, soon())
    assert free >= provider.minimum_size_bytes
    assert free % provider.size_step_bytes == 0


@pytest.mark.needs("capacity")
def test_capacity_of_an_unreachable_backend_is_unknown(backend: Backend) -> None:
    provider = backend.connect()
    with backend.unreachable(), pytest.raises(UnavailableError):
        capacity(provider).available_bytes({}, soon())


@pytest.mark.needs("snapshotter")
def test_a_volume_with_snapshots_can_be_deleted(provider: BlockVolumeProvider) -> None:
    volume = create(provider)
    snapshot = snapshotter(provider).create_snapshot("snap-1", volume.handle, soon())
    provider.delete_volume(volume.handle, soon())
    assert snapshotter(provider).get_snapshot(snapshot.handle, soon()) == snapshot
