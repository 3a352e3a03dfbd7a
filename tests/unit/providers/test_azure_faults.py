"""Throttling, lost answers, operations that never end, conflicts, missing permissions, late tokens."""

from __future__ import annotations

import copy
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError

from providers.azure import AzureProvider
from providers.deadline import Deadline
from providers.errors import (
    DeadlineError,
    InvalidParameterError,
    OutcomeUnknownError,
    ProviderError,
    QuotaExceededError,
    UnavailableError,
)
from tests.fakes.arm.cloud import FOR_EVER, ArmCloud
from tests.fakes.arm.messages import Answer, Dropped, Fault, Request, anything, error, method, poll, throttled
from tests.fakes.arm.rig import GIB, FakeCredential, Rig, asked, create, soon
from tests.fakes.arm.server import serving
from tests.fakes.arm.wire import transport


def test_throttling_while_an_accepted_create_is_polled_leaks_nothing() -> None:
    """Field case B1: ABORTED long before the deadline, and the replay finds the disk."""
    rig = Rig(ArmCloud(operation_looks=1))
    rig.cloud.faults.append(Fault(poll, before=throttled(303)))
    begun = time.monotonic()
    with pytest.raises(OutcomeUnknownError):
        create(rig.provider())
    assert time.monotonic() - begun < 60
    replayed = create(rig.provider())
    assert rig.cloud.objects() == ["disks/disks/csi-vol-pvc-1"]
    rig.provider().delete_volume(replayed.handle, soon())
    assert rig.cloud.objects() == []


def test_throttling_of_what_was_not_sent_yet_is_unavailable_at_once() -> None:
    """Field case B1."""
    rig = Rig()
    for matches in (method("PUT"), method("GET")):
        rig.cloud.faults[:] = [Fault(matches, before=throttled(303))]
        begun = time.monotonic()
        with pytest.raises(UnavailableError):
            create(rig.provider())
        assert time.monotonic() - begun < 60
        assert rig.cloud.objects() == []


def test_a_short_throttling_is_waited_out() -> None:
    rig = Rig(ArmCloud(operation_looks=1))
    rig.cloud.faults += [Fault(one, before=throttled(0), times=2) for one in (method("PUT"), poll)]
    create(rig.provider())
    assert rig.cloud.objects() == ["disks/disks/csi-vol-pvc-1"]


def test_an_operation_that_never_ends_is_no_success() -> None:
    """Field case B3."""
    rig = Rig(ArmCloud(operation_looks=FOR_EVER))
    begun = time.monotonic()
    with pytest.raises(OutcomeUnknownError):
        rig.provider().create_volume(asked(), soon(1.5))
    assert time.monotonic() - begun < 30
    with pytest.raises(OutcomeUnknownError):
        rig.provider().create_volume(asked(), soon(1.5))  # it sees the disk in the making
    assert len([request for request in rig.cloud.requests if request.method == "PUT"]) == 1


def test_a_caller_that_goes_away_ends_the_wait() -> None:
    """Field case B3."""
    rig = Rig(ArmCloud(operation_looks=FOR_EVER, retry_after="30"))
    gone = threading.Event()

    def leave_soon(request: Request) -> bool:
        if request.method == "PUT":
            threading.Timer(0.3, gone.set).start()
        return False

    rig.cloud.faults.append(Fault(leave_soon))
    begun = time.monotonic()
    with pytest.raises(OutcomeUnknownError):
        rig.provider().create_volume(asked(), Deadline.after(60, cancelled=gone.is_set))
    assert time.monotonic() - begun < 25


@pytest.mark.parametrize("reaction", [Dropped, error(500, "InternalServerError"), error(503, "ServerBusy")])
@pytest.mark.parametrize("accepted", [False, True])
def test_a_lost_answer_is_asked_for_again(reaction: Any, accepted: bool) -> None:
    rig = Rig(ArmCloud(operation_looks=1))
    fault = Fault(method("PUT"), after=reaction) if accepted else Fault(method("PUT"), before=reaction)
    rig.cloud.faults.append(fault)
    volume = create(rig.provider())
    assert create(rig.provider()) == volume
    assert rig.cloud.objects() == ["disks/disks/csi-vol-pvc-1"]


