"""Values of the project's Helm chart: checked by the chart's own schema, and as the classes they become."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, Final

from cli.lint.context import Context
from cli.lint.findings import Place
from cli.lint.located import Block, Items, Manifest
from cli.pod_policy import DRIVER
from driver.encryption import ENCRYPT_TYPE, KBS_KEY_ID
from driver.parameters import CLOUD_PROVIDER, looks_like_credential, nearest
from driver.problems import ProblemKind

SUBCHART: Final = "confidential-csi"
"""The key under which a chart that depends on ours has its values."""
#: What the chart's values.yaml has where a file says nothing.
DEFAULT_PROVIDER: Final = "aws"
DEFAULT_ENCRYPTED: Final = "confidential-csi-encrypted"
DEFAULT_PLAIN: Final = "confidential-csi-plain"
DEFAULT_KEY_ID: Final = "${pvc.namespace}/volume-key/${pvc.name}"

_SCHEMA: Final = "values.schema.json"
_SUBJECT: Final = "Helm values"
#: Values that, beside a provider's name, only this chart has.
_DISTINCTIVE: Final = frozenset(
    {"clusterId", "libvirt", "networkPolicies", "volumeAttributesClass", "storageClasses"}
)
_OLD_CHART: Final = frozenset({"csiDriver", "cdh", "storageClass"})
_WORDS: Final = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string; put it in quotes",
    "boolean": "true or false",
    "integer": "a whole number",
}


def values_of_ours(document: Block) -> Block | None:
    """The part of a document without a kind that is values for the chart; None if there is none."""
    inner = document.get(SUBCHART)
    if isinstance(inner, Block):
        return inner
    if _is_old_chart(document):
        return document
    known = _schema()["properties"].keys()
    ours = document.keys() & known
    if 2 * len(ours) < len(document):
        return None
    classes = document.get("storageClasses")
    if isinstance(classes, Block) and classes.keys() & _properties("storageClasses").keys():
        return document
    provider = document.get("provider")
    if not isinstance(provider, str):
        return None
    settings = document.get(provider)
    is_plain = all(key in known or nearest(key, known) for key in document)
    if is_plain and isinstance(settings, Block) and settings.keys() & _properties(provider).keys():
        return document
    return document if ours & _DISTINCTIVE else None


def check_values(context: Context, file: str, values: Block) -> None:
    """All rules of a values file, but for those of the classes, which are :func:`classes_of`."""
    if _is_old_chart(values):
        settings = values.get("cdh")
        if isinstance(settings, Block) and settings.get("enabled") is not False:
            context.report.add(
                ProblemKind.NO_EFFECT,
                Place(file, values.key_lines["cdh"]),
                _SUBJECT,
                "cdh: the older chart turned it into parameters that nothing reads, and its volumes were "
                "plaintext; use this chart, whose encrypted class has encrypt-type and kbs-key-id",
            )
        return
    for error in _validator().iter_errors(values):
        _note(context, file, values, error)


def classes_of(file: str, values: Block) -> Iterable[Manifest]:
    """The StorageClasses that the chart makes of the values, with the lines of the values."""
    classes = values.get("storageClasses")
    classes = classes if isinstance(classes, Block) else Block(values.line_of("storageClasses"), file)
    if _is_old_chart(values) or classes.get("create") is False:
        return
    for kind, default in (("encrypted", DEFAULT_ENCRYPTED), ("plain", DEFAULT_PLAIN)):
        one = classes.get(kind)
        one = one if isinstance(one, Block) else Block(classes.line_of(kind), file)
        parameters = Block(classes.line_of("parameters"), file)
        _put(parameters, CLOUD_PROVIDER, values.get("provider", DEFAULT_PROVIDER), values.line_of("provider"))
        if kind == "encrypted":
            _put(parameters, ENCRYPT_TYPE, "luks2", one.line)
            _put(parameters, KBS_KEY_ID, one.get("keyId", DEFAULT_KEY_ID), one.line_of("keyId"))
        given = classes.get("parameters")
        if isinstance(given, Block):
            for key, value in given.items():
                _put(parameters, key, value, given.key_lines[key])
        name = one.get("name", default)
        body = Block(one.line, file)
        _put(body, "kind", "StorageClass", one.line)
        _put(body, "provisioner", DRIVER, one.line)
        _put(body, "parameters", parameters, parameters.line)
        _put(body, "volumeBindingMode", "WaitForFirstConsumer", one.line)
        yield Manifest(file, body, "StorageClass", str(name))


def _is_old_chart(values: Block) -> bool:
    driver = values.get("csiDriver")
    return (
        len(values.keys() & _OLD_CHART) >= 2
        and (not isinstance(driver, Block) or driver.get("name") == DRIVER)
        and isinstance(values.get("provider"), str)
    )


def _put(block: Block, key: str, value: Any, line: int) -> None:
    block[key] = value
    block.key_lines[key] = line


def _note(context: Context, file: str, values: Block, error: Any) -> None:
    """Report an error of the schema in words of ours: jsonschema's quote the value, perhaps a secret one."""
    path = [str(part) if isinstance(part, str) else part for part in error.absolute_path]
    where = ".".join(map(str, path))
    if error.validator == "propertyNames" or "propertyNames" in error.absolute_schema_path:
        if path[:1] != ["controller"]:
            return  # the classes' rules know these parameters, and say more
        name = str(error.instance)
        rule = ProblemKind.CREDENTIAL if looks_like_credential(name) else "chart-value"
        message = f"{where}.{name[:64]}: credentials do not belong into values, nor into the environment"
        if rule == "chart-value":
            message = f"{where}.{name[:64]} is no name of an environment variable"
        context.report.add(rule, Place(file, _line(values, [*path, name])), _SUBJECT, message)
        return
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        for key in error.instance:
            if key not in known:
                _note_unknown(
                    context, file, _line(values, [*path, key]), ".".join([*map(str, path), key]), known
                )
        return
    if error.validator == "required":
        for name in error.validator_value:
            if name not in error.instance and (path or name != "provider"):
                full = ".".join([*map(str, path), name])
                context.report.add(
                    "chart-value",
                    Place(file, _line(values, path)),
                    _SUBJECT,
                    f"{full} is missing for this provider",
                )
        return
    if where == "storageClasses.encrypted.keyId":
        return  # the class's rule
    context.report.add(
        "chart-value", Place(file, _line(values, path)), _SUBJECT, f"{where} {_expectation(error)}"
    )


