"""Connections to one libvirt host, and calls over them that end in time.

A call of libvirt can't be interrupted: it returns when the daemon answers, or when the connection is found
dead. So each operation runs in a thread of its own, its caller waits no longer than the deadline, and a
connection on which keep-alive messages go unanswered is closed, which ends the calls that hang on it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Generic, TypeVar

import libvirt

from providers import observation
from providers.deadline import Deadline
from providers.errors import UnavailableError
from providers.libvirt.failures import code_of, translated
from providers.observation import Outcome, waiting

Result = TypeVar("Result")
Connect = Callable[[], libvirt.virConnect]
"""Opens a connection; raises ``libvirt.libvirtError``."""

_KEEP_ALIVE_SECONDS = 5
_KEEP_ALIVE_MISSED = 3
_POLL_SECONDS = 0.25
_MOST_AT_A_TIME = 10
_MOST_COPIES_AT_A_TIME = 4

_log = logging.getLogger(__name__)
_event_loop_lock = threading.Lock()
_event_loop_process = 0


def opener(uri: str, interval: int = _KEEP_ALIVE_SECONDS, missed: int = _KEEP_ALIVE_MISSED) -> Connect:
    """How to open connections to ``uri`` that notice when the other side is gone.

    Args:
        interval: seconds between keep-alive messages.
        missed: so many may go unanswered.
    """

    def connect() -> libvirt.virConnect:
        _start_event_loop()
        connection = libvirt.open(uri)
        # Not every driver has a wire to watch (test:///default has none).
        with suppress(libvirt.libvirtError):
            connection.setKeepAlive(interval, missed)
        return connection

    return connect


class Connections:
    """A few long-lived connections, each used by one operation at a time. Thread-safe.

    Never shared: when a connection with two calls in flight is found dead, libvirt (9.0) ends one of them,
    leaves the other hanging, and may crash the process later.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[libvirt.virConnect] = []
        self._slots = threading.BoundedSemaphore(_MOST_AT_A_TIME)
        self._slots_of_copies = threading.BoundedSemaphore(_MOST_COPIES_AT_A_TIME)

    def run(
        self,
        operation: str,
        work: Callable[[libvirt.virConnect], Result],
        deadline: Deadline,
        *,
        copies: bool = False,
    ) -> Result:
        """What ``work`` returns, given a connection. It goes on by itself when the deadline passes.

        Args:
            operation: what ``work`` does, for those who count.
            copies: it may take very long; a few of these at a time keep no other call waiting.

        Raises:
            DeadlineError: it took longer. UnavailableError: libvirt can't be reached, or the connection was
                lost. Whatever ``work`` raises.
        """
        slots = self._slots_of_copies if copies else self._slots
        deadline.check()
        with waiting("connection"):
            while not slots.acquire(timeout=min(_POLL_SECONDS, deadline.remaining())):
                deadline.check()

        def on_connection() -> Result:
            try:
                with observation.call(operation, _outcome):
                    return self._with_connection(work)
            finally:
                slots.release()

        running = _Operation(on_connection)
        running.start()
        while not running.ended.wait(min(_POLL_SECONDS, deadline.remaining())):
            deadline.check()
        running.join()
        return running.result()

    def _with_connection(self, work: Callable[[libvirt.virConnect], Result]) -> Result:
        connection = self._taken()
        try:
            return work(connection)
        except libvirt.libvirtError as error:
            if _is_alive(connection):
                raise translated(error, "asking the libvirt host") from error
            raise UnavailableError(
                f"the connection to libvirt was lost ({code_of(error)}); call again, and if that does not "
                "help look after libvirtd and the network"
            ) from error
        finally:
            if _is_alive(connection):
                with self._lock:
                    self._idle.append(connection)

    def _taken(self) -> libvirt.virConnect:
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if _is_alive(connection):
                return connection
        try:
            return self._connect()
        except libvirt.libvirtError as error:
            raise UnavailableError(
                f"libvirt could not be reached ({code_of(error)}: {str(error)[:300]}); check LIBVIRT_URI and "
                "that libvirtd runs"
            ) from error


class _Operation(threading.Thread, Generic[Result]):
    """Work in a thread of its own, which never keeps the process from ending."""

    def __init__(self, work: Callable[[], Result]) -> None:
        super().__init__(name="libvirt-operation", daemon=True)
        self.ended = threading.Event()
        self._context = copy_context()  # log lines of the thread name its caller's request
        self._work = work
        self._result: Result
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._context.run(self._work)
        except BaseException as error:
            self._error = error
        finally:
            self.ended.set()

    def result(self) -> Result:
        """What the work returned, or raised."""
        if self._error is not None:
            raise self._error
        return self._result


def _outcome(error: BaseException) -> Outcome:
    cause = error.__cause__
    if isinstance(cause, libvirt.libvirtError):
        return Outcome(f"VIR_ERR_{code_of(cause)}")
    return Outcome(type(error).__name__)


def _is_alive(connection: libvirt.virConnect) -> bool:
    try:
        return bool(connection.isAlive())
    except libvirt.libvirtError:
        return False


def _start_event_loop() -> None:
    """libvirt's event loop, once in a process: it sends and watches the keep-alive messages."""
    global _event_loop_process  # noqa: PLW0603 - the library's loop is one for the process
    with _event_loop_lock:
        if _event_loop_process == os.getpid():
            return
        libvirt.registerErrorHandler(_ignore, None)
        libvirt.virEventRegisterDefaultImpl()
        threading.Thread(target=_run_event_loop, name="libvirt-events", daemon=True).start()
        _event_loop_process = os.getpid()


def _run_event_loop() -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError as error:
            _log.error("libvirt's event loop: error %s; lost connections are noticed late", code_of(error))
            time.sleep(1.0)


def _ignore(_context: object, _error: object) -> None:
    """libvirt's own handler prints each error on top of raising it."""
