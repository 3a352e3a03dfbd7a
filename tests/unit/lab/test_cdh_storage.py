"""What the CDH stand-in refuses before it touches a disk, and what formatting leaves (needs no dm-crypt)."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cdh import EncryptedOpen
from tests.lab import cdh_storage
from tests.lab.cdh_storage import KNOWN_OPTIONS, StorageError, secure_mount

GOOD = {
    "devicePath": "/nowhere/disk",
    "sourceType": "encrypted",
    "encryptionType": "luks2",
    "targetType": "device",
    "key": "kbs:///default/key/one",
    "mapperName": "caa-vol-0",
}


def no_key(path: str) -> bytes:
    raise StorageError(f"the key {path} is not released")


def one_key(path: str) -> bytes:
    assert path == "default/key/one"
    return b"k" * 32


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sourceType": "Empty"}, "sourceType"),
        ({"sourceType": ""}, "sourceType"),
        ({"encryptionType": "luks"}, "encryptionType"),
        ({"targetType": "filesystem"}, "targetType"),
        ({"targetType": "fileSystem", "filesystemType": "xfs"}, "filesystemType"),
        ({"encryptionType": "zfs"}, "neither ZFS"),
        ({"dataIntegrity": "true"}, "dm-integrity"),
        ({"deviceId": "7:x"}, "illegal device id"),
        ({"deviceId": "99999:0"}, "no device 99999:0"),
        ({"key": "default/key/one"}, "illegal key scheme"),
        ({"key": "kbs://other-broker/default/key/one"}, "illegal key scheme"),
        ({"key": "file:///nowhere/key"}, "no key"),
        ({}, "the key default/key/one is not released"),
    ],
)
def test_refused_before_cryptsetup_runs(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(StorageError, match=reason):
        secure_mount(GOOD | changes, "/nowhere/link", dialect="detached-header", fetch_key=no_key)


def test_no_device_is_refused() -> None:
    options = {key: value for key, value in GOOD.items() if key != "devicePath"}
    with pytest.raises(StorageError, match="no device specified"):
        secure_mount(options, "/nowhere/link", dialect="detached-header", fetch_key=one_key)


def test_cryptsetup_is_asked_to_open_what_encrypted_names(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(2**20))
    with pytest.raises(StorageError, match=f"cryptsetup luksOpen -d - {disk} caa-vol-0 exited with 1"):
        secure_mount(GOOD | {"devicePath": str(disk)}, "/x", dialect="detached-header", fetch_key=one_key)
    assert disk.read_bytes() == bytes(2**20)


@pytest.mark.parametrize(("dialect", "magic_on_disk"), [("detached-header", False), ("header-on-disk", True)])
def test_where_an_empty_source_gets_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: cdh_storage.Dialect, magic_on_disk: bool
) -> None:
    """Field case I1, first half: the open itself needs a kernel with dm-crypt (tests/guest/test_lab.py)."""
    headers = tmp_path / "headers"
    monkeypatch.setattr(cdh_storage, "HEADERS", headers)
    disk = tmp_path / "disk"
    with disk.open("xb") as file:
        file.truncate(32 * 2**20)
    options = GOOD | {"devicePath": str(disk), "sourceType": "empty", "mapperName": "no/such/name"}
    with pytest.raises(StorageError, match="luksOpen"):
        secure_mount(options, "/x", dialect=dialect, fetch_key=one_key)
    assert (disk.read_bytes()[:4] == b"LUKS") == magic_on_disk
    assert headers.exists() != magic_on_disk
    if not magic_on_disk:
        assert [file.read_bytes()[:4] for file in headers.iterdir()] == [b"LUKS"]
        with pytest.raises(StorageError, match="no header file"):
            secure_mount(options, "/x", dialect=dialect, fetch_key=one_key)


def test_the_agent_sends_no_option_that_the_hub_would_ignore() -> None:
    opened = EncryptedOpen(
        device_path="/dev/vda", key_uri="kbs:///default/key/one", mapper_name="m", link_path="/run/link"
    )
    assert set(opened.request().options) <= KNOWN_OPTIONS
