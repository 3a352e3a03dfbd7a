"""Each rule of the sidecars' roles is needed: without it, the sidecar is refused just that.

Every other test here fails when a container is refused anything, so no rule is missing either.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.cluster.api import Api, Object, until
from tests.cluster.deployments import CONTROLLERS, WORKERS, Deployment
from tests.cluster.volumes import (
    attachment,
    claim,
    from_snapshot,
    ready_snapshot,
    snapshot_of,
    volume_of,
)

pytestmark = pytest.mark.parametrize("deployment", ["aws"], indirect=True)

_SIDECARS = ("provisioner", "attacher", "resizer", "snapshotter")
_LEASES = "confidential-csi-leases"
_HOME = WORKERS[0]


@dataclass(frozen=True)
class _Lonely:
    """A sidecar in a pod of its own, with an account that has a copy of its role and no other."""

    api: Api
    sidecar: str
    rules: list[Object]
    template: Object

    @property
    def name(self) -> str:
        return f"lonely-{self.sidecar}"

    def create(self) -> None:
        """Its account and bindings; the role has all rules."""
        account = {"apiVersion": "v1", "kind": "ServiceAccount"}
        self.api.create({**account, "metadata": {"name": self.name, "namespace": CONTROLLERS}})
        for kind, role_kind, role in (
            ("ClusterRoleBinding", "ClusterRole", self.name),
            ("RoleBinding", "Role", _LEASES),
        ):
            self.api.create(
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": kind,
                    "metadata": {"name": self.name, "namespace": CONTROLLERS},
                    "subjects": [{"kind": "ServiceAccount", "name": self.name, "namespace": CONTROLLERS}],
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role},
                }
            )
        role_object = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
        self.api.create({**role_object, "metadata": {"name": self.name}, "rules": self.rules})

    def delete(self) -> None:
        """All of that."""
        for kind in ("ClusterRole", "ClusterRoleBinding", "RoleBinding", "ServiceAccount"):
            self.api.delete(kind, self.name, CONTROLLERS)

    def start_without(self, index: int) -> None:
        """Run it with a role that lacks one rule."""
        rules = [rule for number, rule in enumerate(self.rules) if number != index]
        self.api.patch("ClusterRole", self.name, {"rules": rules})
        specification = copy.deepcopy(self.template["spec"])
        wanted = ("driver", f"csi-{self.sidecar}")
        specification["containers"] = [one for one in specification["containers"] if one["name"] in wanted]
        specification["containers"][1]["args"].append("--v=5")  # not every refusal is told without
        specification["serviceAccountName"] = self.name
        specification["nodeName"] = _HOME
        metadata = {
            "name": self.name,
            "namespace": CONTROLLERS,
            "labels": {"app.kubernetes.io/name": "confidential-csi"},
        }
        self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": specification})


@pytest.fixture
def lonely(deployment: Deployment, api: Api) -> Iterator[list[_Lonely]]:
    """The sidecars one by one, in the place of the controller's pods."""
    controller = api.get("Deployment", "confidential-csi-controller", CONTROLLERS)
    found = [
        _Lonely(
            api,
            sidecar,
            api.get("ClusterRole", f"confidential-csi-{sidecar}")["rules"],
            controller["spec"]["template"],
        )
        for sidecar in _SIDECARS
    ]
    for one in found:
        one.create()
    with _without_controllers(deployment, api, controller["spec"]["replicas"]):
        yield found
        _stop_all(api)
        for one in found:
            one.delete()


@pytest.mark.usefixtures("volume_and_snapshot")
def test_each_rule_of_a_sidecars_role_is_needed(
    deployment: Deployment, api: Api, lonely: list[_Lonely], immediate: str
) -> None:
    """Field case K1."""
    for index in range(max(len(one.rules) for one in lonely)):
        concerned = [one for one in lonely if index < len(one.rules)]
        for one in concerned:
            one.start_without(index)
        _ask(api, {one.sidecar for one in concerned}, index, immediate)
        for one in concerned:
            _see_it_refused(deployment, one, one.rules[index])
        _stop_all(api)


