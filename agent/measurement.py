"""Opened and closed volumes in the VM's runtime measurement, where remote verifiers can see them.

The Attestation Agent, a process of the same VM (guest-components), extends a register of the hardware with
each event and keeps the log that explains it. What is measured: ``docs/measurement.md``.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from agent import ttrpc
from agent.errors import Refused, Unavailable
from agent.policy import Encryption, Measurement
from agent.volume_lock import STATE_ROOT
from proto import aa_pb2

DEFAULT_SOCKET: Final = Path("/run/confidential-containers/attestation-agent/attestation-agent.sock")
DOMAIN: Final = "confidential-csi"

_VERSION: Final = 1
_SERVICE: Final = "attestation_agent.AttestationAgentService"
_METHOD: Final = "ExtendRuntimeMeasurement"
_TIMEOUT: Final = 10.0
"""Seconds, as the data hub waits for the same call."""
#: Result of the call to why nothing was measured.
_ABSENCE: Final = {
    aa_pb2.NOT_SUPPORTED: "this VM's hardware has no runtime measurement",
    aa_pb2.NOT_ENABLED: "the Attestation Agent's event log is off (enable_eventlog in its configuration)",
}
#: How Go and Rust ttrpc servers answer a method that they do not have.
_UNKNOWN_METHOD: Final = (ttrpc.Code.UNIMPLEMENTED, ttrpc.Code.INVALID_ARGUMENT)

_log = logging.getLogger(__name__)


class Operation(StrEnum):
    """What happened to a volume."""

    OPEN = "volume-open"
    CLOSE = "volume-close"


@dataclass(frozen=True)
class VolumeEvent:
    """What is measured of an open volume. Of bounded size, and nothing of it is secret."""

    volume: str
    """Its name in this VM, ``vol-<index>``: the host's numbering, which pairs open with close."""
    mount_point: str
    """Where the container wants it that had it opened."""
    encryption: Encryption
    key_id: str | None
    """The KBS path of the key; None without encryption, like ``luks_uuid``."""
    luks_uuid: str | None
    read_only: bool

    def content(self) -> str:
        """One line of JSON in ASCII, its members sorted by name: the same text for the same event."""
        members = {
            "encryption": self.encryption.value,
            "key": self.key_id,
            "luks-uuid": self.luks_uuid,
            "mount-point": self.mount_point,
            "read-only": self.read_only,
            "version": _VERSION,
            "volume": self.volume,
        }
        return json.dumps(members, sort_keys=True, separators=(",", ":"))


class Measurements:
    """Extends the runtime measurement, and remembers of which open volumes it did.

    A note for each lies in the guest's memory, beyond the life of this process. It is written after the
    measurement and removed after that of the close: an agent that is killed in between measures twice.
    """

    def __init__(self, socket: Path = DEFAULT_SOCKET, notes: Path = STATE_ROOT) -> None:
        self._socket = socket
        self._notes = notes

    def opened(self, event: VolumeEvent, demand: Measurement) -> None:
        """Measure that a volume is open, unless it was measured since it was opened.

        Raises:
            Refused: this VM measures nothing, and ``demand`` does not allow that (``measurement-required``).
            Unavailable: the Attestation Agent failed (``measurement-failed``). It may have measured it.
        """
        note = self._note(event.volume)
        if note.exists():
            return
        absence = self._extend(Operation.OPEN, event.content())
        if absence is None:
            _write(note, event.content())
        elif demand is Measurement.REQUIRED:
            raise Refused(
                "measurement-required",
                f"the policy demands that opened volumes are measured, but {absence}",
            )

    def closed(self, name: str) -> None:
        """Measure that a volume is closed, if its opening was measured. It is closed whatever comes of it."""
        note = self._note(name)
        try:
            content = note.read_text()
        except FileNotFoundError:
            return
        try:
            absence = self._extend(Operation.CLOSE, content)
        except Unavailable as error:
            absence = str(error)
        if absence is not None:
            _log.warning("that %s was closed is not measured: %s", name, absence)
        note.unlink()

    def _note(self, name: str) -> Path:
        return self._notes / f"{name}.measured"

    def _extend(self, operation: Operation, content: str) -> str | None:
        """None when it is measured; else why this VM measures nothing.

        Raises:
            Unavailable: ``measurement-failed``.
        """
        if not self._socket.exists():
            return f"there is no Attestation Agent at {self._socket}"
        request = aa_pb2.ExtendRuntimeMeasurementRequest(
            Domain=DOMAIN, Operation=operation.value, Content=content
        )
        try:
            with ttrpc.Client(str(self._socket)) as client:
                answer = client.call(_SERVICE, _METHOD, request.SerializeToString(), _TIMEOUT)
            result = aa_pb2.ExtendRuntimeMeasurementResponse.FromString(answer).Result
        except ttrpc.TtrpcError as error:
            if error.code in _UNKNOWN_METHOD:
                return "the Attestation Agent does not know runtime measurements; check its version"
            raise _failed(
                operation, f"it answered with status {error.code}; the reason is in its log"
            ) from None
        except ttrpc.TtrpcTimeout:
            raise _failed(operation, f"it did not answer within {_TIMEOUT:g} s") from None
        except ttrpc.TtrpcConnectionError as error:
            raise _failed(operation, str(error)) from None
        except DecodeError:
            raise _failed(operation, "its answer can't be read") from None
        if result == aa_pb2.OK:
            return None
        if result not in _ABSENCE:
            raise _failed(operation, f"its answer has the unknown result {result}")
        return _ABSENCE[result]


def _write(note: Path, content: str) -> None:
    scratch = note.with_suffix(".new")
    try:
        scratch.write_text(content)
        scratch.replace(note)
    except OSError as error:
        raise Unavailable("state-unwritable", f"cannot write {note}: {error.strerror}") from None


def _failed(operation: Operation, why: str) -> Unavailable:
    return Unavailable(
        "measurement-failed", f"the Attestation Agent could not measure {operation.value}: {why}"
    )
