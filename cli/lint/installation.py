"""The CSIDriver object: what Kubernetes believes about the driver."""

from __future__ import annotations

from typing import Any, Final

from cli.lint.context import Context
from cli.lint.located import Manifest, block_at, items_at
from cli.lint.storage_classes import check_driver_name
from cli.pod_policy import DRIVER

#: Field to what it must be, Kubernetes' default, and what happens else.
_FIELDS: Final[dict[str, tuple[Any, Any, str]]] = {
    "podInfoOnMount": (True, False, "without it the node plugin does not know which pod a volume is for"),
    "seLinuxMount": (
        False,
        False,
        "it adds a mount option that the guest can't honor, which the driver refuses",
    ),
    "requiresRepublish": (False, False, "kubelet would publish every volume again and again, for nothing"),
    "storageCapacity": (
        False,
        False,
        "nothing publishes capacities, so no pod with a new claim would be scheduled",
    ),
}


def check_csi_driver(context: Context, manifest: Manifest) -> None:
    """All fields that matter."""
    check_driver_name(context, manifest, block_at(manifest.body, "metadata"), "name", manifest.name)
    if manifest.name != DRIVER:
        return
    spec = block_at(manifest.body, "spec")
    # Local disks, which nothing attaches to a PodVM, have no attacher.
    if spec.get("attachRequired") is False and context.clouds.default != "local":
        context.note_at(
            "csidriver-attach", manifest, spec, "attachRequired", "attachRequired is false: there is no fence"
        )
    for line, mode in items_at(spec, "volumeLifecycleModes").located():
        if mode == "Ephemeral":
            context.note("csidriver-ephemeral", manifest, line, "volumeLifecycleModes lists Ephemeral")
    for key, (wanted, default, why) in _FIELDS.items():
        if spec.get(key, default) is not wanted:
            context.note_at(
                "csidriver-field", manifest, spec, key, f"{key} must be {str(wanted).lower()}: {why}"
            )
    if spec.get("fsGroupPolicy") not in (None, "None"):
        context.note_at(
            "csidriver-field",
            manifest,
            spec,
            "fsGroupPolicy",
            "fsGroupPolicy must be None: the guest applies fsGroup, on the worker there is nothing to change",
        )
