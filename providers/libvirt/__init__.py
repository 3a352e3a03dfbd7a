"""Disks as raw volumes in storage pools of a libvirt host, near or far."""

from providers.libvirt.provider import LibvirtProvider

__all__ = ["LibvirtProvider"]
