"""Fixtures for tests that need a guest; those of ``guest`` and ``hostile`` are all marked ``guest``.

They are here, and not there, so that both folders share one guest.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.guest.pod import KEY, KEY_ID, OTHER_KEY, OTHER_KEY_ID, PLAINTEXT, Pod
from tests.guest.policy import Guest
from tests.lab.hypervisor import Hypervisor
from tests.lab.kbs import Kbs
from tests.lab.podvm import PodVm

#: That a test with a guest may take, its fixtures included: emulation without KVM feels a busy machine most.
GUEST_SECONDS = 900

_names = itertools.count()

# A machine's proxy leads to package indexes; the servers of tests are on the machine itself.
os.environ["no_proxy"] = f"127.0.0.1,localhost,{os.environ.get('no_proxy') or os.environ.get('NO_PROXY', '')}"

# A busy machine is not a slow program: a property that is about time measures it itself. Each run draws the
# same examples; ``--hypothesis-profile=explore`` (with ``--hypothesis-seed``) looks for others.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile("same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a guest, and begin with them: they take longest."""
    here = Path(__file__).parent
    for item in items:
        if {here / "guest", here / "hostile"} & set(item.path.parents):
            item.add_marker(pytest.mark.guest)
            item.add_marker(pytest.mark.timeout(GUEST_SECONDS))
    items.sort(key=lambda item: item.get_closest_marker("guest") is None)


@pytest.fixture(scope="session")
def hypervisor() -> Iterator[Hypervisor]:
    """One libvirtd for the run."""
    with Hypervisor() as running:
        yield running


@pytest.fixture
def boot(hypervisor: Hypervisor) -> Iterator[Callable[[], PodVm]]:
    """Boots a new guest at each call (about 5 s); they are destroyed after the test."""
    booted: list[PodVm] = []

    def boot_one() -> PodVm:
        booted.append(hypervisor.boot(f"vm-{next(_names)}"))
        return booted[-1]

    yield boot_one
    for vm in booted:
        vm.destroy()


@pytest.fixture(scope="module")
def vm(hypervisor: Hypervisor) -> Iterator[PodVm]:
    """One guest for all tests of a module that leave it as they found it."""
    running = hypervisor.boot(f"vm-{next(_names)}")
    yield running
    running.destroy()


@pytest.fixture
def make_disk(tmp_path: Path) -> Callable[..., Path]:
    """Makes sparse raw images: ``make_disk("a", mib=64)``."""

    def make(name: str, *, mib: int = 64) -> Path:
        image = tmp_path / f"{name}.raw"
        with image.open("xb") as file:
            file.truncate(mib * 2**20)
        return image

    return make


@pytest.fixture(scope="session")
def shared_pod(hypervisor: Hypervisor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    """One guest with a data hub for all tests that use ``pod``."""
    kbs = Kbs(tmp_path_factory.mktemp("kbs"))
    kbs.put(KEY_ID, KEY)
    kbs.put(OTHER_KEY_ID, OTHER_KEY)
    # Two processors: tests let several things happen at once in it.
    running = hypervisor.boot(f"vm-{next(_names)}", vcpus=2)
    yield Pod(running, kbs)
    running.destroy()


@pytest.fixture
def pod(shared_pod: Pod) -> Iterator[Pod]:
    """The shared guest; after the test, nothing of a volume may be left in it."""
    yield shared_pod
    shared_pod.clean_up()


@pytest.fixture
def hasty(pod: Pod) -> Iterator[None]:
    """The blank check of the agent's command line takes half a second, where its time is not the point."""
    pod.blank_check_seconds = 0.5
    yield
    pod.blank_check_seconds = None


@pytest.fixture
def guest(pod: Pod) -> Iterator[Guest]:
    """The shared guest, for which a test chooses the volume policy."""
    found = Guest(pod)
    yield found
    found.forget()


@pytest.fixture(scope="session")
def ready_image(shared_pod: Pod, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A volume of 64 MiB under ``KEY_ID`` with ``PLAINTEXT`` in its ``file``. Copy it; do not change it."""
    image = tmp_path_factory.mktemp("ready") / "ready.raw"
    with image.open("xb") as file:
        file.truncate(64 * 2**20)
    shared_pod.attach(image, "ready")
    shared_pod.mount_one("ready").result()
    shared_pod.write_file()
    shared_pod.clean_up()
    assert PLAINTEXT not in image.read_bytes()
    return image


@pytest.fixture
def ready_copy(ready_image: Path, tmp_path: Path) -> Path:
    """A copy of ``ready_image`` of the test's own."""
    copy = tmp_path / "ready.raw"
    shutil.copyfile(ready_image, copy)
    return copy
