"""Fixtures of the cluster tests: one control plane for all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Api
from tests.cluster.control_plane import ControlPlane
from tests.cluster.deployments import Deployment, deployed
from tests.cluster.processes import Running
from tests.cluster.programs import Programs, programs
from tests.cluster.volumes import delete_everything


@pytest.fixture(scope="session")
def kubernetes() -> Programs:
    """The programs of Kubernetes and its sidecars."""
    return programs()


@pytest.fixture(scope="session")
def control_plane(kubernetes: Programs) -> Iterator[ControlPlane]:
    """A running control plane with the parts for snapshots, without a node. Its state is in memory."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        ControlPlane(kubernetes, Path(folder)) as running,
    ):
        for definition in kubernetes.snapshot_crds:
            running.kubectl("create", "-f", str(definition))
        snapshots = _snapshot_controller(running)
        yield running
        snapshots.stop()


@pytest.fixture
def api(control_plane: ControlPlane) -> Api:
    """The API server, as its administrator."""
    return control_plane.api


@pytest.fixture(scope="session")
def deployment(request: pytest.FixtureRequest, control_plane: ControlPlane) -> Iterator[Deployment]:
    """The chart with the provider that the test names; tests of one provider share it."""
    with deployed(request.param, control_plane) as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, api: Api) -> Iterator[None]:
    """After each test on a deployment its volumes are deleted; after a failure, the pods' logs are shown."""
    failed = request.session.testsfailed
    yield
    if "deployment" not in request.fixturenames:
        return
    deployment: Deployment = request.getfixturevalue("deployment")
    if request.session.testsfailed > failed:
        for worker in deployment.workers.values():
            print(worker.logs())
    deployment.disks.detach_all()
    delete_everything(api)
    assert deployment.disks.names() == set()
    assert deployment.disks.snapshots() == 0


def _snapshot_controller(control_plane: ControlPlane) -> Running:
    """The cluster's controller of snapshots, which is no part of our chart."""
    program = control_plane.programs["snapshot-controller"]
    command: list[str | Path] = [
        program,
        f"--kubeconfig={control_plane.kubeconfig}",
        "--http-endpoint=127.0.0.1:0",
    ]
    return Running(command, control_plane.folder / "snapshot-controller.log")
