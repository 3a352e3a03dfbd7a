"""Calls to Azure Resource Manager: bounded by the caller's deadline, repeated here and nowhere else.

The SDK's own retries are off (they sleep as long as Azure says, whatever the caller's deadline), so is its
poller's thread: an accepted operation is followed here, and one that is not finished is not a success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from azure.core.credentials import TokenCredential
from azure.core.pipeline import policies
from azure.core.pipeline.transport import HttpTransport
from azure.core.rest import HttpRequest
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.core.policies import ARMChallengeAuthenticationPolicy

from providers.azure.failures import (
    Failed,
    NoAnswer,
    NotSent,
    Refused,
    Throttled,
    as_provider_error,
    retry_after,
)
from providers.azure.observed import ObservedRequests
from providers.azure.sending import Json, Operation, Result, Sending, accepted, pause, send
from providers.azure.settings import Timings
from providers.deadline import Deadline
from providers.errors import DeadlineError, OutcomeUnknownError
from providers.observation import observer, waiting

_ATTEMPTS = 3
_TERMINAL = frozenset({"succeeded", "failed", "canceled"})
_VERBS = {"begin_create_or_update": "put", "begin_update": "patch", "begin_delete": "delete"}


class Arm:
    """The disks and snapshots of one subscription. Thread-safe; connections and tokens are reused."""

    def __init__(
        self,
        subscription: str,
        endpoint: str,
        credential: TokenCredential,
        timings: Timings,
        transport: HttpTransport[Any, Any] | None,
    ) -> None:
        self.timings = timings
        options: Json = {} if transport is None else {"transport": transport}
        self._client = ComputeManagementClient(
            credential,
            subscription,
            endpoint,
            policies=[
                ObservedRequests(),
                policies.RequestIdPolicy(),
                policies.UserAgentPolicy("confidential-csi"),
                policies.ProxyPolicy(),
                policies.ContentDecodePolicy(),
                ARMChallengeAuthenticationPolicy(credential, f"{endpoint}/.default"),
                policies.CustomHookPolicy(),
            ],
            **options,
        )
        self._operations: Mapping[str, Any] = {
            "disks": self._client.disks,
            "snapshots": self._client.snapshots,
        }

    def get(self, kind: str, group: str, name: str, deadline: Deadline) -> Json | None:
        """The disk or snapshot (``kind``: ``disks``, ``snapshots``); None if Azure was asked and has none.

        Raises:
            UnavailableError: it could not be asked.
        """
        try:
            found: Json = self._ask(
                f"reading {name}",
                f"{kind}.get",
                lambda sending: self._operations[kind].get(group, name, **sending.options).as_dict(),
                deadline,
            )
        except Refused as error:
            if error.not_found:
                return None
            raise as_provider_error(f"reading {name}", error) from error
        return found

    def list(self, kind: str, group: str, deadline: Deadline) -> Sequence[Json]:
        """All disks or snapshots of the resource group.

        Raises:
            UnavailableError: it could not be asked.
        """

        def pages(sending: Sending) -> Sequence[Json]:
            found = self._operations[kind].list_by_resource_group(group, **sending.options)
            return [item.as_dict() for item in found]

        try:
            return self._ask(f"listing {kind}", f"{kind}.list", pages, deadline)
        except Refused as error:
            raise as_provider_error(f"listing {kind}", error) from error

    def read(self, path: str, api_version: str, deadline: Deadline) -> tuple[Json, str]:
        """What Azure has at a path of another kind, and the ``Date`` of its answer; asked once.

        Raises:
            Refused: Azure answered with an error. UnavailableError: it could not be asked.
        """

        def get(sending: Sending) -> tuple[Json, str]:
            options = dict(sending.options)
            options.pop("api_version", None)
            request = HttpRequest("GET", path, params={"api-version": api_version})
            response = self._client.send_request(request, **options)
            response.raise_for_status()
            return response.json(), response.headers.get("Date", "")

        try:
            return send(get, self.timings.answer, deadline)
        except (NotSent, NoAnswer) as error:
            raise as_provider_error(f"reading {path}", error) from error

    def put(self, kind: str, group: str, name: str, body: Json, deadline: Deadline) -> None:
        """Create the object, and wait until it is made. Doing it twice is doing it once.

        A conflict is the caller's to look into: the object that is there then may be what another call made.

        Raises:
            Refused: nothing was done. UnavailableError: nothing was sent. Failed: it came to nothing.
            OutcomeUnknownError: it may have been done, or is not finished.
        """
        self._change(f"creating {name}", "begin_create_or_update", kind, (group, name, body), deadline)

    def patch(self, kind: str, group: str, name: str, body: Json, deadline: Deadline) -> None:
        """Change the object, and wait until it is changed.

        Raises:
            As :meth:`put`.
        """
        self._change(f"changing {name}", "begin_update", kind, (group, name, body), deadline)

    def delete(self, kind: str, group: str, name: str, deadline: Deadline) -> None:
        """Delete the object, and wait until it is gone; one that is gone already is a success.

        Raises:
            As :meth:`put`.
        """
        try:
            self._change(f"deleting {name}", "begin_delete", kind, (group, name), deadline)
        except Refused as error:
            if not error.not_found:
                raise

    def _ask(
        self, action: str, operation: str, call: Callable[[Sending], Result], deadline: Deadline
    ) -> Result:
        """A call that changes nothing.

        Raises:
            Refused: Azure answered with an error. UnavailableError: it could not be asked.
        """
        pauses = self.pauses()
        attempt = 0
        while True:
            try:
                return send(call, self.timings.answer, deadline)
            except Throttled as error:
                failure: Refused | NotSent | NoAnswer = error
                wanted = error.retry_after
            except (NotSent, NoAnswer) as error:
                attempt += 1
                if attempt == _ATTEMPTS:
                    raise as_provider_error(action, error) from error
                failure = error
                wanted = error.retry_after if isinstance(error, NoAnswer) else None
            if not pause(next(pauses), wanted, deadline):
                raise as_provider_error(action, failure) from failure
            observer().call_repeated(operation)

    def _change(
        self, action: str, method: str, kind: str, arguments: tuple[object, ...], deadline: Deadline
    ) -> None:
        def call(sending: Sending) -> Operation:
            return accepted(getattr(self._operations[kind], method), arguments, sending.options)

        repeated = method != "begin_create_or_update"
        named = f"{kind}.{_VERBS[method]}"
        operation = self._begin(action, named, call, deadline, repeat_conflicts=repeated)
        if not operation.url:
            return
        with waiting(named):
            if not self._follow(action, operation, deadline):
                group, name = str(arguments[0]), str(arguments[1])
                self._watch(action, kind, group, name, deadline, gone_is_done=method == "begin_delete")

    def _begin(
        self,
        action: str,
        named: str,
        call: Callable[[Sending], Operation],
        deadline: Deadline,
        *,
        repeat_conflicts: bool,
    ) -> Operation:
        pauses = self.pauses()
        attempt = 0
        maybe_done = False
        while True:
            try:
                return send(call, self.timings.answer, deadline)
            except Throttled as error:
                failure: Exception = error
                wanted = error.retry_after
            except Refused as error:
                if not (error.conflict and repeat_conflicts):
                    raise
                failure, wanted = error, error.retry_after
                maybe_done = True  # by whoever is at it; the repeated call will tell
            except (NotSent, NoAnswer) as error:
                maybe_done = maybe_done or isinstance(error, NoAnswer)
                attempt += 1
                failure = error
                wanted = error.retry_after if isinstance(error, NoAnswer) else None
            except DeadlineError as error:
                raise OutcomeUnknownError(f"{action}: no answer before the deadline; call again") from error
            if attempt == _ATTEMPTS or not pause(next(pauses), wanted, deadline):
                if maybe_done:
                    raise OutcomeUnknownError(
                        f"{action}: {failure}; it may have been done, call again"
                    ) from failure
                raise as_provider_error(action, failure) from failure
            observer().call_repeated(named)

    def _follow(self, action: str, operation: Operation, deadline: Deadline) -> bool:
        """Wait until the operation is over; False if Azure does not tell (any more) how it goes."""
        pauses = self.pauses()
        wanted = operation.retry_after
        url = operation.url
        last: Exception | None = None
        while True:
            if not pause(next(pauses), wanted, deadline):
                raise OutcomeUnknownError(
                    f"{action}: Azure accepted it and is not done{f' ({last})' if last else ''}; call again"
                ) from last
            try:
                state = send(lambda sending: self._look(url, sending), self.timings.answer, deadline)
            except (Throttled, NoAnswer) as error:
                last, wanted = error, error.retry_after
                continue
            except (Refused, NotSent) as error:
                last, wanted = error, None
                if isinstance(error, Refused):
                    return False
                continue
            except DeadlineError as error:
                raise OutcomeUnknownError(
                    f"{action}: accepted, not done at the deadline; call again"
                ) from error
            last, wanted = None, state.retry_after
            if state.url:
                continue
            status = str(state.body.get("status", "Succeeded"))
            if status.lower() != "succeeded":
                error_body = state.body.get("error") or {}
                raise Failed(str(error_body.get("code", "")) or status)
            return True

    def _watch(
        self, action: str, kind: str, group: str, name: str, deadline: Deadline, *, gone_is_done: bool
    ) -> None:
        """Wait until the object itself shows that nothing is being done to it.

        Operations are the subscription's, not the resource group's, so a role there need not cover them.
        """
        pauses = self.pauses()
        while True:
            document = self.get(kind, group, name, deadline)
            if document is None:
                if gone_is_done:
                    return
                raise OutcomeUnknownError(f"{action}: the object is gone; call again")
            state = str(document.get("properties", {}).get("provisioningState", ""))
            if state.lower() in _TERMINAL:
                if state.lower() == "succeeded" and not gone_is_done:
                    return
                raise Failed(state)
            if not pause(next(pauses), None, deadline):
                raise OutcomeUnknownError(f"{action}: Azure accepted it and is not done; call again")

    def _look(self, url: str, sending: Sending) -> Operation:
        options = dict(sending.options)
        options.pop("api_version", None)
        response = self._client.send_request(HttpRequest("GET", url), **options)
        response.raise_for_status()
        body: Json = response.json() if response.content else {}
        # What a Location header names has no status in its answer: it is 202 until the operation is over.
        status = str(body.get("status", ""))
        over = status.lower() in _TERMINAL if status else response.status_code != 202
        return Operation(
            body if status else {},
            "" if over else url,
            retry_after(response.headers.get("Retry-After")),
        )

    def pauses(self) -> Iterator[float]:
        """Seconds between attempts, longer and longer."""
        seconds = self.timings.first_pause
        while True:
            yield seconds
            seconds = min(seconds * 2, self.timings.longest_pause)
