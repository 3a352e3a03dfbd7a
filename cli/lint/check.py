"""Reads everything first, then checks each object with all others at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from cli.lint import helm_values
from cli.lint.claims import check_claim
from cli.lint.cluster import DEFAULT_NAMESPACE
from cli.lint.context import Context
from cli.lint.findings import Place
from cli.lint.installation import check_csi_driver
from cli.lint.keys import check_keys
from cli.lint.located import Block, Items, Malformed, Manifest, block_at
from cli.lint.pod_templates import KINDS as POD_KINDS
from cli.lint.pod_templates import PodTemplate, pod_template, template_claims
from cli.lint.pods import check_pod, check_shared_claims
from cli.lint.policies import check_config_map, check_pod_initdata, check_toml, check_yaml_policy
from cli.lint.snapshots import check_snapshot, check_snapshot_class, check_snapshot_content
from cli.lint.sources import Source
from cli.lint.storage_classes import check_attributes_class, check_storage_class
from cli.lint.volumes import check_volume
from cli.lint.yaml_reader import read_documents

_CLUSTER_WIDE: Final = frozenset(
    {
        "StorageClass",
        "VolumeAttributesClass",
        "PersistentVolume",
        "CSIDriver",
        "RuntimeClass",
        "VolumeSnapshotClass",
    }
)
_CHECKS: Final[dict[str, Callable[[Context, Manifest], None]]] = {
    "StorageClass": check_storage_class,
    "VolumeAttributesClass": check_attributes_class,
    "PersistentVolume": check_volume,
    "CSIDriver": check_csi_driver,
    "VolumeSnapshotClass": check_snapshot_class,
    "VolumeSnapshot": check_snapshot,
    "VolumeSnapshotContent": check_snapshot_content,
    "ConfigMap": check_config_map,
}


def check_sources(context: Context, sources: Iterable[Source]) -> None:
    """Fill the context's report."""
    for source in sources:
        if source.is_toml:
            check_toml(context, source.name, source.text, only_known=not source.is_named)
        else:
            _read_yaml(context, source)
    _check_objects(context)


def _read_yaml(context: Context, source: Source) -> None:
    def note(rule: str, line: int, message: str) -> None:
        context.report.add(rule, Place(source.name, line), "", message)

    for document in read_documents(source.yaml_text, source.name, note):
        if isinstance(document, Block) and not _take(context, source.name, document) and source.is_named:
            context.report.not_checked(
                f"{Place(source.name, document.line)}: neither an object of Kubernetes, which has a kind, "
                "nor, as far as its keys tell, values of the chart: is provider aws, azure, libvirt or local?"
            )


def _take(context: Context, file: str, document: Block, list_kind: str = "") -> bool:
    """Sort a document in: a manifest, a list of them, values of the chart, or nothing of ours (False).

    What is listed as a ``StorageClassList`` need not say its kind.
    """
    kind = document.get("kind", list_kind.removesuffix("List"))
    if not isinstance(kind, str) or not kind:
        is_policy = check_yaml_policy(context, file, document)
        values = helm_values.values_of_ours(document)
        if values is not None:
            helm_values.check_values(context, file, values)
            for manifest in helm_values.classes_of(file, values):
                context.cluster.add(manifest)
        return is_policy or values is not None
    items = document.get("items")
    if kind.endswith("List") and isinstance(items, Items):
        for item in items:
            if isinstance(item, Block):
                _take(context, file, item, kind)
        return True
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, Block) else Block(document.line, file)
    name = metadata.get("name") or metadata.get("generateName")
    namespace = metadata.get("namespace")
    if not isinstance(namespace, str) or not namespace:
        namespace = DEFAULT_NAMESPACE
    manifest = Manifest(
        file,
        document,
        kind,
        "" if name is None else str(name),
        "" if kind in _CLUSTER_WIDE else namespace,
    )
    _guarded(context, partial(context.cluster.add, manifest))
    return True


def _check_objects(context: Context) -> None:
    cluster = context.cluster
    templates: list[PodTemplate] = []
    for manifest in cluster.all(*POD_KINDS):
        _guarded(context, partial(_collect, context, manifest, templates))
    for kind, check in _CHECKS.items():
        for manifest in cluster.all(kind):
            _guarded(context, partial(check, context, manifest))
    for claim in cluster.claims:
        _guarded(context, partial(check_claim, context, claim))
    users: dict[tuple[str, int], PodTemplate] = {}
    for template in templates:
        _guarded(context, partial(_check_template, context, template, users))
    check_keys(context)


def _collect(context: Context, manifest: Manifest, templates: list[PodTemplate]) -> None:
    template = pod_template(manifest)
    for claim in template_claims(template).values():
        context.cluster.add_claim(claim)
    templates.append(template)


def _check_template(
    context: Context, template: PodTemplate, users: dict[tuple[str, int], PodTemplate]
) -> None:
    check_pod(context, template)
    check_shared_claims(context, template, users)
    check_pod_initdata(context, template.manifest, block_at(template.pod, "metadata"))


def _guarded(context: Context, check: Callable[[], Any]) -> None:
    """Run a check; what it stumbles over, in its manifest or in one that this one names, is a finding."""
    try:
        check()
    except Malformed as error:
        context.report.add("manifest-malformed", Place(error.file, error.line), "", str(error))
