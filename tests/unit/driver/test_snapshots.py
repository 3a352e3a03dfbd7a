"""CreateSnapshot, DeleteSnapshot and ListSnapshots over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest

from driver.errors import MAXIMUM_MESSAGE_BYTES
from proto import csi_pb2
from providers.errors import OutcomeUnknownError, UnavailableError
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider, MinimalProvider, raising
from tests.unit.driver.rig import Client, controller, refused

Code = grpc.StatusCode


@dataclass(frozen=True)
class Account:
    """Volumes A and B; snapshots s1 and s2 of A, s3 of B."""

    client: Client
    cloud: MemoryCloud
    a: str
    s1: str
    s2: str
    s3: str

    def list(
        self, *, snapshot: str = "", source: str = "", entries: int = 0, token: str = ""
    ) -> tuple[list[str], str]:
        """The ids on one page, and the token of the next."""
        request = csi_pb2.ListSnapshotsRequest(
            snapshot_id=snapshot, source_volume_id=source, max_entries=entries, starting_token=token
        )
        response = self.client.controller.ListSnapshots(request, timeout=10)
        return [entry.snapshot.snapshot_id for entry in response.entries], response.next_token


@pytest.fixture
def account() -> Iterator[Account]:
    cloud = MemoryCloud()
    with controller(MemoryProvider(cloud)) as client:
        a, b = (client.create(name).volume_id for name in ("a", "b"))
        s1, s2, s3 = (client.snapshot(*of).snapshot_id for of in (("s1", a), ("s2", a), ("s3", b)))
        yield Account(client, cloud, a, s1, s2, s3)


def test_pages_end_with_an_empty_token(account: Account) -> None:
    """Field case E1."""
    first, token = account.list(entries=2)
    second, end = account.list(entries=2, token=token)
    assert (len(first), len(second), end) == (2, 1, "")
    assert {*first, *second} == {account.s1, account.s2, account.s3}


def test_an_empty_account_has_no_pages() -> None:
    """Field case E1."""
    with controller(MemoryProvider(MemoryCloud())) as client:
        response = client.controller.ListSnapshots(csi_pb2.ListSnapshotsRequest(), timeout=10)
    assert response == csi_pb2.ListSnapshotsResponse()


def test_filters_that_match_nothing_give_an_empty_list(account: Account) -> None:
    """Field case E1."""
    assert account.list(source="nope") == ([], "")
    assert account.list(snapshot="nope") == ([], "")
    assert account.list(snapshot="memory:nope") == ([], "")
    assert account.list(snapshot=account.s3, source=account.a) == ([], "")
    assert account.list(source="../../x") == ([], "")
    assert account.list(snapshot=account.s3) == ([account.s3], "")
    assert account.list(snapshot=account.s1, source=account.a) == ([account.s1], "")


@pytest.mark.parametrize("token", ["abc", "-1", "99"])
def test_a_token_of_someone_else_is_aborted(account: Account, token: str) -> None:
    """Field case E1."""
    for snapshot in ("", account.s1):
        with refused(Code.ABORTED):
            account.list(token=token, snapshot=snapshot)


def test_a_negative_page_size_is_refused(account: Account) -> None:
    with refused(Code.INVALID_ARGUMENT):
        account.list(entries=-1)


def test_snapshots_outlive_their_volume(account: Account) -> None:
    """Field cases E1 and E7."""
    account.client.delete(account.a)
    assert sorted(account.list(source=account.a)[0]) == sorted([account.s1, account.s2])
    account.client.delete_snapshot(account.s1)
    assert account.list(source=account.a)[0] == [account.s2]
    assert len(account.cloud.snapshots) == 2


@pytest.mark.parametrize(
    "snapshot_id", ["x", "../../../escape/x", "a/b", ".", "x\0y", "y" * 300, "memory:../x"]
)
def test_deleting_an_unknown_snapshot_is_a_success(account: Account, snapshot_id: str) -> None:
    """Field cases E7 and C9: nothing is derived from a hostile id."""
    before = list(account.cloud.calls)
    account.client.delete_snapshot(snapshot_id)
    assert account.cloud.calls == before


def test_a_snapshot_of_another_provider_is_not_taken_for_deleted(account: Account) -> None:
    """Field case A6: the disk may well exist there."""
    with refused(Code.FAILED_PRECONDITION) as refusal:
        account.client.delete_snapshot("aws:snap-0123456789")
    assert "--provider aws" in refusal.message


def test_the_same_name_is_the_same_snapshot(account: Account) -> None:
    """Field case E2, its part without a cloud SDK."""
    again = account.client.snapshot("s1", account.a)
    assert again.snapshot_id == account.s1
    assert again.creation_time.ToDatetime().isoformat() == "2026-01-02T03:04:05"
    assert (again.source_volume_id, again.ready_to_use) == (account.a, True)
    with refused(Code.ALREADY_EXISTS):
        account.client.snapshot("s3", account.a)


def test_a_snapshot_of_a_missing_volume_is_not_found(account: Account) -> None:
    for volume_id in ("nope", "memory:nope", "../../x"):
        with refused(Code.NOT_FOUND):
            account.client.snapshot("s4", volume_id)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("x" * 2000), Code.ABORTED),
        (OutcomeUnknownError("sent"), Code.ABORTED),
        (UnavailableError("down"), Code.UNAVAILABLE),
    ],
)
def test_an_error_once_the_create_may_be_sent_is_not_final(
    account: Account, error: Exception, code: grpc.StatusCode
) -> None:
    """Field case A11, for snapshots."""
    account.cloud.after["create_snapshot"].append(raising(error))
    with refused(code) as refusal:
        account.client.snapshot("s4", account.a)
    assert len(refusal.message.encode()) <= MAXIMUM_MESSAGE_BYTES


def test_snapshot_classes_take_no_parameters(account: Account) -> None:
    request = csi_pb2.CreateSnapshotRequest(
        name="s4", source_volume_id=account.a, parameters={"incremental": "true"}
    )
    with refused(Code.INVALID_ARGUMENT):
        account.client.controller.CreateSnapshot(request, timeout=10)


def test_a_provider_without_snapshots_answers_unimplemented() -> None:
    with controller(MinimalProvider(MemoryCloud())) as client:
        for call in (
            lambda: client.snapshot("s1", "memory:x"),
            lambda: client.delete_snapshot("memory:x"),
            lambda: client.controller.ListSnapshots(csi_pb2.ListSnapshotsRequest(), timeout=10),
        ):
            with refused(Code.UNIMPLEMENTED):
                call()
