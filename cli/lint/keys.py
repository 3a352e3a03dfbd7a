"""One key for several volumes: legal, but the host can then exchange the volumes for each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cli.lint.cluster import Claim
from cli.lint.context import Context
from cli.lint.located import Malformed, Manifest, block_at, text_at
from cli.lint.storage_classes import class_facts
from cli.pod_policy import DRIVER
from driver.encryption import KBS_KEY_ID
from driver.errors import InvalidArgument
from driver.key_path import check_key_template

_NAMESPACE: Final = "${pvc.namespace}"
_NAME: Final = "${pvc.name}"
_VOLUME: Final = "${pv.name}"
#: Between two names that may themselves hold letters, digits and hyphens.
_AMBIGUOUS: Final = re.compile(r"\$\{pvc\.(?:namespace|name)\}[a-z0-9-]*\$\{pvc\.(?:namespace|name)\}")


@dataclass(frozen=True)
class _Use:
    """A place that gives volumes a literal key."""

    manifest: Manifest
    line: int
    volumes: frozenset[tuple[str, str, str]]
    """Those that are known."""
    is_open: bool
    """Whether there can be more of them."""


def check_keys(context: Context) -> None:
    """Warn of each place where more than one volume gets the same key."""
    uses: dict[str, list[_Use]] = {}
    claims: dict[int, list[Claim]] = {}
    for claim in context.cluster.claims:
        with suppress(Malformed):  # reported by the claim's own check
            claims.setdefault(id(context.cluster.class_of(claim)), []).append(claim)
    for manifest in context.cluster.all("StorageClass", "PersistentVolume"):
        try:
            if manifest.kind == "PersistentVolume":
                _volume_key(manifest, uses)
            elif text_at(manifest.body, "provisioner") == DRIVER:
                _class_key(context, manifest, claims.get(id(manifest), []), uses)
        except Malformed:
            continue  # reported by the object's own check
    for key_id, several in uses.items():
        seen: set[tuple[str, str, str]] = set()
        for use in several:
            others = seen - use.volumes
            if use.is_open or len(use.volumes) > 1:
                _note(context, use, f"all volumes of this class have the key {key_id[:200]}")
            elif others:
                kind, _, name = min(others)
                _note(context, use, f"{kind} {name!r} has the key {key_id[:200]}, too")
            seen |= use.volumes


def _class_key(
    context: Context, manifest: Manifest, claims: Sequence[Claim], uses: dict[str, list[_Use]]
) -> None:
    key_id = class_facts(context, manifest).key_id
    try:
        check_key_template(key_id)
    except InvalidArgument:
        return  # no key at all, or one that is reported already
    line = block_at(manifest.body, "parameters").line_of(KBS_KEY_ID)
    volumes = frozenset(claim.identity for claim in claims)
    use = _Use(manifest, line, volumes, is_open=not claims or any(claim.is_template for claim in claims))
    if not any(one in key_id for one in (_NAMESPACE, _NAME, _VOLUME)):
        uses.setdefault(key_id, []).append(use)
        return
    if _VOLUME in key_id or (not use.is_open and len(use.volumes) == 1):
        return
    if _NAME not in key_id:
        if use.is_open or len({namespace for _, namespace, _ in use.volumes}) < len(use.volumes):
            _note(context, use, "all volumes of a namespace have one key; add ${pvc.name}")
    elif _NAMESPACE not in key_id:
        _note(context, use, "claims of one name in several namespaces have one key; add ${pvc.namespace}")
    elif _AMBIGUOUS.search(key_id):
        _note(
            context,
            use,
            "claim b-c in namespace a and claim c in a-b have one key; join the names with '.' or '/'",
        )


def _volume_key(manifest: Manifest, uses: dict[str, list[_Use]]) -> None:
    spec = block_at(manifest.body, "spec")
    if text_at(spec, "csi", "driver") != DRIVER:
        return
    attributes = block_at(spec, "csi", "volumeAttributes")
    key_id = attributes.get(KBS_KEY_ID)
    if isinstance(key_id, str):
        claim = block_at(spec, "claimRef")
        # The volume of a claim is counted with it.
        identity = ("PersistentVolume", "", manifest.name)
        if text_at(claim, "name"):
            identity = ("PersistentVolumeClaim", text_at(claim, "namespace"), text_at(claim, "name"))
        line = attributes.line_of(KBS_KEY_ID)
        uses.setdefault(key_id, []).append(_Use(manifest, line, frozenset({identity}), is_open=False))


def _note(context: Context, use: _Use, message: str) -> None:
    context.note("shared-key", use.manifest, use.line, message)
