"""The backends that the contract suite runs on."""

from __future__ import annotations

import os
from pkgutil import resolve_name

from tests.contract.backend import Backend

BACKENDS_SETTING = "CONTRACT_BACKENDS"
"""Names others than these, as ``module:Class``, separated by spaces: ``docs/add-a-provider.md``."""

_OURS = """
tests.contract.local_backend:LocalBackend
tests.contract.example_backend:ExampleBackend
tests.contract.libvirt_backend:LibvirtBackend
tests.contract.aws_backend:AwsBackend
tests.contract.aws_backend:MotoBackend
tests.contract.azure_backend:AzureBackend
"""

# By name, so that nobody needs an SDK to hold another provider to the suite.
BACKENDS: tuple[type[Backend], ...] = tuple(
    resolve_name(name) for name in os.environ.get(BACKENDS_SETTING, _OURS).split()
)


def backends_with(*interfaces: type) -> list[type[Backend]]:
    """Those whose provider implements all of these optional interfaces."""
    return [
        backend
        for backend in BACKENDS
        if all(issubclass(backend.provider_class, interface) for interface in interfaces)
    ]
