"""Fixtures of the cluster tests: one control plane for all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Api
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs import Programs, programs


@pytest.fixture(scope="session")
def kubernetes() -> Programs:
    """The programs of Kubernetes and its sidecars."""
    return programs()


@pytest.fixture(scope="session")
def control_plane(kubernetes: Programs) -> Iterator[ControlPlane]:
    """A running control plane with the definitions of snapshots, without a node. Its state is in memory."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        ControlPlane(kubernetes, Path(folder)) as running,
    ):
        for definition in kubernetes.snapshot_crds:
            running.kubectl("create", "-f", str(definition))
        yield running


@pytest.fixture
def api(control_plane: ControlPlane) -> Api:
    """The API server, as its administrator."""
    return control_plane.api
