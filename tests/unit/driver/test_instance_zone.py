"""A node's zone from instance metadata, over real HTTP."""

from __future__ import annotations

import pytest

from driver.instance_zone import NoMetadata, instance_zone
from tests.fakes.instance_metadata import AWS_ZONE, COMPUTE, metadata
from tests.unit.cli.test_command import _fails


def test_each_cloud_tells_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past any proxy: the address is the machine's own."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy")
    with metadata() as service:
        assert instance_zone("aws", service) == AWS_ZONE
        assert instance_zone("azure", service) == "westeurope-2"


def test_a_machine_in_no_zone_is_told_by_its_fault_domain() -> None:
    with metadata({**COMPUTE, "zone": ""}) as service:
        assert instance_zone("azure", service) == "1"


@pytest.mark.parametrize(
    "compute", [["x"], {"location": "westeurope"}, {**COMPUTE, "zone": "", "platformFaultDomain": ""}]
)
def test_metadata_without_a_zone_is_an_error(compute: object) -> None:
    with metadata(compute) as service, pytest.raises(NoMetadata, match="azure"):
        instance_zone("azure", service)


def test_no_metadata_is_an_error_that_says_what_to_do() -> None:
    for cloud in ("aws", "azure"):
        with pytest.raises(NoMetadata, match="zone's name"):
            instance_zone(cloud, "127.0.0.1:1")
    assert "gcp" in _fails("node", "--node-id", "n", "--zone", "metadata:gcp")
