"""A controller process whose cloud never answers: ``python -m … SOCKET GRACE_SECONDS polite|deaf``.

A polite provider watches its deadline; a deaf one is stuck in a library for good.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from driver.controller import ControllerService
from driver.endpoint import Endpoint
from driver.identity import IdentityService
from driver.logs import configure
from driver.server import Server, serve_until_signal
from providers.deadline import Deadline
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider, hang


def _deaf(_deadline: Deadline) -> None:
    threading.Event().wait()


def main() -> None:
    socket, grace, manner = sys.argv[1:]
    cloud = MemoryCloud()
    cloud.before["create_volume"] += [hang if manner == "polite" else _deaf] * 100
    services = {
        "Identity": IdentityService(can_expand=True),
        "Controller": ControllerService(MemoryProvider(cloud)),
    }
    configure("text", "info")
    serve_until_signal(Server(Endpoint(Path(socket)), services), float(grace))


if __name__ == "__main__":
    main()
