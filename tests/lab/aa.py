"""The stand-in for the Attestation Agent's runtime measurement: the event log and the register of its events.

As in guest-components (``attestation-agent/src/eventlog``), but stricter about what an event may be.
:func:`start`, :func:`stop`, :func:`set_fault` and :func:`events` run in the guest, called from the host
through :class:`tests.lab.aa_control.Aa`; a test on the host may serve the handlers itself.
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from agent.ttrpc import Handler, Server, TtrpcError
from proto import aa_pb2

SOCKET: Final = "/run/confidential-containers/attestation-agent/attestation-agent.sock"

Fault = Literal["none", "not-supported", "not-enabled", "refuse", "hang", "die-before", "die-after"]
"""``die-after``: measures, then dies before it answers."""

_TAG: Final = 0x4141454C
_INTERNAL: Final = 13
_RESULTS: Final = {"not-supported": aa_pb2.NOT_SUPPORTED, "not-enabled": aa_pb2.NOT_ENABLED}
_STATE: Final = Path("/run/lab-aa")


def digest_of(event: str) -> bytes:
    """What a register is extended with for the event ``domain operation content``."""
    data = event.encode()
    return hashlib.sha256(struct.pack("<II", _TAG, len(data)) + data).digest()


def register_after(events: list[str]) -> bytes:
    """The register that was extended with these events, in this order, and nothing else."""
    register = bytes(32)
    for event in events:
        register = hashlib.sha256(register + digest_of(event)).digest()
    return register


class RuntimeMeasurement:
    """Serves the call. Its log and its fault are files in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._register = bytes(32)
        folder.mkdir(exist_ok=True)

    def handlers(self) -> dict[tuple[str, str], Handler]:
        return {("attestation_agent.AttestationAgentService", "ExtendRuntimeMeasurement"): self._extend}

    def set_fault(self, fault: Fault) -> None:
        (self._folder / "fault").write_text(fault)

    def events(self) -> list[str]:
        """The log, which must explain the register."""
        log = self._folder / "events"
        events = log.read_text().splitlines() if log.exists() else []
        register = self._folder / "register"
        assert register_after(events) == (register.read_bytes() if register.exists() else bytes(32))
        return events

    def _extend(self, payload: bytes) -> bytes:
        request = aa_pb2.ExtendRuntimeMeasurementRequest.FromString(payload)
        file = self._folder / "fault"
        fault = file.read_text() if file.exists() else "none"
        if fault == "refuse":
            raise TtrpcError(_INTERNAL, "[ERROR:attestation-agent] AA extend runtime measurement failed")
        if fault == "hang":
            threading.Event().wait()
        if fault == "die-before":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault in _RESULTS:
            return aa_pb2.ExtendRuntimeMeasurementResponse(Result=_RESULTS[fault]).SerializeToString()
        self._log(request)
        if fault == "die-after":
            os.kill(os.getpid(), signal.SIGKILL)
        return aa_pb2.ExtendRuntimeMeasurementResponse(Result=aa_pb2.OK).SerializeToString()

    def _log(self, request: aa_pb2.ExtendRuntimeMeasurementRequest) -> None:
        parts = (request.Domain, request.Operation, request.Content)
        clean = all(part and part.isascii() and part.isprintable() for part in parts)
        if not clean or " " in parts[0] + parts[1] or request.HasField("RegisterIndex"):
            raise TtrpcError(_INTERNAL, "that is no event")
        with self._lock, (self._folder / "events").open("a") as log:
            event = " ".join(parts)
            log.write(f"{event}\n")
            self._register = hashlib.sha256(self._register + digest_of(event)).digest()
            (self._folder / "register").write_bytes(self._register)


def start() -> None:
    """Start the process and wait until its socket is there."""
    Path(SOCKET).parent.mkdir(parents=True, exist_ok=True)
    for name in ("fault", "events", "register"):
        (_STATE / name).unlink(missing_ok=True)
    told, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.close(told)
            quiet = os.open("/run/lab-aa.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            server = Server(SOCKET, RuntimeMeasurement(_STATE).handlers())
            server.start()
            os.write(ready, b"ready")
            os.close(ready)
            signal.sigwait({signal.SIGTERM})
            server.stop(timeout=1.0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    os.close(ready)
    if os.read(told, 5) != b"ready":
        raise RuntimeError("the stand-in for the Attestation Agent did not start; see /run/lab-aa.log")
    os.close(told)
    (_STATE / "pid").write_text(str(pid))


def stop() -> None:
    """End the process and wait for its end."""
    Path(SOCKET).unlink(missing_ok=True)
    with suppress(ProcessLookupError):  # it has died, and may be buried at any moment
        process = os.pidfd_open(int((_STATE / "pid").read_text()))
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], 50)[0]:
            raise TimeoutError("the stand-in for the Attestation Agent did not end")
        os.close(process)


def set_fault(*, fault: Fault) -> None:
    RuntimeMeasurement(_STATE).set_fault(fault)


def events() -> list[str]:
    return RuntimeMeasurement(_STATE).events()
