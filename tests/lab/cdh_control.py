"""The CDH stand-in of a guest, seen from the host."""

from __future__ import annotations

import signal
from typing import Any

from tests.lab.cdh import Fault
from tests.lab.cdh_storage import Dialect
from tests.lab.kbs import Kbs
from tests.lab.podvm import PodVm


class Cdh:
    """Starts the stand-in in a guest.

    Args:
        kbs: where its keys come from; one broker can serve many guests.
        dialect: see :data:`tests.lab.cdh_storage.Dialect`.
    """

    def __init__(self, vm: PodVm, kbs: Kbs, *, dialect: Dialect = "detached-header") -> None:
        self._vm = vm
        self._dialect = dialect
        kbs.serve(vm)
        self.start()

    def start(self) -> None:
        """Start it again after :meth:`stop` or :meth:`kill`."""
        self._vm.call("tests.lab.cdh:start", dialect=self._dialect)

    def stop(self) -> None:
        """End it: its socket is gone."""
        self._vm.call("tests.lab.cdh:stop")

    def kill(self) -> None:
        """End it by SIGKILL: its socket stays, and refuses connections."""
        self._vm.call("tests.lab.cdh:stop", number=signal.SIGKILL)

    def set_fault(self, method: str, fault: Fault, *, seconds: float = 0.0) -> None:
        """Make calls of ``method`` go wrong from now on; ``none`` ends it."""
        self._vm.call("tests.lab.cdh:set_fault", method=method, fault=fault, seconds=seconds)

    def calls(self, method: str) -> list[dict[str, Any]]:
        """The requests it got for ``method``, without keys."""
        return [call for call in self._vm.call("tests.lab.cdh:calls") if call["method"] == method]

    def log(self) -> str:
        """Its own log: the reasons that callers do not get."""
        text: str = self._vm.call("tests.lab.cdh:log")
        return text
