"""The SDK is AWS's own affair, and a real controller process finds the provider by its name alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from driver.parameters import CLOUD_PARAMETERS
from providers.aws import AwsProvider
from tests.fakes.ec2 import Cloud, Ec2Server
from tests.tools.driver_process import running
from tests.unit.driver.rig import ENCRYPTED, connect

_ROLES = {
    "node": "import cli.main, cli.node, driver.node, driver.server",
    "local": "import tempfile\n"
    "from providers.registry import load_provider\n"
    "with tempfile.TemporaryDirectory() as folder:\n"
    "    load_provider('local', {'CONFIDENTIAL_CSI_LOCAL_DIRECTORY': folder})",
}


@pytest.mark.parametrize("role", _ROLES)
def test_who_does_not_serve_aws_does_not_import_its_sdk(role: str) -> None:
    check = "import sys\nassert not {'boto3', 'botocore'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{_ROLES[role]}\n{check}"], check=True, timeout=60)


def test_aws_imports_no_other_cloud_s_sdk() -> None:
    check = "assert 'boto3' in sys.modules\nassert not {'azure', 'libvirt'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"import sys, providers.aws\n{check}"], check=True, timeout=60)


def test_parameters_of_aws_are_known_by_name_where_it_is_not_installed() -> None:
    assert CLOUD_PARAMETERS["aws"] == AwsProvider.parameter_names


def test_a_real_controller_takes_credentials_and_region_from_the_usual_places(tmp_path: Path) -> None:
    cloud = Cloud()
    with Ec2Server(cloud) as server:
        environment = {
            "AWS_ENDPOINT_URL_EC2": server.url,
            "AWS_ACCESS_KEY_ID": "AKIATEST",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": "us-east-1",
            "CONFIDENTIAL_CSI_AWS_ZONE": "us-east-1b",
        }
        with (
            running("controller", tmp_path, "--provider", "aws", env=environment) as controller,
            connect(controller.target()) as client,
        ):
            volume = client.create(parameters=ENCRYPTED)
            assert client.create(parameters=ENCRYPTED) == volume
            client.delete(volume.volume_id)
    assert volume.volume_id.startswith("aws:us-east-1/vol-")
    assert volume.volume_context["ebs-volume-id"] == volume.volume_context["cloud-volume-path"]
    assert len(cloud.volumes) == 1
    assert not cloud.existing_volumes()
