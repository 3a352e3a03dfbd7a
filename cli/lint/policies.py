"""Volume policies and initdata: as files, in a ConfigMap, or in a pod's annotation."""

from __future__ import annotations

import ast
import re
import tomllib
from typing import Any, Final

from agent.errors import Refused
from agent.initdata import decode_initdata
from agent.policy import Policy
from agent.policy_schema import parse_policy
from agent.policy_source import POLICY_FILE
from cli.lint.context import Context
from cli.lint.findings import Place
from cli.lint.located import Block, Manifest, block_at
from cli.lint.toml_lines import line_of

INITDATA_ANNOTATIONS: Final = (
    "io.katacontainers.config.hypervisor.cc_init_data",
    "io.katacontainers.config.runtime.cc_init_data",
)
_POLICY_FIELDS: Final = frozenset({"volumes", "policy-resource", "other-mounts"})
_SUBJECT: Final = "volume policy"
#: What tells a policy that is no TOML from other files that are none.
_POLICY_TEXT: Final = re.compile(rb"^\[volumes\b|^policy-resource\s*=", re.MULTILINE)
#: A field as the agent names it: parts separated by dots, a place in quotes.
_FIELD: Final = re.compile(r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[A-Za-z0-9_-]+)(?:\.{3})?")
_TOML_LINE: Final = re.compile(r"at line ([0-9]+)")


def check_toml(context: Context, file: str, text: bytes, *, only_known: bool) -> None:
    """A TOML file: initdata or a policy; with ``only_known``, any other is left alone."""
    try:
        document: dict[str, Any] | None = tomllib.loads(text.decode("utf-8"))
    except (UnicodeError, ValueError, RecursionError):
        document = None
    fields = frozenset[str]() if document is None else frozenset(document)
    if fields & {"algorithm", "data"} and not fields & _POLICY_FIELDS:
        _check_initdata(context, file, text, 1, "initdata")
    elif not only_known or fields & _POLICY_FIELDS or (document is None and _POLICY_TEXT.search(text)):
        check_policy(context, file, text, 0, _SUBJECT)


def check_yaml_policy(context: Context, file: str, document: Block) -> bool:
    """A policy that somebody wrote in YAML: the guest reads TOML only. Whether it is one."""
    volumes = document.get("volumes")
    is_policy = (
        "version" in document and isinstance(volumes, Block) and any(one.startswith("/") for one in volumes)
    )
    if is_policy:
        context.report.add(
            "policy-invalid",
            Place(file, document.key_lines["volumes"]),
            _SUBJECT,
            'this is a volume policy in YAML; the guest reads TOML: [volumes."/path"] and key = "..."',
        )
    return is_policy


def check_config_map(context: Context, manifest: Manifest) -> None:
    """A policy that is kept in a ConfigMap."""
    data = block_at(manifest.body, "data")
    text = data.get(POLICY_FILE)
    if isinstance(text, str):
        check_policy(context, manifest.file, text.encode(), data.key_lines[POLICY_FILE], manifest.subject)


def check_pod_initdata(context: Context, manifest: Manifest, metadata: Any) -> None:
    """The initdata in a pod's annotation."""
    annotations = block_at(metadata, "annotations")
    for key in INITDATA_ANNOTATIONS:
        value = annotations.get(key)
        if isinstance(value, str):
            _check_initdata(
                context, manifest.file, value.encode(), annotations.key_lines[key], manifest.subject
            )


def check_policy(context: Context, file: str, text: bytes, above: int, subject: str) -> None:
    """A policy; ``above`` is the number of lines of the file above its first one."""
    shown = text.decode("utf-8", "replace")
    try:
        policy = parse_policy(text)
    except Refused as refused:
        line = above + _line_of_refusal(shown, refused.message)
        context.report.add("policy-invalid", Place(file, line), subject, refused.message)
        return
    if isinstance(policy, Policy):
        _check_volumes(context, file, shown, policy, above=above, subject=subject)


def _check_volumes(
    context: Context, file: str, text: str, policy: Policy, *, above: int, subject: str
) -> None:
    first: dict[str, str] = {}
    for destination, rules in (policy.volumes or {}).items():
        if rules.key_id is not None:
            other = first.setdefault(rules.key_id, destination)
            if other != destination:
                line = above + _line_of_volume(text, destination, "key")
                context.report.add(
                    "shared-key",
                    Place(file, line),
                    subject,
                    f"{destination} has the key of {other}: the host can exchange the two volumes",
                )
        if rules.adopt:
            line = above + _line_of_volume(text, destination, "adopt")
            context.report.add(
                "policy-adopts",
                Place(file, line),
                subject,
                f"{destination}: remove adopt after the first start",
            )


def _line_of_volume(text: str, destination: str, field: str) -> int:
    written = tomllib.loads(text)["volumes"]
    name = next((one for one in written if one.rstrip("/") == destination), destination)
    return line_of(text, ("volumes", name, field))


def _check_initdata(context: Context, file: str, blob: bytes, line: int, subject: str) -> None:
    """Initdata, as text or as in the annotation; only of text is the line of a field in it known."""
    try:
        initdata = decode_initdata(blob)
    except Refused as refused:
        found = _TOML_LINE.search(refused.message)
        context.report.add(
            "initdata-invalid",
            Place(file, int(found[1]) if found and line == 1 else line),
            subject,
            refused.message,
        )
        return
    policy = initdata.files.get(POLICY_FILE)
    if policy is None:
        return
    text = blob.decode("utf-8", "replace")
    starts = text.find(policy)
    if starts >= 0:
        check_policy(context, file, policy.encode(), text.count("\n", 0, starts), subject)
        return
    try:
        parse_policy(policy)
    except Refused as refused:
        context.report.add(
            "policy-invalid", Place(file, line), subject, f"{POLICY_FILE} in the initdata: {refused.message}"
        )


def _line_of_refusal(text: str, message: str) -> int:
    """The line of the field that the agent names at the beginning of its message."""
    found = _TOML_LINE.search(message)
    if found and "is not TOML" in message:
        return int(found[1])
    field = message.partition(": ")[0]
    parts = []
    for part in _FIELD.findall(field):
        try:
            parts.append(str(ast.literal_eval(part)) if part[0] in "'\"" else part)
        except (ValueError, SyntaxError):
            break
    return line_of(text, tuple(parts))
