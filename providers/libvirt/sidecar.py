"""Small storage volumes beside the disks: libvirt keeps no metadata with a volume.

Content is JSON behind its SHA-256; the first digits of that hash name the disk that belongs to it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import libvirt

from providers.errors import CorruptStateError, UnavailableError
from providers.libvirt.documents import volume_xml
from providers.libvirt.failures import is_busy, is_missing
from providers.libvirt.parts import MARK_CHARACTERS
from providers.libvirt.pools import Pool

_HASH_CHARACTERS = 64
_MAXIMUM_BYTES = 256 * 1024
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True)
class Sidecar:
    """Content, and the mark that ties a disk to it."""

    content: bytes

    @property
    def mark(self) -> str:
        """The first digits of the content's hash."""
        return hashlib.sha256(self.content).hexdigest()[:MARK_CHARACTERS]

    def encoded(self) -> bytes:
        """As it is stored."""
        return hashlib.sha256(self.content).hexdigest().encode() + b"\n" + self.content


def write(connection: libvirt.virConnect, pool: Pool, name: str, sidecar: Sidecar) -> libvirt.virStorageVol:
    """A new storage volume with this content. Killed between, it is left with zeros: nobody's sidecar."""
    data = sidecar.encoded()
    volume = pool.handle.createXML(volume_xml(name, len(data)), 0)
    stream = connection.newStream(0)
    try:
        volume.upload(stream, 0, len(data), 0)
        sent = 0
        while sent < len(data):
            sent += stream.send(data[sent : sent + _CHUNK_BYTES])
        stream.finish()
    except BaseException:
        _abort(stream)
        raise
    return volume


def read(connection: libvirt.virConnect, volume: libvirt.virStorageVol) -> Sidecar | None:
    """The content; empty if it is all zeros, as in a copy that libvirt died in; None if the file is gone.

    Raises:
        CorruptStateError: it is not what was written. UnavailableError: it is just being written.
    """
    try:
        data = _download(connection, volume)
    except libvirt.libvirtError as error:
        if is_missing(error):
            return None
        if is_busy(error):
            raise UnavailableError("the object is just being made by another call; call again") from error
        raise
    if not data.strip(b"\0"):
        return Sidecar(b"")
    digest, separator, content = (
        data[:_HASH_CHARACTERS],
        data[_HASH_CHARACTERS:][:1],
        data[_HASH_CHARACTERS + 1 :],
    )
    if separator != b"\n" or hashlib.sha256(content).hexdigest().encode() != digest:
        raise CorruptStateError(
            f"the tags in storage volume {volume.name()!r} are damaged; a person must look"
        )
    return Sidecar(content)


def _download(connection: libvirt.virConnect, volume: libvirt.virStorageVol) -> bytes:
    stream = connection.newStream(0)
    data = bytearray()
    try:
        volume.download(stream, 0, _MAXIMUM_BYTES, 0)
        while chunk := stream.recv(_CHUNK_BYTES):
            data += chunk
        stream.finish()
    except BaseException:
        _abort(stream)
        raise
    return bytes(data)


def _abort(stream: libvirt.virStream) -> None:
    try:
        stream.abort()
    except libvirt.libvirtError:
        return  # never begun, or ended by the error that is being handled
