"""Every alert fires in promtool's tests, not too early, and has a page that says what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools.prometheus import promtool

_TOP = Path(__file__).parents[2]
_RULES = _TOP / "deploy" / "monitoring" / "alerts.yaml"
_TESTS = Path(__file__).parent / "alerts-test.yaml"
_RUNBOOKS = _TOP / "docs" / "runbooks"

_ALERTS: dict[str, Any] = {
    rule["alert"]: rule for group in yaml.safe_load(_RULES.read_text())["groups"] for rule in group["rules"]
}
_HEADINGS = ["## Meaning", "## Check", "## What to do"]


def test_the_rules_are_valid() -> None:
    assert f"SUCCESS: {len(_ALERTS)} rules found" in promtool("check", "rules", _RULES)


def test_each_alert_fires_when_it_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", _TESTS)


@pytest.mark.parametrize("alert", sorted(_ALERTS))
def test_an_alert_is_tested_both_ways_and_has_a_runbook(alert: str) -> None:
    expectations = [
        one["exp_alerts"]
        for test in yaml.safe_load(_TESTS.read_text())["tests"]
        for one in test["alert_rule_test"]
        if one["alertname"] == alert
    ]
    assert any(expectations)
    assert [] in expectations
    rule = _ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{alert}.md"
    page = (_RUNBOOKS / f"{alert}.md").read_text()
    assert page.startswith(f"# {alert}\n")
    assert re.findall(r"^## .*", page, re.MULTILINE) == _HEADINGS
    assert alert in (_TOP / "docs" / "metrics.md").read_text()


def test_no_runbook_is_left_without_an_alert() -> None:
    assert {page.stem for page in _RUNBOOKS.glob("*.md")} == set(_ALERTS)
