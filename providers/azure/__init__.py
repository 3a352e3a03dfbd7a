"""Azure managed disks (``docs/azure.md``).

Importing the package imports no SDK: ``azure.class_rules`` needs none, the provider does.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from providers.azure.provider import AzureProvider

__all__ = ["AzureProvider"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from providers.azure.provider import AzureProvider  # noqa: PLC0415  Loads the SDK.

    return AzureProvider
