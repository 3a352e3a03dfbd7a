"""A real Prometheus scrapes the real processes: the dashboard has data, and no secret gets out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from driver.metrics import ControllerMetrics, NodeMetrics
from tests.monitoring.rig import PLANTED, fleet, metrics_of
from tests.tools.prometheus import promtool, scraping
from tests.tools.waiting import eventually

TOP = Path(__file__).parents[2]
DASHBOARD = json.loads((TOP / "deploy" / "monitoring" / "dashboard.json").read_text())
ALERTS = TOP / "deploy" / "monitoring" / "alerts.yaml"

_ROUNDS = 12
_UNPLANNED = "ConfidentialCsiInternalError"


def queries() -> Mapping[str, str]:
    """Title of a panel, and the letter of its query, to the query, its variables filled in."""
    found = {}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "60s").replace("$instance", ".*")
            found[f"{panel['title']} {target['refId']}"] = query
    return found


@dataclass(frozen=True)
class Seen:
    """What was seen while the processes were busy."""

    data: Mapping[str, list[Any]]
    metrics: Mapping[str, str]
    logs: str
    health: set[str]
    rules: Mapping[str, str]
    firing: list[Any]
    """Alerts, after the very first call of a method was answered INTERNAL."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Calls are made until every query has data, or for a good while."""
    folder = tmp_path_factory.mktemp("monitoring")
    data: dict[str, list[Any]] = {}
    with fleet(folder, "--log-level=trace") as busy, scraping(folder, busy.targets(), [ALERTS]) as prometheus:
        eventually(lambda: len(prometheus.query("up == 1")) == len(busy.targets()))
        busy.meet_what_nobody_planned()
        told = f'ALERTS{{alertname="{_UNPLANNED}"}}'
        eventually(lambda: bool(prometheus.query(told)))
        firing = prometheus.query(told)
        for _ in range(_ROUNDS):
            busy.keep_busy()
            for title, query in queries().items():
                if not data.get(title):
                    data[title] = prometheus.query(query)
            if all(data.values()):
                break
        eventually(lambda: "unknown" not in prometheus.rules().values())
        processes = (busy.aws, busy.local, busy.node)
        # A scrape of a busy machine may come too late, once.
        up = {sample["metric"]["job"] for sample in prometheus.query("max_over_time(up[10s]) == 1")}
        metrics = dict(zip(busy.targets(), map(metrics_of, processes), strict=True))
        logs = "".join(one.log.read_text() for one in processes)
        yield Seen(data, metrics, logs, up, prometheus.rules(), firing)


@pytest.mark.parametrize("title", queries())
def test_every_query_of_the_dashboard_has_data(seen: Seen, title: str) -> None:
    assert seen.data[title], queries()[title]


def test_every_process_is_scraped(seen: Seen) -> None:
    assert seen.health == {"controller-aws", "controller-local", "node"}


def test_every_alert_can_be_evaluated(seen: Seen) -> None:
    assert len(seen.rules) == ALERTS.read_text().count("- alert:")
    assert set(seen.rules.values()) == {"ok"}


def test_the_first_call_of_a_method_that_fails_as_nobody_planned_is_told(seen: Seen) -> None:
    (alert,) = seen.firing
    assert alert["metric"]["method"] == "Node/NodeUnpublishVolume"
    assert alert["metric"]["alertstate"] == "firing"


def test_the_dashboard_is_well_laid_out() -> None:
    """Each panel has an id, a place and a query of its own, and asks the data source that is chosen."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + row)
        for panel in panels
        for column in range(panel["gridPos"]["w"])
        for row in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) == 23
    shown = [panel for panel in panels if panel["type"] != "row"]
    assert all(panel["datasource"]["uid"] == "${datasource}" and panel["targets"] for panel in shown)


@pytest.mark.parametrize("job", ["controller-aws", "controller-local", "node"])
def test_promtool_finds_no_fault_with_the_metrics(seen: Seen, job: str) -> None:
    assert promtool("check", "metrics", stdin=seen.metrics[job]) == ""


def test_throttling_and_retries_are_counted(seen: Seen) -> None:
    for name in ("cloud_calls_throttled_total", "cloud_call_retries_total"):
        line = rf'^confidential_csi_{name}{{operation="CreateVolume",provider="aws"}} ([0-9.]+)$'
        (value,) = re.findall(line, seen.metrics["controller-aws"], re.MULTILINE)
        assert float(value) > 0
    assert 'code="RequestLimitExceeded",operation="CreateVolume"' in seen.metrics["controller-aws"]


def test_no_metric_holds_a_secret_an_id_or_a_name(seen: Seen) -> None:
    shown = "".join(seen.metrics.values())
    assert "confidential_csi_rpc_duration_seconds_count" in shown
    for secret in PLANTED:
        assert secret not in shown
    assert re.findall(r"vol-|snap-|pvc-|csi-vol|disk-|worker-1|us-east-1|AKIA", shown) == []


def test_no_log_at_its_most_verbose_holds_a_secret(seen: Seen) -> None:
    assert "botocore.endpoint Sending http request" in seen.logs
    assert "/csi.v1.Controller/ControllerPublishVolume" in seen.logs
    assert "/csi.v1.Node/NodePublishVolume" in seen.logs
    for secret in PLANTED:
        assert secret not in seen.logs
    assert re.findall(r"Signature=[0-9a-f]{64}|AKIA\w+", seen.logs) == []


def test_labels_have_few_values(seen: Seen) -> None:
    for text in seen.metrics.values():
        assert len(text.splitlines()) < 1500
        values: dict[str, set[str]] = {}
        for label, value in re.findall(r'(\w+)="([^"]*)"', text):
            values.setdefault(label, set()).add(value)
        assert all(len(found) < 40 for found in values.values()), values


def test_queries_and_rules_name_metrics_that_exist() -> None:
    families = [*ControllerMetrics("aws").registry.collect(), *NodeMetrics(int).registry.collect()]
    known = {family.name for family in families}
    suffix = re.compile(r"_(total|bucket|count|sum|info)$")
    used = set(re.findall(r"confidential_csi_\w+", ALERTS.read_text() + " ".join(queries().values())))
    assert {name for name in used if name not in known and suffix.sub("", name) not in known} == set()
