"""An SDK costs only the controller that serves its cloud (issue 4, "How it is judged" 5).

The real processes tell each module that they import, in their log.
"""

from __future__ import annotations

import re

import pytest

from tests.bench.controllers import MEMORY_BUDGETS_MB, idle

_SDKS = {
    "aws": {"boto3", "botocore", "s3transfer"},
    "azure": {"azure", "msal", "msrest", "requests"},
    "libvirt": {"libvirt", "libvirtmod"},
}
_PROVIDERS = ("local", *_SDKS)
_IMPORT = re.compile(r"^import time: +\d+ \| +\d+ \| *([\w.]+)$", re.MULTILINE)


@pytest.mark.parametrize("role", ["node", *_PROVIDERS])
def test_a_process_imports_its_own_cloud_s_sdk_alone(role: str) -> None:
    imported = set(_IMPORT.findall(idle(role, {"PYTHONPROFILEIMPORTTIME": "1"}).log))
    assert "driver.server" in imported
    packages = {name.partition(".")[0] for name in imported}
    for cloud, sdk in _SDKS.items():
        assert bool(packages & sdk) == (cloud == role), sorted(packages & sdk)
    served = {name for name in _PROVIDERS if any(one.startswith(f"providers.{name}.") for one in imported)}
    assert served == {role} - {"node"}
    assert not packages & {"agent", "tests", "setuptools", "prometheus_client"}


def test_every_provider_and_the_node_role_are_measured() -> None:
    assert set(MEMORY_BUDGETS_MB) == {"node", *_PROVIDERS}
