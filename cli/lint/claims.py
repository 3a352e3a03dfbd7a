"""PersistentVolumeClaims, and the templates of claims in workloads."""

from __future__ import annotations

from cli.lint.capabilities import why_no_access_mode, why_no_block_volume
from cli.lint.cluster import Belongs, Claim, class_name
from cli.lint.context import Context
from cli.lint.located import Block, Manifest, block_at, items_at, text_at
from cli.lint.storage_classes import ClassFacts, class_facts
from cli.pod_policy import DRIVER
from cli.quantity import parse_bytes, shown
from driver.capabilities import DEFAULT_FS_TYPE
from driver.errors import DriverError, InvalidArgument
from driver.key_path import expand_key_path
from driver.key_template import is_template
from driver.sizes import SizeRange, size_rules
from providers.errors import ProviderError


def check_claim(context: Context, claim: Claim) -> None:
    """All rules of a claim, with its class where that was given."""
    belongs = context.cluster.belongs(claim)
    if belongs is Belongs.UNKNOWN:
        context.report.not_checked(f"{claim.manifest.subject}: {_missing(claim)} was not given")
    if belongs is not Belongs.OURS:
        return
    manifest = claim.manifest
    check_access(context, manifest, claim.spec)
    storage_class = context.cluster.class_of(claim)
    facts = None if storage_class is None else class_facts(context, storage_class)
    _check_size(context, claim, facts)
    _check_source(context, claim, facts)
    name = text_at(claim.spec, "volumeAttributesClassName")
    attributes = context.cluster.find("VolumeAttributesClass", name, manifest.file)
    if attributes is not None and text_at(attributes.body, "driverName") != DRIVER:
        context.note_at(
            "attributes-class",
            manifest,
            claim.spec,
            "volumeAttributesClassName",
            f"VolumeAttributesClass {name!r} belongs to another driver",
        )


def _missing(claim: Claim) -> str:
    name = class_name(claim)
    if text_at(claim.spec, "volumeName") or name == "":
        return "its PersistentVolume"
    return "the default StorageClass" if name is None else f"its StorageClass {name!r}"


def check_access(context: Context, manifest: Manifest, spec: Block) -> None:
    """``accessModes`` and ``volumeMode``, of a claim or a PersistentVolume."""
    modes = items_at(spec, "accessModes")
    if not modes:
        context.note_at(
            "access-mode", manifest, spec, "accessModes", "accessModes is missing; use ReadWriteOnce"
        )
    for line, mode in modes.located():
        refusal = why_no_access_mode(str(mode))
        if refusal is not None:
            context.note("access-mode", manifest, line, refusal)
    if text_at(spec, "volumeMode") == "Block":
        refusal = why_no_block_volume()
        if refusal is not None:
            context.note_at("volume-mode", manifest, spec, "volumeMode", refusal)


def _check_size(context: Context, claim: Claim, facts: ClassFacts | None) -> None:
    requests = block_at(claim.spec, "resources", "requests")
    line = claim.spec.line_of("resources", "requests", "storage")
    request = requests.get("storage")
    size = parse_bytes(str(request))
    if not size:
        message = (
            "the size is missing; write spec.resources.requests.storage"
            if request is None
            else f"storage is {str(request)[:40]!r}; expected a quantity as 10Gi"
        )
        context.note("size-invalid", claim.manifest, line, message)
        return
    if facts is None or not context.clouds.is_known(facts.rules):
        return
    try:
        rules = size_rules(facts.rules, facts.own_parameters(), encrypted=facts.encrypted)
        chosen = SizeRange(required=size).choose(rules)
    except DriverError as error:
        context.note("size-out-of-range", claim.manifest, line, f"{request}: {error}")
        return
    except ProviderError:
        return  # the class's parameters can't work, which is reported there
    if chosen != size:
        context.note(
            "size-rounded",
            claim.manifest,
            line,
            f"{request} becomes {shown(chosen)}: {facts.rules.name} makes volumes in steps of "
            f"{shown(rules.step)}, of at least {shown(rules.round_up(0))}",
        )


def _check_source(context: Context, claim: Claim, facts: ClassFacts | None) -> None:
    """A copy has its source's driver, encryption and file system."""
    key = "dataSourceRef" if claim.spec.get("dataSourceRef") else "dataSource"
    reference = block_at(claim.spec, key)
    kind, name = text_at(reference, "kind"), text_at(reference, "name")
    if kind not in ("VolumeSnapshot", "PersistentVolumeClaim"):
        return
    near = claim.manifest.file
    namespace = text_at(reference, "namespace") or claim.manifest.namespace
    line = claim.spec.line_of(key, "name")
    claim_name = name
    if kind == "VolumeSnapshot":
        snapshot = context.cluster.find(kind, name, near, namespace)
        if snapshot is None:
            return
        claim_name = text_at(snapshot.body, "spec", "source", "persistentVolumeClaimName")
    source = context.cluster.claim(namespace, claim_name, near)
    if source is None or source is claim:
        return
    belongs = context.cluster.belongs(source)
    if belongs is Belongs.FOREIGN:
        context.note(
            "copy-source",
            claim.manifest,
            line,
            f"{kind} {name!r} is of another driver, which this one can't read",
        )
    source_class = context.cluster.class_of(source)
    if belongs is not Belongs.OURS or source_class is None or facts is None:
        return
    difference = _difference(class_facts(context, source_class), source, facts)
    if difference:
        context.note(
            "copy-source",
            claim.manifest,
            line,
            f"{kind} {name!r} {difference}; a copy carries its source's LUKS header",
        )


def _difference(source: ClassFacts, source_claim: Claim, copy: ClassFacts) -> str:
    """Why a volume of the class ``copy`` can't start as a copy; empty if it can, or nothing tells."""
    if source.encrypted != copy.encrypted:
        is_now, would_be = ("", "not ") if source.encrypted else ("not ", "")
        return f"is {is_now}encrypted, and the copy would {would_be}be"
    fs_types = [facts.fs_type or DEFAULT_FS_TYPE for facts in (source, copy)]
    if len(set(fs_types)) > 1:
        return f"is {fs_types[0]}, and the copy would be {fs_types[1]}"
    if not copy.encrypted or is_template(copy.key_id):
        return ""
    names = {
        "pvc/namespace": source_claim.manifest.namespace,
        "pvc/name": "" if source_claim.is_template else source_claim.manifest.name,
    }
    try:
        key_id = expand_key_path(source.key_id, names)
    except InvalidArgument:
        return ""
    return "" if key_id == copy.key_id else f"has the key {key_id}, and the copy would have {copy.key_id}"
