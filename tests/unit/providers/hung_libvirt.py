"""Calls libvirt while its daemon is stopped; a process of its own, as the event loop forbids forking."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import libvirt

from providers.deadline import Deadline
from providers.errors import ProviderError
from providers.libvirt.connections import Connections, opener
from tests.lab.hypervisor import Hypervisor

CALLS = 3


def main() -> None:
    """Prints how calls end that begin while libvirtd is stopped, and one after it goes on."""
    with Hypervisor() as hypervisor:
        connections = Connections(opener(hypervisor.uri, interval=2, missed=1))
        all_there = threading.Barrier(CALLS)

        def wait_for_all(connection: libvirt.virConnect) -> None:
            connection.listAllDomains()
            all_there.wait()

        def ask(seconds: float) -> str:
            try:
                return str(
                    connections.run(
                        "list", lambda connection: connection.listAllDomains(), Deadline.after(seconds)
                    )
                )
            except ProviderError as error:
                return type(error).__name__

        with ThreadPoolExecutor(CALLS) as threads:
            for opened in [
                threads.submit(connections.run, "open", wait_for_all, Deadline.after(60))
                for _ in range(CALLS)
            ]:
                opened.result()
            found = subprocess.run(
                ["pgrep", "-f", f"^libvirtd --pid-file {hypervisor.state}/"], capture_output=True, check=True
            )
            daemon = int(found.stdout.split()[0])
            os.kill(daemon, signal.SIGSTOP)
            began = time.monotonic()
            print(*threads.map(ask, [0.5, 60.0, 60.0]))
            print("in time" if time.monotonic() - began < 40 else "late")
            os.kill(daemon, signal.SIGCONT)
        print(ask(60.0))


if __name__ == "__main__":
    main()
