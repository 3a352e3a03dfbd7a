"""Whoever meets a rule in an event finds it in the troubleshooting page; the page names none in vain."""

import ast
import re
from pathlib import Path

_TOP = Path(__file__).parents[3]
_RAISERS = {"Refused", "Unavailable", "ProfileViolation"}
_ROW = re.compile(r"\| (`[^|]*`) \|")


def _rules_in_code() -> set[str]:
    rules = set()
    for file in (_TOP / "agent").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
                continue
            first = node.args[0]
            if node.func.id in _RAISERS and isinstance(first, ast.Constant):
                rules.add(str(first.value))
    return rules


def _rules_in_page() -> set[str]:
    lines = (_TOP / "docs" / "troubleshooting.md").read_text().splitlines()
    rows = [match[1] for line in lines if (match := _ROW.match(line))]
    return set(re.findall(r"`([a-z0-9-]+)`", "".join(rows)))


def test_every_rule_the_agent_can_name_is_in_the_troubleshooting_page() -> None:
    assert _rules_in_code() - _rules_in_page() == set()


def test_the_troubleshooting_page_names_no_rule_that_does_not_exist() -> None:
    computed = {"encryption-type", "filesystem"}  # passed to a function by name
    assert _rules_in_page() - _rules_in_code() - computed == set()
