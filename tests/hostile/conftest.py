"""The hostile host in front of one proxy in mode B, and one in mode A, for the whole suite.

Tests say in their first line under which policy and in which mode they run. *Default* is the built-in policy
that holds where none is found.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.guest.pod import Pod
from tests.guest.sandbox import Sandbox, front_proxy, kata_agent, middle_proxy
from tests.hostile.host import Host

#: Seconds after which a disk counts as missing: the guest has seen each one that a test attached.
PATIENCE = ("--device-timeout", "2")


@pytest.fixture(scope="package")
def guest_with_kata(shared_pod: Pod) -> Iterator[Pod]:
    """The guest, and what stands behind either proxy."""
    with kata_agent(shared_pod):
        yield shared_pod


@pytest.fixture(scope="package")
def middle(guest_with_kata: Pod) -> Iterator[Sandbox]:
    """The proxy in mode B: between forwarder and kata-agent."""
    with middle_proxy(guest_with_kata, *PATIENCE) as running:
        yield running


@pytest.fixture(scope="package")
def front(guest_with_kata: Pod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """The proxy in mode A: in front of the forwarder."""
    with front_proxy(guest_with_kata, tmp_path_factory.mktemp("tls")) as running:
        yield running


@pytest.fixture
def host(pod: Pod, middle: Sandbox) -> Iterator[Host]:
    """The host, in front of a proxy in mode B. Depends on ``pod``, which looks for what is left."""
    assert middle.pod is pod
    found = Host(middle)
    yield found
    found.removes_all()


@pytest.fixture(params=["A", "B"])
def host_of_either_mode(pod: Pod, request: pytest.FixtureRequest) -> Iterator[Host]:
    """The host, in front of a proxy in mode A and in mode B."""
    box: Sandbox = request.getfixturevalue({"A": "front", "B": "middle"}[request.param])
    assert box.pod is pod
    found = Host(box)
    yield found
    found.removes_all()
