"""The page of metrics names what there is, with type and labels, and nothing else."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path

import pytest

from driver.logs import LEVELS
from driver.metrics import CannotListen, ControllerMetrics, Metrics, NodeMetrics, Scrape
from driver.observation import CheckResult
from providers.observation import Outcome

_DOCS = Path(__file__).parents[2] / "docs"
_ROW = re.compile(r"^\| `(confidential_csi_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)


def _used(metrics: Metrics) -> Metrics:
    """With a sample in every family."""
    metrics.rpc_began("Controller/CreateVolume")
    metrics.rpc_ended("Controller/CreateVolume", "OK", 0.1)
    metrics.call_began("DescribeVolumes")
    metrics.call_ended("DescribeVolumes", Outcome("OK"), 0.1)
    metrics.asked_together("volumes-by-id", 3)
    metrics.waited("turn", 0.1)
    metrics.backend_checked(CheckResult.SERVED, ready=True)
    metrics.volumes_counted({}, 0)
    return metrics


def _families(*of: Metrics) -> dict[str, tuple[str, frozenset[str]]]:
    """Name, as a sample has it, to type and labels."""
    found = {}
    for metrics in of:
        for family in metrics.registry.collect():
            if family.name.startswith("confidential_csi_"):
                suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
                labels = frozenset(label for sample in family.samples for label in sample.labels)
                found[family.name + suffix] = (family.type, labels - {"le"})
    return found


def test_the_page_names_every_metric_with_its_type_and_labels() -> None:
    page = (_DOCS / "metrics.md").read_text()
    rows = {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in _ROW.findall(page)
    }
    families = _families(_used(ControllerMetrics("aws")), _used(NodeMetrics(int)))
    assert rows == families


@pytest.mark.parametrize("level", LEVELS)
def test_the_page_of_logs_names_every_level(level: str) -> None:
    assert f"| `{level}` |" in (_DOCS / "logs.md").read_text()


def test_without_a_host_metrics_are_served_at_every_address() -> None:
    port = NodeMetrics(lambda: 7).serve("", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        assert "confidential_csi_mountinfo_records 7.0" in answer.read().decode()
    with pytest.raises(CannotListen):
        NodeMetrics(int).serve("", port)


def test_who_says_nothing_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each idle connection is a thread: anybody who reaches the port could use up a process's memory."""
    monkeypatch.setattr(Scrape, "timeout", 0.1)
    port = NodeMetrics(int).serve("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
        assert silent.recv(1) == b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
        while slow.recv(1 << 16):
            pass
    monkeypatch.undo()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        assert b"confidential_csi_mountinfo_records 0.0" in answer.read()
    assert capfd.readouterr().err == ""


def test_records_that_cannot_be_counted_hide_no_other_figure() -> None:
    def refuse() -> int:
        raise PermissionError(13, "Permission denied")

    port = NodeMetrics(refuse).serve("127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        shown = answer.read().decode()
    assert "confidential_csi_mountinfo_records NaN" in shown
    assert "confidential_csi_mountinfo_writes_total" in shown


def test_codes_that_a_cloud_makes_up_are_bounded() -> None:
    metrics = ControllerMetrics("aws")
    for number in range(500):
        metrics.call_began("DescribeVolumes")
        metrics.call_ended("DescribeVolumes", Outcome(f"code-{number}"), 0.1)
    codes = {
        sample.labels["code"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if "code" in sample.labels
    }
    assert len(codes) == 61
    assert "other" in codes
