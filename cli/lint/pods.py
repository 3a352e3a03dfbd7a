"""Pods, and workloads that make pods, with volumes of this driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from agent.errors import Refused
from agent.mount_point import checked_mount_point
from cli.lint.capabilities import why_no_block_volume
from cli.lint.cluster import Belongs, Claim
from cli.lint.context import Context
from cli.lint.located import Block, Manifest, block_at, blocks_at, text_at
from cli.lint.runtime_classes import is_peer_pod
from cli.lint.storage_classes import check_driver_name
from cli.pod_policy import DRIVER

#: Kinds of objects that are pods, or make some.
KINDS: Final = (
    "Pod",
    "Deployment",
    "ReplicaSet",
    "ReplicationController",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "CronJob",
)
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")


@dataclass(frozen=True)
class PodTemplate:
    """A pod, or what a workload makes pods from."""

    manifest: Manifest
    pod: Block
    """With ``metadata`` and ``spec``."""
    workload: Block
    """The part that says how many: the spec of the workload, or of a CronJob's Job."""

    @property
    def spec(self) -> Block:
        """The pod's."""
        return block_at(self.pod, "spec")

    @property
    def is_bare(self) -> bool:
        """Whether it is one pod, with the name of its manifest."""
        return self.manifest.kind == "Pod"


def pod_template(manifest: Manifest) -> PodTemplate:
    """The pod of a manifest of one of the :data:`KINDS`."""
    if manifest.kind == "Pod":
        return PodTemplate(manifest, manifest.body, Block(manifest.body.line, manifest.file))
    workload = block_at(manifest.body, "spec")
    if manifest.kind == "CronJob":
        workload = block_at(workload, "jobTemplate", "spec")
    return PodTemplate(manifest, block_at(workload, "template"), workload)


def template_claims(template: PodTemplate) -> dict[str, Claim]:
    """The claims that are made for each pod, by the name of the volume."""
    manifest = template.manifest
    found = {}
    if manifest.kind == "StatefulSet":
        for one in blocks_at(template.workload, "volumeClaimTemplates"):
            name = text_at(one, "metadata", "name")
            found[name] = _claim(manifest, one, name, is_template=True)
    for volume in blocks_at(template.spec, "volumes"):
        if volume.get("ephemeral") is not None:
            name = text_at(volume, "name")
            body = block_at(volume, "ephemeral", "volumeClaimTemplate")
            # Kubernetes names such a claim after its pod.
            found[name] = _claim(manifest, body, name, is_template=not template.is_bare)
    return found


def _claim(manifest: Manifest, body: Block, name: str, *, is_template: bool) -> Claim:
    own = Manifest(
        manifest.file,
        body,
        manifest.kind,
        f"{manifest.name}/{name}" if is_template else f"{manifest.name}-{name}",
        manifest.namespace,
    )
    return Claim(own, block_at(body, "spec"), is_template=is_template)


def check_pod(context: Context, template: PodTemplate) -> None:
    """All rules of a pod, if it has volumes of this driver."""
    volumes = _volumes_of_ours(context, template)
    if not volumes:
        return
    _check_runtime_class(context, template, min(volumes))
    _check_containers(context, template, volumes)
    _check_number(context, template)


def claims_of_ours(context: Context, template: PodTemplate) -> Iterator[tuple[int, Claim]]:
    """The claims that the pod names, with the lines on which it does; none of those made for each pod."""
    for volume in blocks_at(template.spec, "volumes"):
        name = text_at(volume, "persistentVolumeClaim", "claimName")
        claim = context.cluster.claim(template.manifest.namespace, name, template.manifest.file)
        if claim is not None and context.cluster.belongs(claim) is Belongs.OURS:
            yield volume.line_of("persistentVolumeClaim", "claimName"), claim


def _volumes_of_ours(context: Context, template: PodTemplate) -> set[str]:
    """Names of the pod's volumes that are, or will be, this driver's."""
    cluster, found = context.cluster, set()
    for name, claim in template_claims(template).items():
        if cluster.belongs(claim) is Belongs.OURS:
            found.add(name)
    for volume in blocks_at(template.spec, "volumes"):
        name = text_at(volume, "name")
        if "csi" in volume:
            inline = block_at(volume, "csi")
            driver = text_at(inline, "driver")
            check_driver_name(context, template.manifest, inline, "driver", driver)
            if driver == DRIVER:
                context.note_at(
                    "inline-volume",
                    template.manifest,
                    volume,
                    "csi",
                    f"volume {name!r} is an inline CSI volume",
                )
        claim_name = text_at(volume, "persistentVolumeClaim", "claimName")
        if not claim_name:
            continue
        claim_or_none = cluster.claim(template.manifest.namespace, claim_name, template.manifest.file)
        if claim_or_none is None:
            context.report.not_checked(f"{template.manifest.subject}: its claim {claim_name!r} was not given")
        elif cluster.belongs(claim_or_none) is Belongs.OURS:
            found.add(name)
    return found


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


def _check_containers(context: Context, template: PodTemplate, volumes: set[str]) -> None:
    manifest = template.manifest
    for container in (one for kind in _CONTAINERS for one in blocks_at(template.spec, kind)):
        for device in blocks_at(container, "volumeDevices"):
            if text_at(device, "name") in volumes:
                context.note("volume-mode", manifest, device.line, why_no_block_volume() or "")
        for mount in blocks_at(container, "volumeMounts"):
            name = text_at(mount, "name")
            if name not in volumes:
                continue
            for key in ("subPath", "subPathExpr"):
                if mount.get(key):
                    context.note_at(
                        "sub-path",
                        manifest,
                        mount,
                        key,
                        f"volume {name!r} is mounted with {key}; mount the whole volume",
                    )
            try:
                checked_mount_point(text_at(mount, "mountPath"), f"volume {name}")
            except Refused as refused:
                context.note_at("mount-path", manifest, mount, "mountPath", refused.message)


def _check_number(context: Context, template: PodTemplate) -> None:
    """One disk is in one PodVM: two pods of a template, or an old one and its successor, can't share it."""
    manifest, workload = template.manifest, template.workload
    for line, claim in claims_of_ours(context, template):
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
    return f"{number} pods ({key})" if isinstance(number, int) and number > 1 else ""


def _rolls_over(strategy: Block) -> bool:
    surge = block_at(strategy, "rollingUpdate").get("maxSurge", 1)
    return text_at(strategy, "type") != "Recreate" and surge not in (0, "0", "0%")


def check_shared_claims(
    context: Context, template: PodTemplate, users: dict[tuple[str, int], PodTemplate]
) -> None:
    """A claim that several manifests name; ``users`` holds the first of each."""
    for line, claim in claims_of_ours(context, template):
        other = users.setdefault(claim.place, template)
        if other is not template:
            context.note(
                "claim-in-several-pods",
                template.manifest,
                line,
                f"the claim {claim.manifest.name!r} is that of {other.manifest.subject}, too",
            )
