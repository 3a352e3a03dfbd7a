"""The control plane that the other tests use is a real one."""

from __future__ import annotations

from tests.cluster.api import Api, until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs import kubernetes_version


def test_it_is_the_pinned_kubernetes_and_its_controllers_work(control_plane: ControlPlane, api: Api) -> None:
    assert api.request("GET", "/version")["gitVersion"] == kubernetes_version()
    api.create({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "controllers-work"}})
    until(lambda: api.find("ServiceAccount", "default", "controllers-work"), what="a default service account")
    assert control_plane.token("default", "controllers-work").count(".") == 2
    api.delete("Namespace", "controllers-work")
    until(lambda: not api.find("Namespace", "controllers-work"), what="the namespace is gone")
