"""One control plane for the tests of the admission policies: they are in force for everybody on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.admission.policies import Admission
from tests.cluster.api import Api
from tests.cluster.control_plane import running
from tests.cluster.programs import Programs


@pytest.fixture(scope="package")
def admission(kubernetes: Programs) -> Iterator[Admission]:
    """A control plane of this package's own."""
    with running(kubernetes) as control_plane:
        yield Admission(control_plane)


@pytest.fixture
def aws(admission: Admission) -> Api:
    """The API server with the policies for AWS."""
    return admission.of("aws")