@pytest.mark.parametrize("reaction", [Dropped, error(500, "InternalServerError")])
def test_answers_that_stay_lost_are_an_unknown_outcome(reaction: Any) -> None:
    """Field case A11: never a final error once a create may have arrived."""
    rig = Rig()
    rig.cloud.faults.append(Fault(method("PUT"), after=reaction, times=FOR_EVER))
    with pytest.raises(OutcomeUnknownError):
        create(rig.provider())
    rig.cloud.faults.clear()
    create(rig.provider())
    assert rig.cloud.objects() == ["disks/disks/csi-vol-pvc-1"]


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (error(403, "AuthorizationFailed"), UnavailableError),
        (error(401, "ExpiredAuthenticationToken"), UnavailableError),
        (error(404, "SubscriptionNotFound"), UnavailableError),
        (error(409, "SkuNotAvailable"), QuotaExceededError),
        (error(400, "InvalidParameter", "is attached to a VM, quota exceeded"), InvalidParameterError),
        (error(409, "SomethingNew"), UnavailableError),
        (Answer(418), UnavailableError),
        (Answer(400), InvalidParameterError),
    ],
)
def test_refusals_are_told_by_their_code(answer: Answer, raised: type[ProviderError]) -> None:
    """Field cases A9, A11: on codes, never on the text of a message."""
    rig = Rig()
    rig.cloud.faults.append(Fault(method("PUT"), before=answer))
    with pytest.raises(raised):
        create(rig.provider())
    assert rig.cloud.objects() == []


@pytest.mark.parametrize(
    "answer",
    [
        error(404, "ResourceGroupNotFound"),
        error(404, "SubscriptionNotFound"),
        error(403, "AuthorizationFailed"),
        error(503, "ServerBusy"),
        throttled(60),
        Answer(404),
    ],
)
def test_what_could_not_be_looked_up_is_not_gone(answer: Answer) -> None:
    """Field case A6: and nothing is deleted on the strength of it."""
    rig = Rig()
    provider = rig.provider()
    volume = create(provider)
    rig.cloud.faults.append(Fault(method("GET"), before=answer, times=FOR_EVER))
    for call in (provider.delete_volume, provider.volume_exists, provider.get_volume_info):
        with pytest.raises(UnavailableError):
            call(volume.handle, soon())
    assert not any(request.method == "DELETE" for request in rig.cloud.requests)


@pytest.mark.parametrize("answer", [error(404, "ResourceNotFound"), Answer(204)])
def test_a_disk_that_is_gone_by_now_is_deleted(answer: Answer) -> None:
    """Field case A6: some answers to DELETE are 204 where others are 404."""
    rig = Rig()
    provider = rig.provider()
    volume = create(provider)
    rig.cloud.faults.append(Fault(method("DELETE"), before=answer))
    provider.delete_volume(volume.handle, soon())


@pytest.mark.parametrize("answer", [error(409, "Conflict"), error(412, "PreconditionFailed")])
def test_conflicts_are_tried_again(answer: Answer) -> None:
    rig = Rig()
    for verb in ("PUT", "PATCH", "DELETE"):
        rig.cloud.faults.append(Fault(method(verb), before=answer, times=2))
    provider = rig.provider()
    volume = create(provider)
    assert provider.expand_volume(volume.handle, 5 * GIB, soon()) == 5 * GIB
    provider.delete_volume(volume.handle, soon())
    assert rig.cloud.objects() == []


def test_a_conflict_with_another_create_finds_what_that_one_made() -> None:
    """Field case A1: two processes, one name; the second PUT would change the first one's disk."""
    rig = Rig(ArmCloud(operation_looks=3))
    overtaken: list[Answer] = []

    def overtake(request: Request) -> bool:
        if request.method == "PUT" and not overtaken:
            overtaken.append(Answer(0))
            body = copy.deepcopy(request.body)
            body["properties"]["diskSizeGB"] = 8
            body["tags"]["caa-csi-created-bytes"] = str(8 * GIB)
            overtaken.append(rig.cloud.handle(replace(request, body=body)))
        return False

    rig.cloud.faults.append(Fault(overtake))
    volume = create(rig.provider(), gib=9)
    assert overtaken[1].status == 202
    assert (volume.size_bytes, volume.created_size_bytes) == (8 * GIB, 8 * GIB)


def test_a_conflict_that_stays_is_an_unknown_outcome() -> None:
    rig = Rig()
    rig.cloud.faults.append(Fault(method("PUT"), before=error(409, "Conflict"), times=FOR_EVER))
    with pytest.raises(OutcomeUnknownError):
        rig.provider().create_volume(asked(), soon(1.5))


@pytest.mark.parametrize("code", ["OperationNotAllowed", "InternalDiskManagementError"])
def test_an_accepted_change_that_fails_is_no_success(code: str) -> None:
    rig = Rig(ArmCloud(operation_looks=1))
    provider = rig.provider()
    volume = create(provider)
    rig.cloud.failing.append(code)
    with pytest.raises(UnavailableError):
        provider.expand_volume(volume.handle, 5 * GIB, soon())
    assert rig.cloud.disk("csi-vol-pvc-1").properties["diskSizeGB"] == 4


