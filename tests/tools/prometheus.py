"""A real Prometheus, and its promtool: Debian's, as ``tests/lab/setup.sh`` unpacked them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.ports import free_port

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "confidential-csi"
PROMETHEUS = _CACHE / "prometheus" / "prometheus"
PROMTOOL = _CACHE / "prometheus" / "promtool"

_GIVE_UP_SECONDS = 60.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Prometheus:
    """A running one, asked over its HTTP API."""

    address: str

    def query(self, expression: str) -> list[Any]:
        """The samples of an instant query; those that are no number are left out."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://{self.address}/api/v1/query?{query}", timeout=60) as answer:
            result = json.load(answer)["data"]["result"]
        return [sample for sample in result if not math.isnan(float(sample["value"][1]))]

    def rules(self) -> dict[str, str]:
        """How each alert rule fares: ``ok`` once it was evaluated without an error."""
        with urllib.request.urlopen(f"http://{self.address}/api/v1/rules", timeout=60) as answer:
            groups = json.load(answer)["data"]["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}


@contextmanager
def scraping(folder: Path, targets: Mapping[str, str], rules: Sequence[Path] = ()) -> Iterator[Prometheus]:
    """A Prometheus that scrapes ``targets`` (job to ``host:port``) each second, within the block."""
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in targets.items()
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(configuration))  # which is YAML, too
    address = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'prometheus-data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [PROMETHEUS, *options, f"--web.listen-address={address}", "--log.level=warn"], stderr=log
        )
    prometheus = Prometheus(address)
    try:
        _wait_until_ready(prometheus, process, folder / "prometheus.log")
        yield prometheus
    finally:
        process.kill()
        process.wait()


def promtool(*arguments: str | Path, stdin: str = "") -> str:
    """What promtool prints.

    Raises:
        AssertionError: it finds a fault.
    """
    done = subprocess.run([PROMTOOL, *arguments], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _wait_until_ready(prometheus: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + _GIVE_UP_SECONDS
    while time.monotonic() < give_up and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{prometheus.address}/-/ready", timeout=10):
                return
        except OSError:
            time.sleep(_POLL_SECONDS)
    raise AssertionError(f"Prometheus does not start:\n{log.read_text()}")
