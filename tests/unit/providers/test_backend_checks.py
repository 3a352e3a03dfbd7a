"""What each cloud's refusals and outages look like to the background check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from azure.core.exceptions import ClientAuthenticationError

from proto import csi_pb2
from providers.aws import AwsProvider, calls
from providers.azure import AzureProvider
from providers.errors import UnavailableError
from providers.local import LocalProvider
from tests.contract.aws_backend import SETTINGS
from tests.contract.libvirt_backend import POOL, LibvirtBackend
from tests.fakes.arm.cloud import FOR_EVER, ArmCloud
from tests.fakes.arm.messages import Dropped, Fault, anything, error, throttled
from tests.fakes.arm.rig import Rig, soon
from tests.fakes.arm.wire import transport
from tests.fakes.ec2 import Cloud, Ec2Server
from tests.fakes.ec2 import Fault as Ec2Fault
from tests.fakes.ec2.server import clients_of
from tests.tools.driver_process import running
from tests.tools.waiting import eventually
from tests.unit.driver.rig import connect


@pytest.fixture
def ec2() -> Iterator[tuple[Cloud, Ec2Server]]:
    cloud = Cloud()
    with Ec2Server(cloud) as server:
        yield cloud, server


def test_a_role_without_permission_is_refused_by_ec2(ec2: tuple[Cloud, Ec2Server]) -> None:
    cloud, server = ec2
    provider = AwsProvider(SETTINGS, clients_of(server.url))
    assert provider.check_backend(soon()) is None
    cloud.faults["DescribeVolumes"].append(Ec2Fault.DENIED)
    words = provider.check_backend(soon())
    assert words is not None
    assert "UnauthorizedOperation" in words
    assert "deploy/aws/iam-policy.json" in words
    assert provider.check_backend(soon()) is None
    assert cloud.calls.keys() == {"DescribeVolumes"}


def test_an_outage_of_ec2_is_no_refusal(
    ec2: tuple[Cloud, Ec2Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_FIRST_PAUSE", 30.0)
    cloud, server = ec2
    provider = AwsProvider(SETTINGS, clients_of(server.url))
    cloud.is_reachable = False
    with pytest.raises(UnavailableError):
        provider.check_backend(soon(20))
    cloud.is_reachable = True
    cloud.faults["DescribeVolumes"] = 50 * [Ec2Fault.THROTTLED]
    with pytest.raises(UnavailableError, match="RequestLimitExceeded"):
        provider.check_backend(soon(20))


def test_a_controller_without_credentials_for_aws_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    provider = AwsProvider(SETTINGS, lambda region: boto3.Session().client("ec2", region_name=region))
    words = provider.check_backend(soon())
    assert words is not None
    assert "no credentials" in words


@pytest.mark.parametrize(
    ("status", "code", "word"),
    [
        (403, "AuthorizationFailed", "role"),
        (401, "InvalidAuthenticationToken", "identity"),
        (404, "ResourceGroupNotFound", "resource group"),
        (404, "SubscriptionNotFound", "subscription"),
    ],
)
def test_refusals_of_azure_name_the_resource_group(status: int, code: str, word: str) -> None:
    rig = Rig()
    provider = rig.provider()
    assert provider.check_backend(soon()) is None
    rig.cloud.faults.append(Fault(anything, before=error(status, code), times=FOR_EVER))
    words = provider.check_backend(soon())
    assert words is not None
    assert "resource group disks" in words
    assert code in words
    assert word in words


@pytest.mark.parametrize("reaction", [throttled(300), error(503, "ServerTimeout"), Dropped])
def test_an_outage_of_azure_is_no_refusal(reaction: Any) -> None:
    rig = Rig()
    rig.cloud.faults.append(Fault(anything, before=reaction, times=FOR_EVER))
    with pytest.raises(UnavailableError):
        rig.provider().check_backend(soon(2))


def test_a_controller_without_identity_for_azure_says_so() -> None:
    class Nobody:
        def get_token(self, *_scopes: str, **_options: Any) -> Any:
            raise ClientAuthenticationError("DefaultAzureCredential failed to retrieve a token")

    rig = Rig(ArmCloud())
    provider = AzureProvider(rig.settings(), Nobody(), lambda: transport(rig.cloud.handle))
    words = provider.check_backend(soon())
    assert words is not None
    assert "DefaultAzureCredential" in words


def test_a_pool_that_is_not_active_is_named(tmp_path: Path) -> None:
    backend = LibvirtBackend(tmp_path)
    provider = backend.connect()
    assert provider.check_backend(soon()) is None
    with backend.unreachable():
        words = provider.check_backend(soon())
    assert words is not None
    assert POOL in words
    assert "pool-start" in words
    assert provider.check_backend(soon()) is None


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path)
    assert provider.check_backend(soon()) is None
    (tmp_path / "snapshots").rmdir()
    words = provider.check_backend(soon())
    assert words is not None
    assert str(tmp_path / "snapshots") in words


def test_probe_of_a_real_controller_tells_of_a_missing_permission_and_other_calls_go_on(
    tmp_path: Path, ec2: tuple[Cloud, Ec2Server]
) -> None:
    cloud, server = ec2
    cloud.faults["DescribeVolumes"] = 50 * [Ec2Fault.DENIED]
    with (
        running("controller", tmp_path, "--provider", "aws", env=server.environment("us-east-1b")) as process,
        connect(process.target()) as client,
    ):
        eventually(lambda: not client.identity.Probe(csi_pb2.ProbeRequest(), timeout=60).ready.value)
        asked = csi_pb2.ControllerGetCapabilitiesRequest()
        assert client.controller.ControllerGetCapabilities(asked, timeout=60).capabilities
        log = process.log.read_text()
    assert "backend checked result=refused" in log
    assert "UnauthorizedOperation" in log