def _expectation(error: Any) -> str:
    wanted = error.validator_value
    match error.validator:
        case "type":
            return f"must be {_WORDS.get(str(wanted), wanted)}"
        case "enum":
            return f"must be one of {', '.join(map(str, wanted))}"
        case "pattern":
            return f"does not have the form {wanted}"
        case "minLength":
            return "must not be empty"
        case _:
            return f"is not allowed ({error.validator}: {wanted})"


def _note_unknown(context: Context, file: str, line: int, name: str, known: Iterable[str]) -> None:
    guess = nearest(name.rpartition(".")[2], known)
    hint = f"did you mean {guess!r}?" if guess else f"known: {', '.join(sorted(known))}"
    rule = ProblemKind.CREDENTIAL if looks_like_credential(name) and not guess else "chart-value"
    context.report.add(rule, Place(file, line), _SUBJECT, f"the chart has no value {name[:120]!r}; {hint}")


def _line(values: Block, path: Iterable[str | int]) -> int:
    line: int = values.line
    value: Any = values
    for part in path:
        if isinstance(value, Block) and part in value.key_lines:
            line = value.key_lines[str(part)]
        elif isinstance(value, Items) and isinstance(part, int):
            line = value.lines[part]
        else:
            break
        value = value[part]
    return line


def _properties(name: str) -> dict[str, Any]:
    properties: dict[str, Any] = _schema()["properties"].get(name, {}).get("properties", {})
    return properties


@functools.cache
def _schema() -> dict[str, Any]:
    # A built package has the schema beside this module (setup.py); in a clone it is the chart's file.
    packaged = resources.files(__package__) / _SCHEMA
    chart = Path(__file__).parents[2] / "deploy" / "charts" / "confidential-csi" / _SCHEMA
    schema: dict[str, Any] = json.loads((packaged if packaged.is_file() else chart).read_text("utf-8"))
    return schema


@functools.cache
def _validator() -> Any:
    # Slow to import, and needed for values alone.
    from jsonschema import Draft7Validator  # noqa: PLC0415  See above.

    return Draft7Validator(_schema())
