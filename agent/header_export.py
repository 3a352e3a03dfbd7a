"""A volume's header for escrow: what is needed, beside the key, when the one on the disk is lost.

The file has the layout of a header area (``agent.disk_format``), so it can be put back on the disk as it is,
and cryptsetup takes it as a detached header. Nothing in it comes unauthenticated from the disk: it is the
image that a record vouches for, twice, with that record in both slots, and zeros between. It holds no key,
but whoever has it and the key of its time can decrypt the disk, also after a rotation: the volume key stays.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from agent.annotation import CloudVolume
from agent.clock import Clock
from agent.devices import DeviceFinder
from agent.disk_format import HEADER_AREA_BYTES, IMAGE_BYTES, REDO_OFFSET, SLOT_BYTES, SLOT_OFFSETS, RecordKey
from agent.errors import Refused
from agent.header_guard import GenuineHeader
from agent.keys import KeySource, ReleasedKey, fetch_key
from agent.policy import Encryption, Format, VolumeRules
from agent.rotation import KeyedHeaders
from agent.volume_lock import volume_lock
from agent.volumes import OpenDevice


@dataclass(frozen=True)
class ExportedHeader:
    """What was exported: the volume's LUKS UUID, the id of the key that opens it, and the file."""

    luks_uuid: str
    key_id: str
    output: str


class HeaderExport:
    """Exports the headers of this VM's disks, mounted or not, and writes nothing on them."""

    def __init__(
        self,
        *,
        hub: KeySource,
        headers: KeyedHeaders,
        clock: Clock,
        finder: DeviceFinder,
        open_device: OpenDevice,
    ) -> None:
        self._hub = hub
        self._headers = headers
        self._clock = clock
        self._finder = finder
        self._open_device = open_device

    def export(self, volume: CloudVolume, rules: VolumeRules, output: Path) -> ExportedHeader:
        """Write the header of ``volume`` to the new file ``output``, which only its owner may read.

        Raises:
            Refused: the volume is not encrypted (``volume-not-encrypted``) or not finished
                (``format-forbidden``), its header is not authenticated or breaks ``rules``, or the file is
                there already (``output-exists``).
            Unavailable: the disk or a key can't be had.
            OSError: the file can't be written; none is left.
        """
        if rules.encryption is Encryption.NONE:
            raise Refused("volume-not-encrypted", f"{volume.name} is not encrypted, so it has no header")
        # A header that is put back later must not let a volume with data be formatted.
        reading = replace(rules, read_only=True, format=Format.NEVER, adopt=False)
        with volume_lock(volume.name, self._clock):
            disk = self._finder.find(volume)
            rules.require_size(disk.size)
            current = ReleasedKey(volume.key_id, fetch_key(self._hub, volume.key_id))
            with self._open_device(disk.path, writable=False, exclusive=False, number=disk.number) as device:
                keyed = self._headers.obtain(device, current, reading)
        _write(output, escrow_area(keyed.header, RecordKey(keyed.key.value)))
        return ExportedHeader(keyed.header.audited.uuid, keyed.key.key_id, str(output))


def escrow_area(header: GenuineHeader, key: RecordKey) -> bytes:
    """A whole header area that ``key`` vouches for, made from ``header`` alone."""
    area = bytearray(HEADER_AREA_BYTES)
    for offset in (0, REDO_OFFSET):
        area[offset : offset + IMAGE_BYTES] = header.image
    for offset in SLOT_OFFSETS:
        area[offset : offset + SLOT_BYTES] = header.record.seal(key, header.image)
    return bytes(area)


def _write(output: Path, content: bytes) -> None:
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise Refused("output-exists", f"{output} is there already; name a new file") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        output.unlink()
        raise
