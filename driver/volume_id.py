"""Ids of volumes and snapshots, and the names they are created under.

An id is ``<provider>:<handle>``, for instance ``local:csi-vol-pvc-1``; it tells a controller, today's or
another, where to look. The older Go driver used the bare CSI name (``pvc-…``) as the id of a volume; such
an id has no provider in front and still resolves.

An id from outside is untrusted text. One that no driver can have made is simply unknown: nothing is asked
about it. It is never refused for its form.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from driver.errors import FailedPrecondition, InvalidArgument
from providers.interface import BlockVolumeProvider

#: Bytes (CSI 1.12, "Size Limits").
MAXIMUM_LENGTH = 128

#: Bytes; the interface's promise.
_MAXIMUM_HANDLE = 100

_HANDLE = re.compile(rf"[!-~]{{1,{_MAXIMUM_HANDLE}}}", re.ASCII)

#: What Kubernetes' provisioner makes: a prefix and a UUID.
_BARE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)


def check_name(name: str) -> None:
    """Check the CSI name of a volume or snapshot to create.

    Raises:
        InvalidArgument: it is longer than 128 bytes or holds a control character.
    """
    length = len(name.encode())
    if length > MAXIMUM_LENGTH:
        raise InvalidArgument(f"name has {length} bytes; at most {MAXIMUM_LENGTH} are allowed")
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise InvalidArgument(f"name {name!a} holds a control character")


class Ids:
    """Ids of one provider's objects. ``others`` names the providers known besides it."""

    def __init__(self, provider: BlockVolumeProvider, others: Iterable[str]) -> None:
        self._provider = provider
        self._others = frozenset(others) - {provider.name}

    def format(self, handle: str) -> str:
        """The id of the object with this handle."""
        return f"{self._provider.name}:{handle}"

    def volume_handle(self, volume_id: str) -> str | None:
        """The handle of the volume with this id; None when no driver can have made the id.

        Raises:
            FailedPrecondition: it belongs to another provider, so this controller can't tell about it.
        """
        prefix, separator, _ = volume_id.partition(":")
        if separator and (prefix == self._provider.name or prefix in self._others):
            return self._own_handle(volume_id)
        return self._provider.handle_for_name(volume_id) if _BARE_NAME.fullmatch(volume_id) else None

    def snapshot_handle(self, snapshot_id: str) -> str | None:
        """The handle of the snapshot with this id; None and errors as for :meth:`volume_handle`."""
        return self._own_handle(snapshot_id)

    def _own_handle(self, text: str) -> str | None:
        prefix, _, handle = text.partition(":")
        if not _HANDLE.fullmatch(handle):
            return None
        if prefix in self._others:
            raise FailedPrecondition(
                f"{text[:MAXIMUM_LENGTH]!r} belongs to provider {prefix!r}, and this controller serves "
                f"{self._provider.name!r}; ask a controller started with --provider {prefix}"
            )
        return handle if prefix == self._provider.name else None
