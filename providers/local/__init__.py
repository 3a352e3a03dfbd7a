"""Disks as sparse raw files in a directory of this machine: no daemon, no cloud account."""

from providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]
