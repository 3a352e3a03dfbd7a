"""A system that says no, at any step: nothing is lost and nothing is called gone. Field case A6."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from providers.errors import (
    OutcomeUnknownError,
    ProviderError,
    QuotaExceededError,
    UnavailableError,
)
from providers.interface import VolumeRequest
from providers.local import LocalProvider
from tests.contract.calls import create, of_snapshot, of_volume, snapshots, soon, volumes
from tests.contract.local_backend import LocalBackend

MIB = 1024**2
REASONS = (errno.EACCES, errno.EIO, errno.ESTALE, errno.EROFS, errno.EMFILE)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def fail_at(step: int, reason: int) -> Callable[[], None]:
    """Makes the step of that number (from 1) fail."""
    steps = count(1)

    def fail() -> None:
        if next(steps) == step:
            raise OSError(reason, os.strerror(reason))

    return fail


def prepared(directory: Path) -> LocalBackend:
    directory.mkdir()
    backend = LocalBackend(directory)
    provider = backend.connect()
    volume = create(provider, "source")
    backend.disk(volume.handle).write_bytes(b"x" * MIB)
    provider.create_snapshot("taken", volume.handle, soon())
    create(provider, "other")
    return backend


CALLS: dict[str, Callable[[LocalProvider], object]] = {
    "create": lambda provider: create(provider, "new"),
    "replayed create": lambda provider: create(provider, "other"),
    "clone": lambda provider: create(provider, "new", source=of_volume(create(provider, "source"))),
    "restore": lambda provider: create(
        provider, "new", source=of_snapshot(provider.create_snapshot("taken", "csi-vol-source", soon()))
    ),
    "snapshot": lambda provider: provider.create_snapshot("new", "csi-vol-source", soon()),
    "expand": lambda provider: provider.expand_volume("csi-vol-other", 3 * MIB, soon()),
    "delete": lambda provider: provider.delete_volume("csi-vol-other", soon()),
    "delete snapshot": lambda provider: provider.delete_snapshot("csi-snap-taken", soon()),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("reason", [errno.EIO, errno.EACCES, *NO_SPACE], ids=errno.errorcode.get)
def test_a_step_that_fails_is_reported_and_a_replay_finishes(tmp_path: Path, name: str, reason: int) -> None:
    call = CALLS[name]
    right = prepared(tmp_path / "right")
    before = right.objects()
    call(right.connect())
    after = right.objects()
    right_error: tuple[type[ProviderError], ...] = (UnavailableError, OutcomeUnknownError)
    if reason in NO_SPACE:
        right_error = (QuotaExceededError, OutcomeUnknownError)

    failures = 0
    for step in count(1):
        backend = prepared(tmp_path / f"step-{step}")
        provider = backend.connect()
        failing = fail_at(step, reason)
        try:
            with backend.watched(failing):
                call(provider)
        except right_error:
            failures += 1
        else:
            assert {*before, *after} >= {one for one in backend.objects() if ".tmp-" not in one}
            if failing_was_not_reached(failing):
                break
        call(provider)
        assert backend.objects() == after
    assert failures


def failing_was_not_reached(failing: Callable[[], None]) -> bool:
    """Whether the call ended before the step that was to fail: then that step fails now."""
    try:
        for _ in range(100):
            failing()
    except OSError:
        return True
    return False


@pytest.mark.parametrize("reason", REASONS, ids=errno.errorcode.get)
def test_what_can_not_be_looked_up_is_not_gone(tmp_path: Path, reason: int) -> None:
    backend = prepared(tmp_path / "store")
    provider = backend.connect()
    lookups: tuple[Callable[[], object], ...] = (
        lambda: provider.volume_exists("csi-vol-other", soon()),
        lambda: provider.get_volume_info("csi-vol-other", soon()),
        lambda: provider.get_snapshot("csi-snap-taken", soon()),
        lambda: volumes(provider),
        lambda: snapshots(provider),
    )
    for lookup in lookups:
        for step in (1, 2, 3):
            with backend.watched(fail_at(step, reason)), pytest.raises(UnavailableError):
                lookup()


def test_a_room_that_is_missing_is_not_empty(tmp_path: Path) -> None:
    """As when the file system below was unmounted: the directory is there, and nothing in it."""
    backend = prepared(tmp_path / "store")
    provider = backend.connect()
    (backend.directory / "volumes").rename(tmp_path / "away")
    for ask in (provider.volume_exists, provider.delete_volume, provider.get_volume_info):
        with pytest.raises(UnavailableError, match="mounted"):
            ask("csi-vol-other", soon())
    (tmp_path / "away").rename(backend.directory / "volumes")
    assert provider.volume_exists("csi-vol-other", soon())


def test_a_directory_without_permission_is_unavailable(tmp_path: Path) -> None:
    """Seen by a process that is not root."""
    tmp_path.chmod(0o755)
    backend = prepared(tmp_path / "store")
    provider = backend.connect()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            provider.delete_volume("csi-vol-other", soon())
        except UnavailableError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert provider.volume_exists("csi-vol-other", soon())


def test_a_full_file_system_is_a_quota_error_and_is_not_left_full(small_directory: Path) -> None:
    provider = LocalProvider(small_directory)
    source = create(provider, "source", extra_steps=4)
    (small_directory / "volumes" / source.handle / "disk.raw").write_bytes(b"x" * 5 * MIB)
    free = provider.available_bytes({}, soon())
    assert free <= 3 * MIB
    for attempt in (
        lambda: create(provider, "copy", extra_steps=4, source=of_volume(source)),
        lambda: provider.create_snapshot("copy", source.handle, soon()),
    ):
        with pytest.raises(QuotaExceededError, match="delete volumes or snapshots"):
            attempt()
        assert provider.available_bytes({}, soon()) == free
    assert [volume.name for volume in volumes(provider).items] == ["source"]
    assert snapshots(provider).items == ()


def test_disks_are_sparse_but_none_larger_than_the_file_system(small_directory: Path) -> None:
    provider = LocalProvider(small_directory)
    for name in ("a", "b", "c"):
        assert (
            provider.create_volume(VolumeRequest(name, 7 * MIB, None, "ext4"), soon()).size_bytes == 7 * MIB
        )
    with pytest.raises(QuotaExceededError, match="whole file system"):
        provider.create_volume(VolumeRequest("d", 9 * MIB, None, "ext4"), soon())
    with pytest.raises(QuotaExceededError, match="whole file system"):
        provider.expand_volume("csi-vol-a", 9 * MIB, soon())
    assert provider.get_volume_info("csi-vol-a", soon()).size_bytes == 7 * MIB


def test_a_file_size_limit_is_a_quota_error(tmp_path: Path) -> None:
    backend = prepared(tmp_path / "store")
    provider = backend.connect()
    before = backend.objects()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, limits[1]))
    try:
        with pytest.raises(QuotaExceededError):
            create(provider, "large", extra_steps=3)
        with pytest.raises(QuotaExceededError):
            provider.expand_volume("csi-vol-other", 4 * MIB, soon())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert backend.objects() == before
