"""The peer-pod guard: a volume is published for peer pods alone (field case K4).

A pod with another runtime, or none, would be started all the same: its volume would be a bare directory of
the worker, written in the clear and gone with the pod. CSI tells a pod's name, not its RuntimeClass, so that
is looked up. It catches mistakes, not attacks: the guest believes nothing of it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from driver.errors import FailedPrecondition, Unavailable
from driver.kubernetes_api import KubernetesApi

_POD_KEYS: Final = tuple(f"csi.storage.k8s.io/pod.{part}" for part in ("namespace", "name", "uid"))
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
"""How pods are named."""
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
"""How namespaces and handlers are."""
_NO_PEER_POD: Final = "it is no peer pod: it would write to a bare directory of the worker, in the clear"


def handlers_in(text: str) -> frozenset[str]:
    """The handlers in a comma-separated list.

    Raises:
        ValueError: it is empty, or one is no handler's name (a DNS label); the message names it.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if _LABEL.fullmatch(name) is None:
            raise ValueError(
                f"{name[:80]!r} is not the handler of a RuntimeClass (lower-case letters, digits and '-')"
            )
    return frozenset(names)


class PeerPodGuard:
    """Tells peer pods from others by the handler of their RuntimeClass."""

    def __init__(self, api: KubernetesApi, handlers: frozenset[str]) -> None:
        self._api = api
        self._handlers = handlers

    def check(self, volume_context: Mapping[str, str], seconds: float) -> None:
        """Return if the pod that kubelet publishes for is a peer pod.

        Raises:
            FailedPrecondition: it is not, or is not told, or is gone; nothing was done.
            Unavailable: the API could not tell within that many seconds.
        """
        ends_at = time.monotonic() + seconds
        namespace, name, uid = _pod_in(volume_context)
        who = f"pod {namespace}/{name}"
        pod = self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}", "pods", ends_at)
        if pod is None or _text(pod, "metadata", "uid") != uid:
            raise FailedPrecondition(
                f"{who} with uid {uid[:64]} does not exist any more, so nothing is published for it; there "
                "is nothing to do, kubelet gives it up by itself"
            )
        runtime_class = _text(pod, "spec", "runtimeClassName", may_be_missing=True)
        if not runtime_class:
            raise FailedPrecondition(
                f"{who} has no runtimeClassName, so {_NO_PEER_POD}. Set runtimeClassName to a RuntimeClass "
                f"with {self._wanted()}"
            )
        handler = self._handler_of(runtime_class, who, ends_at)
        if handler not in self._handlers:
            raise FailedPrecondition(
                f"{who} has RuntimeClass {runtime_class[:253]} with handler {handler[:63]}, so "
                f"{_NO_PEER_POD}. Use a RuntimeClass with {self._wanted()}; which handlers start peer pods, "
                "--peer-pod-handlers says"
            )

    def _handler_of(self, runtime_class: str, who: str, ends_at: float) -> str:
        found = self._api.get(
            f"/apis/node.k8s.io/v1/runtimeclasses/{quote(runtime_class, safe='')}",
            "runtimeclasses.node.k8s.io",
            ends_at,
        )
        if found is None:
            raise FailedPrecondition(
                f"{who} has RuntimeClass {runtime_class[:253]}, which does not exist; make it again, "
                f"or start the pod with one that has {self._wanted()}"
            )
        return _text(found, "handler")

    def _wanted(self) -> str:
        return f"handler {' or '.join(sorted(self._handlers))}"


def _pod_in(volume_context: Mapping[str, str]) -> tuple[str, str, str]:
    """Namespace, name and uid of the pod, as kubelet tells them.

    Raises:
        FailedPrecondition: it does not, or they can't be a pod's.
    """
    found = tuple(volume_context.get(key, "") for key in _POD_KEYS)
    missing = [key for key, value in zip(_POD_KEYS, found, strict=True) if not value]
    if missing:
        raise FailedPrecondition(
            f"the request does not tell its pod ({', '.join(missing)} missing), so it may be no peer pod; "
            "the CSIDriver object needs podInfoOnMount: true, as in deploy/csi-driver.yaml"
        )
    namespace, name, uid = found
    if _LABEL.fullmatch(namespace) is None or _SUBDOMAIN.fullmatch(name) is None:
        raise FailedPrecondition(
            f"{name[:80]!r} in {namespace[:80]!r} can't be a pod's name; kubelet did not send this"
        )
    return namespace, name, uid


def _text(document: Mapping[str, Any], *fields: str, may_be_missing: bool = False) -> str:
    """A field of an object of the API, by its path; empty if it may be missing and is.

    Raises:
        Unavailable: the object is not as the API's are.
    """
    value: Any = document
    for field in fields:
        value = value.get(field) if isinstance(value, dict) else None
    if not value and may_be_missing:
        return ""
    if not isinstance(value, str) or not value:
        raise Unavailable(
            f"the API server's answer has no {'.'.join(fields)}; check that nothing stands between the node "
            "plugin and the API server"
        )
    return value
