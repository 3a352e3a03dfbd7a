"""Templates of ``kbs-key-id``: a key of its own for each volume of one StorageClass.

``${pvc.namespace}``, ``${pvc.name}`` and ``${pv.name}`` stand for what Kubernetes' provisioner sends about
the claim (external-provisioner, ``--extra-create-metadata``). A value is put in once and as it is; what comes
out is checked like any key path. Imports nothing, so that the command's tools run without gRPC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

#: Name in a template to the provisioner's parameter, without ``csi.storage.k8s.io/``.
METADATA: Mapping[str, str] = MappingProxyType(
    {"pvc.namespace": "pvc/namespace", "pvc.name": "pvc/name", "pv.name": "pv/name"}
)

_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")
#: What a name in Kubernetes holds at most: nothing that could add a segment or another placeholder.
_VALUE = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)


class TemplateError(ValueError):
    """The template can't be expanded. Says why and what to do."""


def is_template(key_id: str) -> bool:
    """Whether the key id depends on the volume."""
    return "${" in key_id


def placeholders(key_id: str) -> tuple[str, ...]:
    """The names that the template uses, in order, each once.

    Raises:
        TemplateError: one is unknown.
    """
    names = tuple(dict.fromkeys(_PLACEHOLDER.findall(key_id)))
    for name in names:
        if name not in METADATA:
            raise TemplateError(f"unknown ${{{name[:40]}}} in {key_id[:80]!r}; known: {_KNOWN}")
    return names


def expand(key_id: str, metadata: Mapping[str, str]) -> str:
    """The key id with its placeholders replaced; ``metadata`` is by the names of :data:`METADATA`.

    Raises:
        TemplateError: a placeholder is unknown, or its value is missing or no name in Kubernetes.
    """
    values = {}
    for name in placeholders(key_id):
        value = metadata.get(METADATA[name], "")
        if not value:
            raise TemplateError(
                f"${{{name}}} has no value: csi.storage.k8s.io/{METADATA[name]} is missing; start "
                "external-provisioner with --extra-create-metadata"
            )
        if not _VALUE.fullmatch(value):
            raise TemplateError(f"${{{name}}} is {value[:80]!r}, which is no name in Kubernetes")
        values[name] = value
    return _PLACEHOLDER.sub(lambda found: values[found[1]], key_id)


def skeleton(key_id: str) -> str:
    """The template with one letter for each placeholder: what can be checked before a volume is known.

    Raises:
        TemplateError: a placeholder is unknown.
    """
    placeholders(key_id)
    return _PLACEHOLDER.sub("x", key_id)


_KNOWN = ", ".join(f"${{{name}}}" for name in METADATA)
