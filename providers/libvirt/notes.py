"""The fence's note beside a volume: the node it is published to, as the storage volume ``csi-vol-x~note``.

Like tags, it is a copy that libvirt makes of a draft, for one caller only, so no reader sees a part of it.
"""

from __future__ import annotations

import secrets

import libvirt

from providers.errors import OutcomeUnknownError
from providers.libvirt import sidecar
from providers.libvirt.documents import volume_xml
from providers.libvirt.failures import is_missing
from providers.libvirt.parts import NOTE, draft_name
from providers.libvirt.pools import Pool
from providers.libvirt.sidecar import Sidecar


def read(connection: libvirt.virConnect, pool: Pool, base: str) -> str:
    """The node id noted beside the volume ``base``; empty if none is."""
    volume = pool.find(base + NOTE)
    found = None if volume is None else sidecar.read(connection, volume)
    return "" if found is None else found.content.decode("ascii").partition(" ")[0]


def replace(connection: libvirt.virConnect, pool: Pool, base: str, node_id: str, replacing: str) -> None:
    """Note ``node_id`` (empty: nothing) in place of ``replacing``. A killed call may leave a draft.

    Raises:
        OutcomeUnknownError: another note is there.
    """
    volume = pool.find(base + NOTE)
    found = read(connection, pool, base)
    if found == node_id and (found or volume is None):
        return
    if found != replacing:
        raise _changed()
    if volume is not None:
        _remove(pool, base + NOTE)  # also one that is empty, because libvirt died as it made it
    if not node_id:
        return
    new = Sidecar(f"{node_id} {secrets.token_hex(8)}".encode("ascii"))
    draft = draft_name(base, new.mark)
    written = sidecar.write(connection, pool, draft, new)
    try:
        pool.handle.createXMLFrom(volume_xml(base + NOTE, len(new.encoded())), written, 0)
    except libvirt.libvirtError as error:
        now = read(connection, pool, base)
        if now == node_id:
            return
        if now:
            raise _changed() from error
        raise
    finally:
        _remove(pool, draft)


def _remove(pool: Pool, name: str) -> None:
    volume = pool.find(name)
    try:
        if volume is not None:
            volume.delete(0)
    except libvirt.libvirtError as error:
        if not is_missing(error):
            raise


def _changed() -> OutcomeUnknownError:
    return OutcomeUnknownError(
        "the volume was published or unpublished by another call meanwhile; call again"
    )
