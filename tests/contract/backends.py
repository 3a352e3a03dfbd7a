"""The backends that the contract suite runs on."""

from __future__ import annotations

from tests.contract.aws_backend import AwsBackend, MotoBackend
from tests.contract.azure_backend import AzureBackend
from tests.contract.backend import Backend
from tests.contract.libvirt_backend import LibvirtBackend
from tests.contract.local_backend import LocalBackend

BACKENDS: tuple[type[Backend], ...] = (LocalBackend, LibvirtBackend, AwsBackend, MotoBackend, AzureBackend)


def backends_with(*interfaces: type) -> list[type[Backend]]:
    """Those whose provider implements all of these optional interfaces."""
    return [
        backend
        for backend in BACKENDS
        if all(issubclass(backend.provider_class, interface) for interface in interfaces)
    ]
