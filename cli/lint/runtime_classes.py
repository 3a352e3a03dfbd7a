"""Whether a RuntimeClass is one of peer pods."""

from __future__ import annotations

import re
from typing import Final

from cli.lint.context import Context
from cli.lint.located import text_at

#: Kata's handler for VMs beside the node, in every name that kata-deploy and cloud-api-adaptor give it.
_PEER_POD: Final = re.compile(r"(?:.*[-_.])?remote(?:[-_.].*)?", re.ASCII)
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
    if name in context.peer_pod_classes:
        return True
    runtime_class = context.cluster.find("RuntimeClass", name, near)
    if runtime_class is not None:
        handler = text_at(runtime_class.body, "handler")
        return handler in context.peer_pod_classes or _PEER_POD.fullmatch(handler) is not None
    if _PEER_POD.fullmatch(name):
        return True
    return False if _LOCAL.fullmatch(name) else None
