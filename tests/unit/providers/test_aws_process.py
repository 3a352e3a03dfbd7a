"""A real controller process finds the provider, its credentials and its region by the usual names alone."""

from __future__ import annotations

from pathlib import Path

from driver.parameters import CLOUD_PARAMETERS
from providers.aws import AwsProvider
from tests.fakes.ec2 import Cloud, Ec2Server
from tests.tools.driver_process import running
from tests.unit.driver.rig import ENCRYPTED, connect


def test_parameters_of_aws_are_known_by_name_where_it_is_not_installed() -> None:
    assert CLOUD_PARAMETERS["aws"] == AwsProvider.parameter_names


def test_a_real_controller_takes_credentials_and_region_from_the_usual_places(tmp_path: Path) -> None:
    cloud = Cloud()
    with Ec2Server(cloud) as server:
        environment = server.environment("us-east-1b")
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
