"""A copy through this process, for disks that are mostly holes.

libvirt's own copy reads every byte of a disk, holes too, which takes minutes for a large one that holds
little. Its sparse streams skip them, but carry the data to this process and back.
"""

from __future__ import annotations

import libvirt

_CHUNK_BYTES = 1024 * 1024
_AT_HOLE = -3


def copy_sparse(
    connection: libvirt.virConnect, source: libvirt.virStorageVol, target: libvirt.virStorageVol
) -> None:
    """Write the source's data to the target, a blank storage volume at least as large."""
    reading, writing = connection.newStream(0), connection.newStream(0)
    try:
        source.download(reading, 0, 0, libvirt.VIR_STORAGE_VOL_DOWNLOAD_SPARSE_STREAM)
        target.upload(writing, 0, 0, libvirt.VIR_STORAGE_VOL_UPLOAD_SPARSE_STREAM)
        while chunk := reading.recvFlags(_CHUNK_BYTES, libvirt.VIR_STREAM_RECV_STOP_AT_HOLE):
            if chunk == _AT_HOLE:
                writing.sendHole(reading.recvHole(0), 0)
            else:
                _send(writing, chunk)
        reading.finish()
        writing.finish()
    except BaseException:
        for stream in (reading, writing):
            _abort(stream)
        raise


def _send(stream: libvirt.virStream, data: bytes) -> None:
    sent = 0
    while sent < len(data):
        sent += stream.send(data[sent:])


def _abort(stream: libvirt.virStream) -> None:
    try:
        stream.abort()
    except libvirt.libvirtError:
        return  # never begun, or ended