@pytest.mark.parametrize("answer", [error(403, "AuthorizationFailed"), error(404, "NotFound")])
def test_operations_that_can_not_be_looked_at_are_followed_by_their_object(answer: Answer) -> None:
    """A role on the resource group alone, or an operation that Azure forgot."""
    rig = Rig(ArmCloud(operation_looks=3))
    rig.cloud.faults.append(Fault(poll, before=answer, times=FOR_EVER))
    provider = rig.provider()
    volume = create(provider)
    assert (
        rig.cloud.resources["disks", "disks", "csi-vol-pvc-1"].properties["provisioningState"] == "Succeeded"
    )
    assert provider.expand_volume(volume.handle, 5 * GIB, soon()) == 5 * GIB
    snapshot = provider.create_snapshot("snap-1", volume.handle, soon())
    assert snapshot.ready
    provider.delete_snapshot(snapshot.handle, soon())
    provider.delete_volume(volume.handle, soon())
    assert rig.cloud.resources == {}
    rig.cloud.failing.append("ZonalAllocationFailed")
    with pytest.raises(UnavailableError):
        create(provider)
    assert rig.cloud.objects() == []


class SlowCredential(FakeCredential):
    """A credential whose token does not come until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """The token."""
        assert self.released.wait(60)
        return super().get_token(*scopes, **options)


def _with(rig: Rig, credential: FakeCredential) -> AzureProvider:
    return AzureProvider(rig.settings(), credential, lambda: transport(rig.cloud.handle))


def test_a_token_that_comes_too_late_sends_nothing() -> None:
    """Field case B3: the call has ended, and a create sent now would come after a later delete."""
    rig = Rig()
    credential = SlowCredential()
    begun = time.monotonic()
    with pytest.raises(DeadlineError):
        _with(rig, credential).create_volume(asked(), soon(0.3))
    assert time.monotonic() - begun < 30
    credential.released.set()
    time.sleep(0.1)
    assert rig.cloud.requests == []


class NoCredential(FakeCredential):
    """A credential that has no token to give."""

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """None."""
        raise ClientAuthenticationError(f"no token for {scopes} {options}")


def test_without_credentials_nothing_is_known() -> None:
    rig = Rig()
    provider = _with(rig, NoCredential())
    for call in (provider.delete_volume, provider.volume_exists):
        with pytest.raises(UnavailableError, match="ClientAuthenticationError"):
            call(provider.handle_for_name("pvc-1"), soon())
    with pytest.raises(UnavailableError):
        create(provider)


def test_an_endpoint_that_nobody_serves_is_unavailable() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"https://127.0.0.1:{nobody.getsockname()[1]}"
        provider = AzureProvider(Rig().settings(endpoint=endpoint), FakeCredential())
        with pytest.raises(UnavailableError):
            create(provider)


def test_a_server_that_never_answers_ends_with_the_deadline() -> None:
    """Field case B3."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"https://127.0.0.1:{silent.getsockname()[1]}"
        provider = AzureProvider(Rig().settings(endpoint=endpoint), FakeCredential())
        begun = time.monotonic()
        with pytest.raises((DeadlineError, UnavailableError)):
            provider.get_volume_info(provider.handle_for_name("pvc-1"), soon(0.5))
        assert time.monotonic() - begun < 10  # three answers of 5 s would be waited for


def test_another_clouds_certificate_is_not_trusted(tmp_path: Path) -> None:
    """No token goes to whoever answers."""
    rig = Rig()
    with serving(tmp_path) as server:
        server.add(rig.cloud)
        provider = AzureProvider(rig.settings(endpoint=server.endpoint), FakeCredential())
        with pytest.raises(UnavailableError):
            create(provider)
    assert rig.cloud.requests == []


Change = Callable[[AzureProvider, str], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda provider, handle: provider.expand_volume(handle, 9 * GIB, soon()),
        lambda provider, handle: provider.modify_volume(handle, {"azureDiskSKU": "Premium_LRS"}, soon()),
        lambda provider, handle: provider.set_published_node(handle, "node/a", "", soon()),
        lambda provider, handle: provider.create_snapshot("snap-1", handle, soon()),
    ],
)
@pytest.mark.parametrize("matches", [anything, poll])
def test_changes_survive_one_lost_answer_each(change: Change, matches: Callable[[Any], bool]) -> None:
    rig = Rig(ArmCloud(operation_looks=1))
    provider = rig.provider()
    handle = create(provider).handle
    rig.cloud.faults.append(Fault(matches, after=Dropped))
    first = change(provider, handle)
    assert change(rig.provider(), handle) == first
    assert not rig.cloud.violations
