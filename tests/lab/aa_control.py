"""The stand-in for the Attestation Agent in a guest, seen from the host."""

from __future__ import annotations

import json
from typing import Any

from tests.lab.aa import Fault
from tests.lab.podvm import PodVm


class Aa:
    """Starts the stand-in in a guest; there is none until then."""

    def __init__(self, vm: PodVm) -> None:
        self._vm = vm

    def start(self) -> None:
        """Start it anew, with an empty log."""
        self._vm.call("tests.lab.aa:start")

    def stop(self) -> None:
        """End it, if it lives still; its socket is gone."""
        self._vm.call("tests.lab.aa:stop")

    def set_fault(self, fault: Fault) -> None:
        """Make calls go wrong from now on; ``none`` ends it."""
        self._vm.call("tests.lab.aa:set_fault", fault=fault)

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Operation and content of each event so far."""
        found = []
        for event in self._vm.call("tests.lab.aa:events"):
            domain, operation, content = event.split(" ", 2)
            assert domain == "confidential-csi"
            found.append((operation, json.loads(content)))
        return found
