"""The chart's admission policies in a control plane, and objects to put to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from driver.identity import PLUGIN_NAME
from tests.cluster.api import Api, Object, Refused, until
from tests.cluster.control_plane import ControlPlane
from tests.unit.deploy.chart import rendered

ENCRYPTED = {"encrypt-type": "luks2", "kbs-key-id": "default/key/1"}
FS_TYPE = "csi.storage.k8s.io/fstype"
_DENIED = "denied request: "


def policies(provider: str) -> list[Object]:
    documents = yaml.safe_load_all(rendered(provider, 'admissionPolicies.moreStorageClasses=["by-hand"]'))
    found = [entry for entry in documents if entry and "ValidatingAdmissionPolicy" in entry["kind"]]
    assert len(found) == 6
    return found


class Admission:
    """A control plane whose API server has the policies of one provider in force."""

    def __init__(self, cluster: ControlPlane) -> None:
        self._cluster = cluster
        self._provider = ""

    def of(self, provider: str) -> Api:
        """The API server, once it has noticed the policies of ``provider``."""
        if provider != self._provider:
            self._cluster.apply(yaml.safe_dump_all(policies(provider)))
            until(lambda: self._is_in_force(provider), what=f"the policies of {provider} are in force")
            self._provider = provider
        return self._cluster.api

    def none(self) -> Api:
        """The API server without them."""
        for policy in policies("aws"):
            self._cluster.kubectl("delete", policy["kind"], policy["metadata"]["name"], "--ignore-not-found")
        api, self._provider = self._cluster.api, ""
        until(
            lambda: refusal(api, storage_class({"x": "y"})) is None, what="no policy for classes is in force"
        )
        until(lambda: refusal(api, volume({}, mountOptions=["sync"])) is None, what="none for volumes")
        return api

    def _is_in_force(self, provider: str) -> bool:
        api = self._cluster.api
        return (
            refusal(api, storage_class({"cloudProvider": provider})) is None
            and refusal(api, storage_class({"cloudProvider": "none"})) is not None
            and refusal(api, volume({}, mountOptions=["sync"])) is not None
            and refusal(api, claim("by-hand", volumeMode="Block")) is not None
        )


def storage_class(parameters: Mapping[str, str], name: str = "tried", **more: Any) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": PLUGIN_NAME,
        "parameters": dict(parameters),
        **more,
    }


def volume(attributes: Mapping[str, str], fs_type: str = "", name: str = "tried", **more: Any) -> Object:
    source = {"driver": PLUGIN_NAME, "volumeHandle": "pvc-1", "volumeAttributes": dict(attributes)}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {**source, **({"fsType": fs_type} if fs_type else {})},
            **more,
        },
    }


def claim(storage_class: str | None, **more: Any) -> Object:
    named = {} if storage_class is None else {"storageClassName": storage_class}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "tried", "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            **named,
            **more,
        },
    }


_PLURALS = {
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": "/api/v1/namespaces/default/persistentvolumeclaims",
}


def refusal(api: Api, manifest: Object) -> str | None:
    """What the policies say to its creation; None if they let it pass. Nothing is created.

    Raises:
        Refused: it was refused, but not by a policy.
    """
    try:
        api.request("POST", _PLURALS[manifest["kind"]], manifest, query={"dryRun": "All"})
    except Refused as refused:
        message: str = json.loads(refused.message)["message"]
        if _DENIED in message:
            return message.partition(_DENIED)[2]
        raise
    return None
