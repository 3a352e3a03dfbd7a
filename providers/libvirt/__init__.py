"""Disks as raw volumes in storage pools of a libvirt host, near or far.

Importing the package imports no SDK: ``libvirt.class_rules`` needs none, the provider does.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from providers.libvirt.provider import LibvirtProvider

__all__ = ["LibvirtProvider"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from providers.libvirt.provider import LibvirtProvider  # noqa: PLC0415  Loads the SDK.

    return LibvirtProvider
