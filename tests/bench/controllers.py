"""What each role and provider costs when idle: ``python -m tests.bench.controllers``.

The real processes, each from its start to the answer of a Probe, and its resident memory then. No cloud is
needed: settings are dummies, and a provider makes no call in its first second unless it is asked for
something. The node role, which has no provider, is the baseline.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from proto import csi_pb2
from tests.bench.table import Row, machine, print_table
from tests.tools.driver_process import running
from tests.unit.driver.rig import connect

STARTS = 3
MEMORY_BUDGETS_MB: Mapping[str, float] = {
    "node": 55.0,
    "local": 60.0,
    "aws": 100.0,
    "azure": 110.0,
    "libvirt": 70.0,
}
"""Units of 10**6 bytes; a provider that imports another's SDK, too, exceeds its own."""

_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "aws": {
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    },
    "azure": {
        "CONFIDENTIAL_CSI_AZURE_SUBSCRIPTION_ID": "11111111-2222-3333-4444-555555555555",
        "CONFIDENTIAL_CSI_AZURE_RESOURCE_GROUP": "disks",
        "CONFIDENTIAL_CSI_AZURE_LOCATION": "westeurope",
    },
    "libvirt": {"LIBVIRT_URI": "test:///default"},
}


@dataclass(frozen=True)
class Idle:
    """A process that has been probed, and nothing else."""

    ready_seconds: float
    resident_mb: float
    log: str


def idle(name: str, variables: Mapping[str, str] = MappingProxyType({})) -> Idle:
    """The node role, or a controller of the provider with that name, started and probed once.

    ``variables`` are added to its environment.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as text:
        folder = Path(text)
        if name == "node":
            root = folder / "direct-volumes"
            root.mkdir()
            role, options = "node", ["--node-id=bench", f"--direct-volumes-root={root}"]
        else:
            role, options = "controller", [f"--provider={name}"]
        environment = {"CONFIDENTIAL_CSI_LOCAL_DIRECTORY": text, **_SETTINGS.get(name, {}), **variables}
        started = time.monotonic()
        with running(role, folder, *options, env=environment) as process, connect(process.target()) as client:
            ready = client.identity.Probe(csi_pb2.ProbeRequest(), timeout=20).ready.value
            seconds = time.monotonic() - started
            status = Path(f"/proc/{process.process.pid}/status").read_text()
            log = process.log.read_text()
    if not ready:
        raise RuntimeError(f"{name} is not ready: {log}")
    (resident,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return Idle(seconds, int(resident.split()[1]) * 1024 / 1e6, log)


def main() -> int:
    """Measure, print the table, and return 1 if a budget is exceeded."""
    rows = []
    node_memory = node_seconds = None
    for name, budget in MEMORY_BUDGETS_MB.items():
        starts = [idle(name) for _ in range(STARTS)]
        memory = statistics.median(start.resident_mb for start in starts)
        seconds = statistics.median(start.ready_seconds for start in starts)
        title = "node role" if name == "node" else f"controller, {name}"
        rows.append(Row(f"{title}: resident memory", memory, "MB", budget, node_memory))
        rows.append(Row(f"{title}: start to ready", seconds * 1e3, "ms", None, node_seconds))
        if name == "node":
            node_memory, node_seconds = memory, seconds * 1e3
    print("Roles and providers, idle")
    print(f"machine   {machine()}")
    print(f"command   {sys.executable} -m tests.bench.controllers")
    print(f"baseline  the node role, which imports no provider; medians of {STARTS} starts")
    print_table(rows)
    return 0 if all(row.holds() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
