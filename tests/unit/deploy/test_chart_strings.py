"""Whatever string the schema lets through arrives in the objects as that string."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from deploy.manifests import CHART
from tests.unit.deploy.chart import MINIMAL, objects

_SCHEMA = json.loads((CHART / "values.schema.json").read_text())

#: So that nothing is left out of what is rendered.
_ALL = (
    "openshift.enabled=true",
    "metrics.node=true",
    "metrics.podMonitor.enabled=true",
    "volumeAttributesClass.enabled=true",
)
#: Of these a value gets the ones that its pattern allows: unless quoted, YAML takes them for something else.
_ODD = (
    *("1", "true", "null", "1e3", "a: b #c", "- '\"\\", "{a, b", "*a", "a\nb"),
    *("/a:", "/'a,b}", "[::1]:5000/", "[::1]:5000/a:1", "1:1"),
    *("arn:aws:iam::123456789012:role/a: #b'", "https://[::1]:1/# a", "'/\"/#"),
)
#: And where these are allowed, the value is not odd.
_FORMS = ("{}", "/{}", "{}/", "{}:v", "https://{}", "arn:aws:iam::123456789012:role/{}", "a/b/{}")


def _strings(schema: dict[str, Any], name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and schema of each value that is one string, a list of them, or a map to them."""
    for key, one in schema.get("properties", {}).items():
        full = f"{name}.{key}".lstrip(".")
        inner = one.get("items") or one.get("additionalProperties") or one
        if isinstance(inner, dict) and inner.get("type") == "string":
            yield full, one
        else:
            yield from _strings(one, full)


def _allowed(schema: dict[str, Any], candidates: Sequence[str]) -> list[str]:
    inner = schema.get("items") or schema.get("additionalProperties") or schema
    pattern, longest = inner.get("pattern", ""), inner.get("maxLength", 1000)
    return [one for one in candidates if re.search(pattern, one) and len(one) <= longest]


def _value(schema: dict[str, Any], text: str) -> Any:
    if schema["type"] == "array":
        return [text]
    if schema["type"] == "object":
        return {schema.get("propertyNames", {}).get("enum", ["KEY"])[0]: text}
    return text


def _changed(tree: Any, texts: dict[str, str]) -> Any:
    """The tree with each of these texts, wherever it stands, replaced by the other."""
    if isinstance(tree, dict):
        return {key: _changed(value, texts) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_changed(value, texts) for value in tree]
    if isinstance(tree, str):
        return re.sub("|".join(map(re.escape, texts)), lambda found: texts[found[0]], tree)
    return tree


@pytest.mark.parametrize("provider", sorted(MINIMAL))
def test_a_string_is_rendered_as_that_string(provider: str) -> None:
    values: dict[str, dict[str, Any]] = {}
    plain: dict[str, str] = {}
    odd: dict[str, list[str]] = {}
    for name, schema in _strings(_SCHEMA):
        forms = _allowed(schema, [form.format(f"plain{len(values):02}") for form in _FORMS])
        candidates = _allowed(schema, _ODD)
        if forms and candidates:
            values[name], plain[name], odd[name] = schema, forms[0], candidates
    assert len(values) > 40

    def rendered(texts: dict[str, str]) -> list[dict[str, Any]]:
        given = [f"{name}={json.dumps(_value(values[name], text))}" for name, text in texts.items()]
        return objects(provider, *_ALL, *given)

    expected = rendered(plain)
    for turn in range(max(map(len, odd.values()))):
        # Two neighbors, as both namespaces, never get the same.
        texts = {
            name: candidates[(turn + number) % len(candidates)]
            for number, (name, candidates) in enumerate(odd.items())
        }
        assert rendered(texts) == _changed(expected, {plain[name]: texts[name] for name in values}), texts
