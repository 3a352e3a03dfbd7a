"""Policies, initdata and volumes for tests."""

from __future__ import annotations

import base64
import gzip
import hashlib

from agent.annotation import CloudVolume

KEY_ID = "default/key/vol1"


def encrypted(
    mount_point: str = "/data", *, key_id: str = KEY_ID, encrypt_type: str = "luks2"
) -> CloudVolume:
    """A volume as the annotation describes it, encrypted with ``KEY_ID``."""
    return CloudVolume(
        index=0,
        mount_point=mount_point,
        fs_type="ext4",
        lun=0,
        disk_id="d",
        fs_group=None,
        encrypt_type=encrypt_type,
        key_id=key_id,
    )


def plain(mount_point: str = "/data") -> CloudVolume:
    """One that comes without encryption."""
    return encrypted(mount_point, encrypt_type="", key_id="")


def initdata(files: dict[str, str], algorithm: str = "sha256") -> tuple[bytes, bytes]:
    """The blob as cloud-api-adaptor leaves it, and the content of its digest file."""
    quoted = "".join(f"\"{name}\" = '''\n{content}'''\n" for name, content in files.items())
    text = f'algorithm = "{algorithm}"\nversion = "0.1.0"\n\n[data]\n{quoted}'.encode()
    return base64.b64encode(gzip.compress(text)), hashlib.new(algorithm, text).hexdigest().encode()
