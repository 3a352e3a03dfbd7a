"""The SDK is Azure's own affair: neither the node role nor another provider imports it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_ROLES = {
    "node": "import cli.main, cli.node, driver.node, driver.server",
    "local": "from providers.registry import load_provider, installed_providers\n"
    "assert 'azure' in installed_providers()\n"
    "import tempfile\n"
    "with tempfile.TemporaryDirectory() as folder:\n"
    "    load_provider('local', {'CONFIDENTIAL_CSI_LOCAL_DIRECTORY': folder})",
}


@pytest.mark.parametrize("role", _ROLES)
def test_who_does_not_serve_azure_does_not_import_its_sdk(role: str) -> None:
    check = "import sys\nassert not [name for name in sys.modules if name.split('.')[0] in ('azure', 'msal')]"
    subprocess.run([sys.executable, "-c", f"{_ROLES[role]}\n{check}"], check=True, timeout=60)


def test_azure_imports_no_other_clouds_sdk() -> None:
    check = "assert 'azure.mgmt.compute' in sys.modules\nassert not {'boto3', 'libvirt'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"import sys, providers.azure\n{check}"], check=True, timeout=60)