def test_a_sidecar_without_leases_leads_nothing(
    deployment: Deployment, api: Api, lonely: list[_Lonely]
) -> None:
    provisioner = lonely[0]
    api.delete("RoleBinding", provisioner.name, CONTROLLERS)
    provisioner.start_without(len(provisioner.rules))
    until(lambda: 'resource "leases"' in _log(deployment, provisioner).replace("\\", ""), what="a refusal")


@pytest.fixture
def volume_and_snapshot(deployment: Deployment, api: Api, immediate: str) -> Iterator[None]:
    """Made while all had their rights: what the sidecars are asked to change."""
    assert deployment.controllers()
    api.create(claim("data", immediate, "16Gi"))
    volume_of(api, "data")
    api.create(snapshot_of("data", "before"))
    ready_snapshot(api, "before")
    yield
    # The snapshotter deletes no snapshot whose creation it began and could not note.
    until(lambda: all(_is_ready(one) for one in api.list("VolumeSnapshot")), what="all snapshots are made")
    # One after the other: detached at once, they refuse each other their volume, for minutes in the end.
    for name in [found["metadata"]["name"] for found in api.list("VolumeAttachment")]:
        _detach(api, name)


def _detach(api: Api, name: str) -> None:
    api.delete("VolumeAttachment", name)
    until(lambda: not api.find("VolumeAttachment", name), what=f"{name} is gone")


def _is_ready(snapshot: Object) -> bool:
    ready: bool = snapshot.get("status", {}).get("readyToUse", False)
    return ready


def _ask(api: Api, sidecars: set[str], index: int, storage_class: str) -> None:
    """Something of each: a new and a restored volume, an attachment, growth and a change, a snapshot."""
    attributes_class = "confidential-csi-fast"
    if "provisioner" in sidecars:
        api.create(claim(f"new-{index}", storage_class, "16Gi", attributes_class=attributes_class))
        api.create(claim(f"restored-{index}", storage_class, "16Gi", source=from_snapshot("before")))
    if "attacher" in sidecars:
        volume = api.get("PersistentVolumeClaim", "data")["spec"]["volumeName"]
        api.create(attachment(f"by-hand-{index}", volume, _HOME))
    if "resizer" in sidecars:
        size = {"resources": {"requests": {"storage": f"{17 + index}Gi"}}}
        changed = {**size, "volumeAttributesClassName": attributes_class}
        api.patch("PersistentVolumeClaim", "data", {"spec": changed})
    if "snapshotter" in sidecars:
        api.create(snapshot_of("data", f"of-{index}"))


def _see_it_refused(deployment: Deployment, one: _Lonely, rule: Object) -> None:
    """Wait until its log says that it may not do something that the rule would allow."""
    (resource,), (group,), verbs = rule["resources"], rule["apiGroups"], "|".join(rule["verbs"])
    refusal = re.compile(rf'cannot ({verbs}) resource \\*"{resource}\\*" in API group \\*"{group}\\*"')
    try:
        until(lambda: refusal.search(_log(deployment, one)), what=f"{one.sidecar} is refused {resource}")
    except AssertionError as error:
        raise AssertionError(f"{error}; its log:\n{_log(deployment, one)[-8000:]}") from None


def _log(deployment: Deployment, one: _Lonely) -> str:
    return deployment.workers[_HOME].log(one.name, f"csi-{one.sidecar}")


def _stop_all(api: Api) -> None:
    """No controller runs any more, and the next one waits for nobody's lease."""
    for one in api.list("Pod", CONTROLLERS):
        api.delete("Pod", one["metadata"]["name"], CONTROLLERS)
    until(lambda: not api.list("Pod", CONTROLLERS), what="the controllers are gone")
    for lease in api.list("Lease", CONTROLLERS):
        api.delete("Lease", lease["metadata"]["name"], CONTROLLERS)


@contextmanager
def _without_controllers(deployment: Deployment, api: Api, replicas: int) -> Iterator[None]:
    def scale(count: int) -> None:
        api.patch("Deployment", "confidential-csi-controller", {"spec": {"replicas": count}}, CONTROLLERS)
        until(lambda: len(deployment.controllers()) == count, what=f"{count} controllers")

    scale(0)
    _stop_all(api)  # one that is about to end still works, and has all rights
    yield
    scale(replicas)
