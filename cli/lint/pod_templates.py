"""Pods, and what workloads make pods from: which volumes of this driver they have, and where."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from cli.lint.cluster import Belongs, Claim, Cluster
from cli.lint.located import Block, Manifest, block_at, blocks_at, text_at

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


def claims_of_ours(cluster: Cluster, template: PodTemplate) -> Iterator[tuple[int, Claim]]:
    """The claims that the pod names, with the lines on which it does; none of those made for each pod."""
    for volume in blocks_at(template.spec, "volumes"):
        claim = named_claim(cluster, template, volume)
        if claim is not None and cluster.belongs(claim) is Belongs.OURS:
            yield volume.line_of("persistentVolumeClaim", "claimName"), claim


def named_claim(cluster: Cluster, template: PodTemplate, volume: Block) -> Claim | None:
    """The claim that one of the pod's volumes names, if it was given."""
    name = text_at(volume, "persistentVolumeClaim", "claimName")
    return cluster.claim(template.manifest.namespace, name, template.manifest.file)


def volumes_of_ours(cluster: Cluster, template: PodTemplate) -> dict[str, Claim]:
    """The claims of the pod's volumes that are, or will be, this driver's, by the volumes' names."""
    found = template_claims(template)
    for volume in blocks_at(template.spec, "volumes"):
        claim = named_claim(cluster, template, volume)
        if claim is not None:
            found[text_at(volume, "name")] = claim
    return {name: claim for name, claim in found.items() if cluster.belongs(claim) is Belongs.OURS}


def mounts_of(template: PodTemplate, volumes: Collection[str]) -> Iterator[Block]:
    """The places at which containers mount one of these volumes."""
    for container in _containers(template):
        for mount in blocks_at(container, "volumeMounts"):
            if text_at(mount, "name") in volumes:
                yield mount


def devices_of(template: PodTemplate, volumes: Collection[str]) -> Iterator[Block]:
    """The places at which containers want one of these volumes as a raw device."""
    for container in _containers(template):
        for device in blocks_at(container, "volumeDevices"):
            if text_at(device, "name") in volumes:
                yield device


def _containers(template: PodTemplate) -> Iterator[Block]:
    for kind in _CONTAINERS:
        yield from blocks_at(template.spec, kind)
