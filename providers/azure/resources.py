"""Finding disks and snapshots, and telling whose they are by their tags."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from azure.core.credentials import TokenCredential
from azure.core.pipeline.transport import HttpTransport

from providers.azure import handles
from providers.azure.calls import Arm
from providers.azure.places import Place
from providers.azure.records import SETTLED, DiskRecord, SnapshotRecord
from providers.azure.sending import Json, pause
from providers.azure.settings import Settings
from providers.azure.tags import SNAPSHOT, VOLUME, Facts
from providers.deadline import Deadline
from providers.errors import CorruptStateError, OutcomeUnknownError
from providers.names import backend_name

_log = logging.getLogger(__name__)


class Subscriptions:
    """One long-lived client for each subscription."""

    def __init__(
        self,
        settings: Settings,
        credential: TokenCredential,
        transport: Callable[[], HttpTransport[Any, Any]] | None,
    ) -> None:
        self.settings = settings
        self._credential = credential
        self._transport = transport
        self._lock = threading.Lock()
        self._clients: dict[str, Arm] = {}

    def arm(self, place: Place) -> Arm:
        """The client of the place's subscription."""
        subscription = place.folded[0]
        with self._lock:
            if subscription not in self._clients:
                self._clients[subscription] = Arm(
                    subscription,
                    self.settings.endpoint,
                    self._credential,
                    self.settings.timings,
                    self._transport() if self._transport is not None else None,
                )
            return self._clients[subscription]


class _Record(Protocol):
    @property
    def place(self) -> Place: ...
    @property
    def name(self) -> str: ...
    @property
    def provisioning_state(self) -> str: ...
    @property
    def facts(self) -> Facts: ...


Record = TypeVar("Record", bound=_Record)


class Resources(Generic[Record]):
    """Objects of one kind, in all resource groups."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        kind: str,
        prefix: str,
        tag: str,
        read: Callable[[Place, Json], Record],
    ) -> None:
        self.subscriptions = subscriptions
        self.kind = kind
        self._prefix = prefix
        self._tag = tag
        self._read = read

    def look(self, place: Place, name: str, deadline: Deadline) -> Record | None:
        """Whatever has that name in Azure, case aside, whosever it is."""
        document = self.subscriptions.arm(place).get(self.kind, place.group, name, deadline)
        return None if document is None else self._read(place, document)

    def find(self, place: Place, name: str, deadline: Deadline) -> Record | None:
        """The object of that name, if it is the one that the name stands for.

        Raises:
            CorruptStateError: it has a name of ours and no tag that says whose it is.
        """
        record = self.look(place, name, deadline)
        if record is not None:
            return record if self.is_named(record, name) else None
        if handles.is_hashed(self._prefix, name):
            return self._of_go_driver(place, name, deadline)
        return None

    def is_named(self, record: Record, name: str) -> bool:
        """Whether ``name`` stands for this object.

        Azure ignores case, and the Go driver replaces and cuts, so an object of the name can be another's.

        Raises:
            CorruptStateError: it has a name of ours and no tag that says whose it is.
        """
        if not name.lower().startswith(self._prefix):
            return True
        csi_name = record.facts.name
        if not csi_name:
            raise CorruptStateError(
                f"{name} exists in Azure without the tag {self._tag}, so it is left alone; set the tag to "
                "the volume's name if it is one, or delete it"
            )
        return name in (backend_name(self._prefix, csi_name), handles.go_name(self._prefix, csi_name))

    def list(self, place: Place, deadline: Deadline) -> list[Record]:
        """All objects of the resource group that a driver of this kind made."""
        found = []
        for document in self.subscriptions.arm(place).list(self.kind, place.group, deadline):
            if self._tag not in (document.get("tags") or {}):
                continue
            try:
                record = self._read(place, document)
                if self.is_named(record, record.name):
                    found.append(record)
            except CorruptStateError as error:
                # One object that a person must look at doesn't hide the others.
                _log.warning("left out of a listing: %s", error)
        return found

    def settled(self, record: Record | None, deadline: Deadline) -> Record | None:
        """The object once nothing is being done to it; None if it is gone by then.

        Raises:
            OutcomeUnknownError: something still is as the deadline draws near.
        """
        if record is None:
            return None
        place, name = record.place, record.name
        pauses = self.subscriptions.arm(place).pauses()
        while record is not None and record.provisioning_state not in SETTLED:
            if not pause(next(pauses), None, deadline):
                raise OutcomeUnknownError(f"{name} is {record.provisioning_state} in Azure; call again")
            record = self.look(place, name, deadline)
        return record

    def wait_until(
        self, place: Place, name: str, seen: Callable[[Record], bool], deadline: Deadline
    ) -> Record:
        """The object as it is once a change that was made shows: answers can lag behind.

        Raises:
            OutcomeUnknownError: it does not show.
        """
        pauses = self.subscriptions.arm(place).pauses()
        until = time.monotonic() + self.subscriptions.settings.timings.consistency
        while True:
            record = self.look(place, name, deadline)
            if record is not None and seen(record):
                return record
            if time.monotonic() >= until or not pause(next(pauses), None, deadline):
                raise OutcomeUnknownError(f"{name} does not show the change that Azure made; call again")

    def _of_go_driver(self, place: Place, name: str, deadline: Deadline) -> Record | None:
        """An object whose CSI name did not fit: the Go driver gave it another name than this driver does."""
        for record in self.list(place, deadline):
            if backend_name(self._prefix, record.facts.name) == name:
                return record
        return None


def disks(subscriptions: Subscriptions) -> Resources[DiskRecord]:
    """The disks."""
    return Resources(subscriptions, "disks", handles.VOLUME_PREFIX, VOLUME, DiskRecord.read)


def snapshots(subscriptions: Subscriptions) -> Resources[SnapshotRecord]:
    """The snapshots."""
    return Resources(subscriptions, "snapshots", handles.SNAPSHOT_PREFIX, SNAPSHOT, SnapshotRecord.read)
