"""Whether a RuntimeClass is one of peer pods: by its handler, as the node plugin's guard tells it."""

from __future__ import annotations

import re
from typing import Final

from cli.lint.context import Context
from cli.lint.located import text_at

#: Handlers that run containers or VMs on the node itself.
_LOCAL: Final = re.compile(
    r"runc|crun|youki|runsc|gvisor|nvidia.*|wasm.*|spin.*|kata|kata-runtime|kata-containers|"
    r"kata-(?:qemu|clh|cloud-hypervisor|fc|dragonball|stratovirt|acrn|cc|mshv|vm|deploy)(?:-.*)?",
    re.ASCII,
)


def is_peer_pod(context: Context, name: str, near: str) -> bool | None:
    """True or false where it is known; None where it is not.

    Where the RuntimeClass itself was given, its handler decides; ``near`` is the file of the pod.
    """
    runtime_class = context.cluster.find("RuntimeClass", name, near)
    if runtime_class is not None:
        return text_at(runtime_class.body, "handler") in context.peer_pod_handlers
    if name in context.peer_pod_handlers:
        return True  # a RuntimeClass usually has the name of its handler
    return False if _LOCAL.fullmatch(name) else None
