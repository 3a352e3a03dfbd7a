"""How few calls and how little time many claims at once take on EC2: ``python -m tests.bench.aws``.

The driver's provider, with its own timings, against the strict EC2 over HTTP, whose token buckets throttle as
the real one's do (with a faster rate, so that nobody waits for minutes). The baseline is what the buckets
allow: one call for each volume, and none in vain.
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from providers.aws import AwsProvider
from providers.aws.settings import Settings, Timings
from providers.deadline import Deadline
from providers.interface import VolumeRequest
from tests.bench.table import Row, machine, print_table
from tests.fakes.ec2 import Bucket, Cloud, Ec2Server, Rules
from tests.fakes.ec2.server import clients_of
from tests.tools.driver_process import running
from tests.unit.driver.rig import connect

VOLUMES = 500
RULES = Rules(
    lag=0.3,
    creating=0.5,
    buckets={"CreateVolume": Bucket(100, 12.0), "DescribeVolumes": Bucket(100, 20.0)},
)
CREATE_BUDGET = 1.05
DESCRIBE_BUDGET = 0.1
TIME_BUDGET = 1.15

_DEADLINE_SECONDS = 300.0


@dataclass(frozen=True)
class Figures:
    """What creating volumes in parallel took."""

    volumes: int
    create_calls: int
    describe_calls: int
    throttled: int
    seconds: float
    allowed_seconds: float
    """What the buckets leave no way around."""


def create_in_parallel(count: int, rules: Rules, timings: Timings) -> Figures:
    """Create so many volumes, all requested at one moment."""
    cloud = Cloud(rules)
    with Ec2Server(cloud) as server:
        provider = AwsProvider(
            Settings("us-east-1", zone="us-east-1a", timings=timings), clients_of(server.url)
        )

        def create(number: int) -> str:
            request = VolumeRequest(f"pvc-{number}", 1 << 30, None, "ext4")
            return provider.create_volume(request, Deadline.after(_DEADLINE_SECONDS)).handle

        begun = time.monotonic()
        with ThreadPoolExecutor(count) as threads:
            handles = set(threads.map(create, range(count)))
        seconds = time.monotonic() - begun
    assert len(handles) == len(cloud.existing_volumes()) == count
    bucket = rules.buckets["CreateVolume"]
    return Figures(
        volumes=count,
        create_calls=cloud.calls["CreateVolume"],
        describe_calls=cloud.calls["DescribeVolumes"],
        throttled=cloud.throttled["CreateVolume"],
        seconds=seconds,
        allowed_seconds=(count - bucket.burst) / bucket.rate,
    )


def controller_memory() -> float:
    """Resident megabytes of a real controller process that has created a volume."""
    with Ec2Server(Cloud()) as server, tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        environment = server.environment("us-east-1a")
        with (
            running("controller", Path(folder), "--provider", "aws", env=environment) as controller,
            connect(controller.target()) as client,
        ):
            client.create(timeout=30)
            status = Path(f"/proc/{controller.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def main() -> int:
    """Measure, print the table, and return 1 if a budget is exceeded."""
    memory = controller_memory()
    figures = create_in_parallel(VOLUMES, RULES, Timings())
    allowed = figures.allowed_seconds
    rows = [
        Row("CreateVolume calls for a volume", figures.create_calls / VOLUMES, "calls", CREATE_BUDGET, 1.0),
        Row("DescribeVolumes calls for a volume", figures.describe_calls / VOLUMES, "calls", DESCRIBE_BUDGET),
        Row("all volumes usable after", figures.seconds, "s", allowed * TIME_BUDGET, allowed),
        Row("throttled CreateVolume calls", figures.throttled, "calls", None),
        Row("resident memory of a controller", memory, "MB", None),
    ]
    bucket = RULES.buckets["CreateVolume"]
    print(f"AWS: {VOLUMES} volumes requested at once")
    print(f"machine   {machine()}")
    print(f"command   {sys.executable} -m tests.bench.aws")
    print(f"baseline  what a bucket of {bucket.burst} calls, filled by {bucket.rate:g} a second, allows")
    print_table(rows)
    return 0 if all(row.holds() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
