"""The stand-in for the Confidential Data Hub: a process in the guest that serves the real ttrpc services.

The functions :func:`start`, :func:`stop`, :func:`set_fault`, :func:`calls` and :func:`log` run in the guest,
called from the host through :class:`tests.lab.cdh_control.Cdh`.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import sys
import threading
import time
from io import FileIO
from pathlib import Path
from typing import Any, Final, Literal

from agent.ttrpc import Handler, Server, TtrpcError
from proto import cdh_pb2
from tests.lab.cdh_storage import KNOWN_OPTIONS, Dialect, StorageError, secure_mount
from tests.lab.frames import read_frame, unpack, write_frame
from tests.lab.guest_server import port_device

SOCKET: Final = "/run/confidential-containers/cdh.sock"

Fault = Literal["none", "refuse", "hang", "late", "held", "die-after"]
"""``refuse``: as when KBS does. ``hang``: never answers. ``late``: works, but only after ``seconds``.
``held``: works, but only once the fault is set anew.
``die-after``: does the work, then dies before it answers."""

_INTERNAL: Final = 13
_KBS_PORT: Final = "kbs"
_KBS_TIMEOUT: Final = 30.0

_STATE: Final = Path("/run/lab-cdh")
_CALLS: Final = _STATE / "calls.jsonl"
_FAULTS: Final = _STATE / "faults.json"
_LOG: Final = _STATE / "log"
_PID: Final = _STATE / "pid"


class _KeyBroker:
    """KBS, reached over a port that nobody else can open meanwhile."""

    def __init__(self) -> None:
        self._port = FileIO(port_device(_KBS_PORT), "r+")
        self._lock = threading.Lock()
        # Ids of an earlier process must not come again: its answer may still be under way.
        self._ids = itertools.count(time.monotonic_ns())

    def fetch(self, path: str) -> bytes:
        with self._lock:
            poll = select.poll()
            poll.register(self._port, select.POLLOUT)
            give_up = time.monotonic() + _KBS_TIMEOUT
            # It hangs up until the guest has noticed that the host has connected.
            while poll.poll(1000) != [(self._port.fileno(), select.POLLOUT)]:
                if time.monotonic() > give_up:
                    raise StorageError("the key broker is unreachable")
                time.sleep(0.01)
            number = next(self._ids)
            write_frame(self._port, {"id": number, "path": path})
            while True:
                poll.modify(self._port, select.POLLIN)
                if not poll.poll(_KBS_TIMEOUT * 1000):
                    raise StorageError("the key broker does not answer")
                answer = read_frame(self._port)
                if answer["id"] == number:
                    break
        if "key" not in answer:
            raise StorageError(f"the key broker answered {answer['status']} for {path}")
        return unpack(answer["key"])


class _Hub:
    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._broker = _KeyBroker()

    def handlers(self) -> dict[tuple[str, str], Handler]:
        return {
            ("api.GetResourceService", "GetResource"): self._get_resource,
            ("api.SecureMountService", "SecureMount"): self._secure_mount,
        }

    def _get_resource(self, payload: bytes) -> bytes:
        request = cdh_pb2.GetResourceRequest.FromString(payload)
        _record({"method": "GetResource", "path": request.ResourcePath})
        fault = _before("GetResource", "Get Resource failed")
        try:
            scheme, _, path = request.ResourcePath.partition(":///")
            if scheme != "kbs":
                raise StorageError(f"{request.ResourcePath!r} is not of the form kbs:///repository/type/tag")
            key = self._broker.fetch(path)
        except StorageError as error:
            raise _failure("Get Resource failed", error) from None
        _after(fault)
        return cdh_pb2.GetResourceResponse(Resource=key).SerializeToString()

    def _secure_mount(self, payload: bytes) -> bytes:
        request = cdh_pb2.SecureMountRequest.FromString(payload)
        options = dict(request.options)
        _record(
            {
                "method": "SecureMount",
                "volume_type": request.volume_type,
                "options": options,
                "unknown_options": sorted(set(options) - KNOWN_OPTIONS),
                "flags": list(request.flags),
                "mount_point": request.mount_point,
            }
        )
        fault = _before("SecureMount", "Secure Mount failed")
        try:
            if request.volume_type != "block-device":
                raise StorageError(f"unknown volume type {request.volume_type!r}")
            secure_mount(options, request.mount_point, dialect=self._dialect, fetch_key=self._broker.fetch)
        except StorageError as error:
            raise _failure("Secure Mount failed", error) from None
        _after(fault)
        return cdh_pb2.SecureMountResponse().SerializeToString()


def _record(call: dict[str, Any]) -> None:
    with _CALLS.open("a") as file:
        file.write(json.dumps(call) + "\n")


def _failure(message: str, detail: object) -> TtrpcError:
    print(f"{message}: {detail}", flush=True)
    return TtrpcError(_INTERNAL, f"[CDH] [ERROR]: {message}")


def _before(method: str, failure: str) -> Fault:
    fault, seconds = _fault(method)
    if fault == "refuse":
        raise _failure(failure, "a fault was asked for")
    if fault == "hang":
        threading.Event().wait()
    if fault == "late":
        time.sleep(seconds)
    while fault == "held" and _fault(method)[0] == "held":
        time.sleep(0.01)
    return fault


def _fault(method: str) -> tuple[Fault, float]:
    fault, seconds = json.loads(_FAULTS.read_text()).get(method, ("none", 0.0))
    return fault, seconds


def _after(fault: Fault) -> None:
    if fault == "die-after":
        os.kill(os.getpid(), signal.SIGKILL)


def _serve(dialect: Dialect, ready: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    server = Server(SOCKET, _Hub(dialect).handlers())
    server.start()
    os.write(ready, b"ready")
    os.close(ready)
    signal.sigwait({signal.SIGTERM})
    server.stop(timeout=1.0)


def start(*, dialect: Dialect = "detached-header") -> None:
    """Start the process and wait until its socket is there.

    Raises:
        RuntimeError: it did not come up, or one runs already; its log is in the message.
    """
    _STATE.mkdir(exist_ok=True)
    Path(SOCKET).parent.mkdir(exist_ok=True)
    if not _FAULTS.exists():
        _FAULTS.write_text("{}")
    told, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setsid()
            os.close(told)
            own_log = os.open(_LOG, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            os.dup2(own_log, 1)
            os.dup2(own_log, 2)
            _serve(dialect, ready)
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(ready)
    if os.read(told, 5) != b"ready":
        raise RuntimeError(f"the CDH stand-in did not start:\n{log()}")
    _PID.write_text(str(pid))


def stop(*, number: int = signal.SIGTERM) -> None:
    """End the process by a signal and wait for its end; killed, it leaves its socket behind."""
    process = os.pidfd_open(int(_PID.read_text()))
    signal.pidfd_send_signal(process, number)
    if not select.select([process], [], [], 50)[0]:
        raise TimeoutError("the CDH stand-in did not end")
    os.close(process)


def set_fault(*, method: str, fault: Fault, seconds: float = 0.0) -> None:
    """From the next call of ``method`` (``GetResource``, ``SecureMount``) on, until set anew."""
    _set_faults(json.loads(_FAULTS.read_text()) | {method: (fault, seconds)})


def _set_faults(faults: dict[str, Any]) -> None:
    temporary = _FAULTS.with_suffix(".new")  # it is read meanwhile
    temporary.write_text(json.dumps(faults))
    temporary.rename(_FAULTS)


def mend() -> None:
    """No faults from now on."""
    if _FAULTS.exists():
        _set_faults({})


def calls() -> list[dict[str, Any]]:
    """Every request so far, without keys."""
    return [json.loads(line) for line in _CALLS.read_text().splitlines()] if _CALLS.exists() else []


def log() -> str:
    """CDH's own log: the reasons that callers do not get."""
    return _LOG.read_text()
