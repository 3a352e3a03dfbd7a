"""The example provider as any third party's: a package beside the driver, found by its entry point."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import grpc
import pytest

from proto import csi_pb2
from providers.errors import OutcomeUnknownError, ProviderError, QuotaExceededError, UnavailableError
from tests.contract.calls import create
from tests.contract.example_backend import ExampleBackend
from tests.tools.driver_process import running
from tests.unit.driver.rig import ENCRYPTED, connect, refused

_SOURCE = Path(__file__).parents[3] / "examples" / "provider"
_MIB = 1 << 20


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed, by pip, from a copy that it can build in."""
    folder = tmp_path_factory.mktemp("third-party")
    source = shutil.copytree(_SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder / "packages")]
    subprocess.run([*command, *offline, source], check=True, timeout=120)
    return folder / "packages"


def test_a_real_controller_serves_a_third_partys_provider(installed: Path, tmp_path: Path) -> None:
    disks = tmp_path / "disks"
    disks.mkdir()
    settings = {
        "CONFIDENTIAL_CSI_EXAMPLE_DIRECTORY": str(disks),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(installed), os.environ.get("PYTHONPATH", "")))),
    }
    with (
        running("controller", tmp_path, "--provider", "example", env=settings) as controller,
        connect(controller.target()) as client,
    ):
        volume = client.create(parameters={**ENCRYPTED, "cloudProvider": "example"}, required=64 * _MIB)
        assert client.create(parameters=ENCRYPTED, required=64 * _MIB).volume_id == volume.volume_id
        assert volume.volume_id == "example:csi-vol-pvc-1"
        assert volume.volume_context["cloud-volume-path"] == "csi-vol-pvc-1"
        (disk,) = disks.iterdir()
        assert client.expand(volume.volume_id, 128 * _MIB).capacity_bytes == 128 * _MIB
        assert disk.stat().st_size == 128 * _MIB
        offered = client.controller.ControllerGetCapabilities(csi_pb2.ControllerGetCapabilitiesRequest())
        rpc = csi_pb2.ControllerServiceCapability.RPC
        assert {rpc.Type.Name(one.rpc.type) for one in offered.capabilities} == {
            "CREATE_DELETE_VOLUME",
            "GET_VOLUME",
            "EXPAND_VOLUME",
            "LIST_VOLUMES",
        }
        with refused(grpc.StatusCode.UNIMPLEMENTED):
            client.snapshot("snap-1", volume.volume_id)
        client.delete(volume.volume_id)
        assert list(disks.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_at_any_step_is_told_as_what_it_is(tmp_path: Path, code: int) -> None:
    """ "Nothing was created" ends a claim's creation for good, so it must be true."""
    told = set()
    for failing in count(1):
        folder = tmp_path / str(failing)
        folder.mkdir()
        backend = ExampleBackend(folder)
        provider = backend.connect()
        numbers = count(1)

        def fail_one(numbers: Iterator[int] = numbers, failing: int = failing) -> None:
            if next(numbers) == failing:
                raise OSError(code, os.strerror(code))

        try:
            with backend.watched(fail_one):
                create(provider)
        except ProviderError as error:
            told.add(type(error))
            if isinstance(error, (QuotaExceededError, UnavailableError)):
                assert backend.objects() == []
            else:
                assert isinstance(error, OutcomeUnknownError)
            create(provider)
        else:
            break
        assert len(backend.objects()) == 1
    assert told == {OutcomeUnknownError, QuotaExceededError if code == errno.ENOSPC else UnavailableError}


def test_a_controller_without_the_package_names_what_is_installed(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"no provider 'example' is installed \(installed: aws, .*local"),
        running("controller", tmp_path, "--provider", "example"),
    ):
        pass
