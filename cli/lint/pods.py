"""Rules of pods, and of workloads that make pods, with volumes of this driver."""

from __future__ import annotations

from collections.abc import Collection

from agent.errors import Refused
from agent.mount_point import checked_mount_point
from cli.lint.capabilities import why_no_block_volume
from cli.lint.context import Context
from cli.lint.located import Block, block_at, blocks_at, text_at
from cli.lint.pod_policies import check_pod_policy
from cli.lint.pod_templates import (
    PodTemplate,
    claims_of_ours,
    devices_of,
    mounts_of,
    named_claim,
    volumes_of_ours,
)
from cli.lint.runtime_classes import is_peer_pod
from cli.lint.storage_classes import check_driver_name
from cli.pod_policy import DRIVER


def check_pod(context: Context, template: PodTemplate) -> None:
    """All rules of a pod, if it has volumes of this driver."""
    _check_volumes(context, template)
    volumes = volumes_of_ours(context.cluster, template)
    if not volumes:
        return
    _check_runtime_class(context, template, min(volumes))
    _check_containers(context, template, volumes)
    _check_number(context, template)
    check_pod_policy(context, template, volumes)


def _check_volumes(context: Context, template: PodTemplate) -> None:
    for volume in blocks_at(template.spec, "volumes"):
        inline = block_at(volume, "csi")
        driver = text_at(inline, "driver")
        check_driver_name(context, template.manifest, inline, "driver", driver)
        if driver == DRIVER:
            message = f"volume {text_at(volume, 'name')!r} is an inline CSI volume"
            context.note_at("inline-volume", template.manifest, volume, "csi", message)
        claim_name = text_at(volume, "persistentVolumeClaim", "claimName")
        if claim_name and named_claim(context.cluster, template, volume) is None:
            context.report.not_checked(f"{template.manifest.subject}: its claim {claim_name!r} was not given")


def _check_runtime_class(context: Context, template: PodTemplate, volume: str) -> None:
    name = text_at(template.spec, "runtimeClassName")
    line = template.pod.line_of("spec", "runtimeClassName")
    if not name:
        context.note(
            "runtime-class",
            template.manifest,
            line,
            f"volume {volume!r} is confidential storage, and without runtimeClassName the pod is no peer pod",
        )
        return
    known = is_peer_pod(context, name, template.manifest.file)
    if known is False:
        context.note(
            "runtime-class",
            template.manifest,
            line,
            f"volume {volume!r} is confidential storage, and {name[:80]!r} is no RuntimeClass of peer pods",
        )
    elif known is None:
        context.note(
            "runtime-class-unknown",
            template.manifest,
            line,
            f"is {name[:80]!r} a RuntimeClass of peer pods? Volume {volume!r} needs one",
        )


def _check_containers(context: Context, template: PodTemplate, volumes: Collection[str]) -> None:
    manifest = template.manifest
    for device in devices_of(template, volumes):
        context.note("volume-mode", manifest, device.line, why_no_block_volume() or "")
    for mount in mounts_of(template, volumes):
        name = text_at(mount, "name")
        for key in ("subPath", "subPathExpr"):
            if mount.get(key):
                message = f"volume {name!r} is mounted with {key}; mount the whole volume"
                context.note_at("sub-path", manifest, mount, key, message)
        try:
            checked_mount_point(text_at(mount, "mountPath"), f"volume {name}")
        except Refused as refused:
            context.note_at("mount-path", manifest, mount, "mountPath", refused.message)


def _check_number(context: Context, template: PodTemplate) -> None:
    """One disk is in one PodVM: two pods of a template, or an old one and its successor, can't share it."""
    manifest, workload = template.manifest, template.workload
    for line, claim in claims_of_ours(context.cluster, template):
        many = _how_many(manifest.kind, workload)
        if many:
            context.note(
                "replicas-share-claim",
                manifest,
                line,
                f"{many} would use the claim {claim.manifest.name!r} together",
            )
        elif manifest.kind == "Deployment" and _rolls_over(block_at(workload, "strategy")):
            context.note(
                "rolling-update",
                manifest,
                manifest.body.line_of("spec", "strategy"),
                f"an update starts a second pod with claim {claim.manifest.name!r} before the first one ends",
            )


def _how_many(kind: str, workload: Block) -> str:
    if kind == "DaemonSet":
        return "a pod on each node"
    key = "parallelism" if kind in ("Job", "CronJob") else "replicas"
    number = workload.get(key)
    # A Job that ends with its first completion starts no second pod beside one.
    are_many = isinstance(number, int) and number > 1 and workload.get("completions") != 1
    return f"{number} pods ({key})" if are_many else ""


def _rolls_over(strategy: Block) -> bool:
    surge = block_at(strategy, "rollingUpdate").get("maxSurge", 1)
    return text_at(strategy, "type") != "Recreate" and surge not in (0, "0", "0%")


def check_shared_claims(
    context: Context, template: PodTemplate, users: dict[tuple[str, int], PodTemplate]
) -> None:
    """A claim that several manifests name; ``users`` holds the first of each."""
    for line, claim in claims_of_ours(context.cluster, template):
        other = users.setdefault(claim.place, template)
        if other is not template:
            context.note(
                "claim-in-several-pods",
                template.manifest,
                line,
                f"the claim {claim.manifest.name!r} is that of {other.manifest.subject}, too",
            )
