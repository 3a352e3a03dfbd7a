"""VolumeSnapshotClasses, VolumeSnapshots and their contents."""

from __future__ import annotations

from cli.lint.cluster import Belongs
from cli.lint.context import Context
from cli.lint.located import Block, Manifest, block_at, text_at
from cli.lint.storage_classes import check_driver_name
from cli.pod_policy import DRIVER
from driver.parameters import KUBERNETES_PREFIX, looks_like_credential
from driver.problems import ProblemKind


def check_snapshot_class(context: Context, manifest: Manifest) -> None:
    """A class of this driver has no parameters."""
    driver = text_at(manifest.body, "driver")
    check_driver_name(context, manifest, manifest.body, "driver", driver)
    if driver != DRIVER:
        return
    parameters = block_at(manifest.body, "parameters")
    for key in parameters:
        if key.startswith(KUBERNETES_PREFIX):
            continue
        if looks_like_credential(key):
            context.note_at(
                ProblemKind.CREDENTIAL, manifest, parameters, key, f"{key[:64]!r} looks like a credential"
            )
        else:
            context.note_at(
                "snapshot-class-parameters",
                manifest,
                parameters,
                key,
                f"{key[:64]!r}: snapshots have no parameters",
            )


def check_snapshot(context: Context, manifest: Manifest) -> None:
    """Class and source of a VolumeSnapshot belong together."""
    spec = block_at(manifest.body, "spec")
    claim_name = text_at(spec, "source", "persistentVolumeClaimName")
    claim = context.cluster.claim(manifest.namespace, claim_name, manifest.file)
    if claim is None:
        return
    belongs = context.cluster.belongs(claim)
    if belongs is not Belongs.UNKNOWN:
        _check_pair(context, manifest, spec, is_ours=belongs is Belongs.OURS)


def check_snapshot_content(context: Context, manifest: Manifest) -> None:
    """Class and driver of a VolumeSnapshotContent belong together."""
    spec = block_at(manifest.body, "spec")
    driver = text_at(spec, "driver")
    check_driver_name(context, manifest, spec, "driver", driver)
    if driver:
        _check_pair(context, manifest, spec, is_ours=driver == DRIVER)


def _check_pair(context: Context, manifest: Manifest, spec: Block, *, is_ours: bool) -> None:
    name = text_at(spec, "volumeSnapshotClassName")
    snapshot_class = context.cluster.find("VolumeSnapshotClass", name, manifest.file)
    if snapshot_class is None:
        return
    driver = text_at(snapshot_class.body, "driver")
    if (driver == DRIVER) == is_ours:
        return
    whose = (
        "this driver's, and the class is not" if is_ours else "another driver's, and the class is this one's"
    )
    context.note_at(
        "snapshot-driver",
        manifest,
        spec,
        "volumeSnapshotClassName",
        f"the volume is {whose}: VolumeSnapshotClass {name!r} has driver {driver[:80]!r}",
    )
