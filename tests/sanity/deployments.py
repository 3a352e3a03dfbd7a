"""The providers that csi-sanity runs against: how a controller of each is started.

A provider joins by adding its deployment to :data:`DEPLOYMENTS`, and a file ``not-run-<name>.txt``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from driver.controller import ControllerService
from driver.endpoint import Endpoint
from driver.identity import IdentityService
from driver.server import Server
from providers.aws import AwsProvider
from tests.contract.aws_backend import SETTINGS
from tests.fakes.arm.cloud import ArmCloud
from tests.fakes.arm.server import serving
from tests.fakes.ec2 import Cloud, Ec2Server
from tests.fakes.ec2.server import clients_of
from tests.lab.hypervisor import Hypervisor
from tests.tools.driver_process import running

GIB = 1 << 30


@dataclass(frozen=True)
class Deployment:
    """A controller that runs."""

    target: str
    """Its endpoint."""
    disk_size: Callable[[str], int]
    """Bytes of the disk with that id."""
    node_options: tuple[str, ...] = ()
    mutable_parameters: Mapping[str, str] = field(default_factory=dict)


Deploy = Callable[[Path], AbstractContextManager[Deployment]]
"""Starts one that keeps its files in a directory."""


@contextmanager
def local(folder: Path) -> Iterator[Deployment]:
    """Files in a directory; the controller is the real process."""
    disks = folder / "disks"
    disks.mkdir()
    settings = {"CONFIDENTIAL_CSI_LOCAL_DIRECTORY": str(disks)}

    def disk_size(handle: str) -> int:
        return (disks / "volumes" / handle / "disk.raw").stat().st_size

    with running("controller", folder, "--provider", "local", env=settings) as controller:
        yield Deployment(controller.target(), disk_size)


@contextmanager
def aws(folder: Path) -> Iterator[Deployment]:
    """The strict EC2; the controller serves from this process, which knows how fast that EC2 is."""
    cloud = Cloud()
    with Ec2Server(cloud) as server:
        endpoint = Endpoint(folder / "controller.sock")
        services = {
            "Identity": IdentityService(can_expand=True, has_zones=True),
            "Controller": ControllerService(AwsProvider(SETTINGS, clients_of(server.url)), ("aws",)),
        }
        serving = Server(endpoint, services)
        serving.start()
        try:
            yield Deployment(
                endpoint.target,
                lambda disk: cloud.volumes[disk].now.size * GIB,
                ("--zone", "us-east-1b"),
                {"awsVolumeType": "gp3", "awsIops": "3500"},
            )
        finally:
            serving.stop(1)


@contextmanager
def azure(folder: Path) -> Iterator[Deployment]:
    """The strict ARM over TLS; the controller is the real process, with a token as pods in AKS get it."""
    cloud = ArmCloud(operation_looks=1)
    token = folder / "federated-token"
    token.write_text("a service account's token")
    with (
        serving(folder) as server,
        running(
            "controller",
            folder,
            *("--provider", "azure"),
            env=server.environment(server.add(cloud).subscription, token),
        ) as controller,
    ):
        yield Deployment(
            controller.target(),
            lambda disk: cloud.disk(disk.rpartition("/")[2]).properties["diskSizeGB"] * GIB,
            ("--zone", "westeurope-2"),
            {"azureDiskSKU": "Premium_LRS"},
        )
    assert not cloud.violations, cloud.violations


@contextmanager
def libvirt(folder: Path) -> Iterator[Deployment]:
    """A pool of a real libvirtd; the controller is the real process."""
    with Hypervisor() as hypervisor:
        disks = hypervisor.state / "disks"
        disks.mkdir()
        hypervisor.make_pool("sanity", disks)

        def disk_size(disk_id: str) -> int:
            (disk,) = disks.glob(f"{disk_id.partition('@')[0]}~*.raw")
            return disk.stat().st_size

        settings = {"LIBVIRT_URI": hypervisor.uri, "LIBVIRT_POOL": "sanity"}
        with running("controller", folder, "--provider", "libvirt", env=settings) as controller:
            yield Deployment(controller.target(), disk_size)
        assert list(disks.iterdir()) == []


DEPLOYMENTS: Mapping[str, Deploy] = {"local": local, "aws": aws, "azure": azure, "libvirt": libvirt}
