"""Fixtures of the cluster tests: one control plane for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Api
from tests.cluster.control_plane import ApiServer, ControlPlane, running
from tests.cluster.deployments import Deployment, deployed
from tests.cluster.programs import Programs, programs
from tests.cluster.volumes import delete_everything
from tests.tools.own_folders import own_folder

#: Seconds for one of these tests on a busy machine: they wait for controllers that wait after each failure.
_SECONDS = 1200
#: Begun first, so that at the end no process waits for another's.
_LONGEST = ("test_aws.py", "test_kubelet.py", "test_rights.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave them more time than others, and begin with the longest."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(_SECONDS))
    items.sort(key=lambda item: item.path.name not in _LONGEST)


@pytest.fixture(scope="session")
def kubernetes() -> Programs:
    """The programs of Kubernetes and its sidecars."""
    return programs()


@pytest.fixture(scope="session")
def control_plane(kubernetes: Programs) -> Iterator[ControlPlane]:
    """The one that the tests share, without a node of its own."""
    with running(kubernetes) as shared:
        yield shared


@pytest.fixture(scope="session")
def api_server(kubernetes: Programs) -> Iterator[ApiServer]:
    """An API server alone, for tests that write objects' status themselves, and clear all away first."""
    with own_folder("cluster") as folder, ApiServer(kubernetes, folder) as running:
        yield running


@pytest.fixture
def api(control_plane: ControlPlane) -> Api:
    """The API server, as its administrator."""
    return control_plane.api


@pytest.fixture(scope="session")
def deployment(request: pytest.FixtureRequest, control_plane: ControlPlane) -> Iterator[Deployment]:
    """The chart with the provider that the test names; tests of one provider share it."""
    with deployed(request.param, control_plane) as found:
        yield found


@pytest.fixture
def immediate(api: Api) -> Iterator[str]:
    """A class whose claims do not wait for a pod."""
    name = "immediate"
    parameters = {"encrypt-type": "luks2", "kbs-key-id": "${pvc.namespace}/volume-key/${pvc.name}"}
    api.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": "caa-csi-block.csi.confidentialcontainers.io",
            "parameters": parameters,
            "allowVolumeExpansion": True,
        }
    )
    yield name
    api.delete("StorageClass", name)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test on a deployment its volumes are deleted; after a failure, the pods' logs are shown."""
    failed = request.session.testsfailed
    yield
    if "deployment" not in request.fixturenames:
        return
    deployment: Deployment = request.getfixturevalue("deployment")
    if request.session.testsfailed > failed:
        for worker in deployment.workers.values():
            print(worker.logs())
    for worker in deployment.workers.values():
        worker.check()
    forbidden = {one for worker in deployment.workers.values() for one in worker.forbidden()}
    deployment.disks.detach_all()
    delete_everything(deployment.control_plane.api)
    assert deployment.disks.names() == set()
    assert deployment.disks.snapshots() == 0
    assert not forbidden, "a container of the chart lacks a right"
