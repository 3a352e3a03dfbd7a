"""What a host can write into the header of a volume that exists: each with good checksums.

Field cases I4 and I5, CVE-2025-59054 and CVE-2025-58356.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.disk_format import (
    IMAGE_BYTES,
    REDO_OFFSET,
    SLOT_BYTES,
    SLOT_OFFSETS,
    RecordKey,
    State,
)
from agent.header_guard import GenuineHeader, decide
from tests.fakes.luks_headers import Metadata, forge, known_key_image, null_keyslots, null_segment
from tests.guest.pod import KEY, MIB, PLAINTEXT, MakeDisk
from tests.guest.sandbox import BUNDLES
from tests.hostile.host import Host, header_area, luks_format, made_on_the_host, overwrite


def linear_segment(document: Metadata) -> None:
    document["segments"]["0"]["size"] = str(32 * MIB)
    document["segments"]["1"] = {"type": "linear", "offset": str(36 * MIB), "size": "dynamic"}


def only_linear(document: Metadata) -> None:
    segment = document["segments"]["0"]
    document["segments"]["0"] = {name: segment[name] for name in ("offset", "size")} | {"type": "linear"}


def null_segment_and_keyslots(document: Metadata) -> None:
    null_segment(document)
    null_keyslots(document)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (null_keyslots, "header-keyslot-cipher"),
        (null_segment, "header-segment-cipher"),
        (null_segment_and_keyslots, "header-segment-cipher"),
        (linear_segment, "header-segment"),
        (only_linear, "header-segment"),
    ],
)
def test_forged_metadata(host: Host, ready_copy: Path, edit: Callable[[Metadata], None], reason: str) -> None:
    """Default policy, mode B: null ciphers, an extra linear segment, no encrypted one."""
    forged = forge(header_area(ready_copy)[:IMAGE_BYTES], edit)
    overwrite(ready_copy, 0, forged)
    overwrite(ready_copy, REDO_OFFSET, forged)
    host.bring(ready_copy)
    assert f"[{reason}]" in host.refused("header-not-authenticated"), "the reason is named"


def test_reencryption_requirement(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B: a re-encryption that cryptsetup itself began."""
    subprocess.run(
        [
            *("cryptsetup", "reencrypt", "--batch-mode", "--init-only", "--force-offline-reencrypt"),
            *("--key-file", "-", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", ready_copy),
        ],
        input=KEY,
        check=True,
        capture_output=True,
    )
    overwrite(ready_copy, REDO_OFFSET, header_area(ready_copy)[:IMAGE_BYTES])
    host.bring(ready_copy)
    assert "[header-config]" in host.refused("header-not-authenticated")


def test_second_copy_differs_and_none_authenticates(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B: the primary copy is genuine; a reader that repairs takes the other one."""
    forged = forge(header_area(ready_copy)[:IMAGE_BYTES], null_segment, copies=[1])
    overwrite(ready_copy, 0, forged)
    overwrite(ready_copy, REDO_OFFSET, forged)
    host.bring(ready_copy)
    assert "[header-copies]" in host.refused("header-not-authenticated")


@pytest.mark.parametrize("made_by", ["null keyslot", "cryptsetup"])
def test_whole_header_around_a_known_volume_key(
    host: Host, ready_copy: Path, tmp_path: Path, made_by: str
) -> None:
    """Default policy, mode B: the released key opens it, and the records are the genuine ones."""
    volume_key = bytes(range(64))
    area = header_area(ready_copy)
    if made_by == "cryptsetup":
        (tmp_path / "known").write_bytes(volume_key)
        luks_format(ready_copy, "--volume-key-file", str(tmp_path / "known"))
        overwrite(ready_copy, SLOT_OFFSETS[0], area[SLOT_OFFSETS[0] :])
    else:
        overwrite(ready_copy, 0, known_key_image(volume_key, area[:IMAGE_BYTES]))
        overwrite(ready_copy, REDO_OFFSET, bytes(IMAGE_BYTES))
    host.bring(ready_copy)
    error = host.refused("header-not-authenticated")
    assert ("made by someone else" if made_by == "cryptsetup" else "[header-keyslot-cipher]") in error


def test_record_copied_from_another_volume_under_the_same_key(
    host: Host, ready_copy: Path, make_disk: MakeDisk
) -> None:
    """Default policy, mode B: genuine records, genuine header, not of each other."""
    other = header_area(made_on_the_host(make_disk("other", mib=32)))
    overwrite(ready_copy, SLOT_OFFSETS[0], other[SLOT_OFFSETS[0] :])
    host.bring(ready_copy)
    host.refused("header-not-authenticated")


def test_whole_header_area_of_another_volume_under_the_same_key(
    host: Host, ready_copy: Path, make_disk: MakeDisk
) -> None:
    """Default policy, mode B: it authenticates, and makes noise of the data."""
    overwrite(ready_copy, 0, header_area(made_on_the_host(make_disk("other", mib=32))))
    host.bring(ready_copy)
    host.refused("filesystem-missing", opened=1)


def test_keyslot_material_exchanged(host: Host, ready_copy: Path, make_disk: MakeDisk) -> None:
    """Default policy, mode B: the metadata is genuine, what it points to is another volume's."""
    other = header_area(made_on_the_host(make_disk("other", mib=32)))
    for start in (0, REDO_OFFSET):
        keyslots = slice(32 * 1024, IMAGE_BYTES)
        overwrite(ready_copy, start + keyslots.start, other[keyslots])
    host.bring(ready_copy)
    host.refused("header-not-authenticated")


def test_digest_changed(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B."""

    def edit(document: Metadata) -> None:
        document["digests"]["0"]["digest"] = base64.b64encode(bytes(32)).decode()

    for start in (0, REDO_OFFSET):
        overwrite(ready_copy, start, forge(header_area(ready_copy)[:IMAGE_BYTES], edit))
    host.bring(ready_copy)
    host.refused("header-not-authenticated")


def test_older_record_that_allows_formatting(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B: kept from the initialization, brought back in place of both records."""
    area = header_area(ready_copy)
    key = RecordKey(KEY)
    genuine = decide(area, key, ready_copy.stat().st_size)
    assert isinstance(genuine, GenuineHeader)
    older = replace(genuine.record, sequence=2, state=State.INITIALISING)
    overwrite(ready_copy, SLOT_OFFSETS[0], bytes(SLOT_BYTES))
    overwrite(ready_copy, SLOT_OFFSETS[1], older.seal(key, genuine.image))
    host.bring(ready_copy)
    host.refused("filesystem-in-use", opened=1)


def test_header_forged_in_place_only_is_replaced_by_the_genuine_one(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B. As after a power cut: the redo image authenticates."""
    genuine = header_area(ready_copy)[:IMAGE_BYTES]
    overwrite(ready_copy, 0, forge(genuine, null_segment))
    host.pod.attach(ready_copy, "disk")
    host.starts("container")
    assert host.pod.read_file(f"{BUNDLES}/container/data") == PLAINTEXT * 1000
    assert b"aes-xts-plain64" in host.pod.sh("dmsetup table caa-vol-0")
    assert header_area(ready_copy)[:IMAGE_BYTES] == genuine
