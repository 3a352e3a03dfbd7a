"""Azure managed disks (``docs/azure.md``)."""

from providers.azure.provider import AzureProvider

__all__ = ["AzureProvider"]
