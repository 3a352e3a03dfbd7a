"""A plain client of the Kubernetes API: objects are dictionaries, as in JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import requests

from tests.cluster.certificates import KeyPair

Object = dict[str, Any]
_Found = TypeVar("_Found")

#: Kind to its group and version, its name in paths, and whether it lies in a namespace.
_KINDS = {
    "Namespace": ("api/v1", "namespaces", False),
    "Node": ("api/v1", "nodes", False),
    "Pod": ("api/v1", "pods", True),
    "Event": ("api/v1", "events", True),
    "ServiceAccount": ("api/v1", "serviceaccounts", True),
    "PersistentVolume": ("api/v1", "persistentvolumes", False),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims", True),
    "Deployment": ("apis/apps/v1", "deployments", True),
    "DaemonSet": ("apis/apps/v1", "daemonsets", True),
    "Lease": ("apis/coordination.k8s.io/v1", "leases", True),
    "ClusterRole": ("apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles", True),
    "StorageClass": ("apis/storage.k8s.io/v1", "storageclasses", False),
    "VolumeAttachment": ("apis/storage.k8s.io/v1", "volumeattachments", False),
    "CSIDriver": ("apis/storage.k8s.io/v1", "csidrivers", False),
    "CSINode": ("apis/storage.k8s.io/v1", "csinodes", False),
    "ClusterRoleBinding": ("apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings", True),
    "RuntimeClass": ("apis/node.k8s.io/v1", "runtimeclasses", False),
    "VolumeSnapshot": ("apis/snapshot.storage.k8s.io/v1", "volumesnapshots", True),
    "VolumeSnapshotContent": ("apis/snapshot.storage.k8s.io/v1", "volumesnapshotcontents", False),
    "VolumeSnapshotClass": ("apis/snapshot.storage.k8s.io/v1", "volumesnapshotclasses", False),
}

_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
#: Seconds for one request; the API server gives up after sixty.
_TIMEOUT = 90.0
#: Seconds: the sidecars wait for up to five minutes before they try again.
_PATIENCE = 360.0


class Refused(AssertionError):
    """The API server answered with an error; ``status`` is its HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Api:
    """Requests to one API server as one user."""

    def __init__(self, url: str, ca: str, user: KeyPair) -> None:
        self.url = url
        self._session = requests.Session()
        self._session.trust_env = False  # a bundle named there would replace this authority
        self._session.verify = ca
        self._session.cert = (str(user.certificate), str(user.key))

    def get(self, kind: str, name: str, namespace: str = "default") -> Object:
        """The object.

        Raises:
            Refused: it is not there (404), or another answer.
        """
        return self.request("GET", _path(kind, namespace, name))

    def find(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        """The object, or None if it is not there."""
        try:
            return self.get(kind, name, namespace)
        except Refused as refused:
            if refused.status == requests.codes.not_found:
                return None
            raise

    def list(self, kind: str, namespace: str | None = None, **query: str) -> list[Object]:
        """All objects of a kind, in all namespaces unless one is named; ``query`` as ``fieldSelector``."""
        group, plural, _ = _KINDS[kind]
        place = f"/namespaces/{namespace}" if namespace else ""
        items: list[Object] = self.request("GET", f"/{group}{place}/{plural}", query=query)["items"]
        return items

    def create(self, manifest: Object) -> Object:
        """Create an object in its namespace, ``default`` if it names none."""
        namespace = manifest["metadata"].get("namespace", "default")
        return self.request("POST", _path(manifest["kind"], namespace), manifest)

    def patch(
        self,
        kind: str,
        name: str,
        change: Object,
        namespace: str = "default",
        *,
        part: str = "",
        form: str = "merge",
    ) -> Object:
        """Change an object, or its part (``status``)."""
        path = _path(kind, namespace, name) + (f"/{part}" if part else "")
        return self.request("PATCH", path, change, content_type=_PATCH_TYPES[form])

    def delete(self, kind: str, name: str, namespace: str = "default", **query: str) -> None:
        """Delete an object; it may have gone already."""
        try:
            self.request("DELETE", _path(kind, namespace, name), query=query)
        except Refused as refused:
            if refused.status != requests.codes.not_found:
                raise

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """One request.

        Raises:
            Refused: the answer is an error.
        """
        kind = {"Content-Type": content_type} if body is not None else {}
        parsed: Object = self._answer(method, path, params=query, json=body, headers=kind).json()
        return parsed

    def text(self, path: str) -> str:
        """What is at a path that has no JSON, as ``/readyz``."""
        return self._answer("GET", path).text

    def events(self, name: str, namespace: str = "default") -> Iterator[str]:
        """The messages of events about an object of that name, as ``kubectl describe`` shows them."""
        for event in self.list("Event", namespace, fieldSelector=f"involvedObject.name={name}"):
            yield f"{event['reason']}: {event['message']}"

    def _answer(self, method: str, path: str, **parts: Any) -> requests.Response:
        answer = self._session.request(method, self.url + path, timeout=_TIMEOUT, **parts)
        if not answer.ok:
            raise Refused(answer.status_code, answer.text)
        return answer


def until(look: Callable[[], _Found], *, seconds: float = _PATIENCE, what: str = "") -> _Found:
    """Wait until ``look`` returns something that counts as true, and return that.

    Raises:
        AssertionError: it did not in that time.
    """
    began = asked = time.monotonic()
    while not (found := look()):
        now = time.monotonic()
        assert now < began + seconds, f"not within {seconds} s: {what or look}"
        # To look again and again at hundreds of objects would keep others from what is waited for.
        time.sleep(max(0.1, now - asked, (now - began) / 50))
        asked = time.monotonic()
    return found


def _path(kind: str, namespace: str, name: str = "") -> str:
    group, plural, namespaced = _KINDS[kind]
    place = f"namespaces/{namespace}/" if namespaced else ""
    return f"/{group}/{place}{plural}" + (f"/{name}" if name else "")
