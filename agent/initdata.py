"""Initdata: the part of a VM's configuration that its attestation evidence is bound to.

cloud-api-adaptor passes the pod's annotation on as it is, gzip in base64 (``/run/peerpod/initdata``), and
writes the digest that goes into the evidence (``/run/peerpod/initdata.digest``). It extracts only the files
that it knows, so the blob is decoded here. The host chooses the blob; what makes it trustworthy is the key
broker, which releases keys only to the digest it expects (``deploy/kbs/``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import tomllib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.errors import Refused

MAX_INITDATA: Final = 4 << 20
"""Bytes, both as it lies there and decoded: a few bytes of gzip can hold gigabytes."""

_ALGORITHMS: Final = ("sha256", "sha384", "sha512")
_VERSION: Final = "0.1.0"
_GZIP: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31
_SHOWN: Final = 100


@dataclass(frozen=True)
class Initdata:
    """Decoded initdata. ``digest`` is over the TOML text; ``files`` are its ``[data]``, by name."""

    algorithm: str
    digest: bytes
    files: Mapping[str, str]


def parse_initdata(blob: bytes, expected_digest: bytes) -> Initdata:
    """Decode the blob, and require that it has the digest that the evidence is bound to.

    Args:
        blob: gzip in base64, as the pod annotation has it, or the TOML text itself.
        expected_digest: hexadecimal, as in the digest file.

    Raises:
        Refused: rule ``initdata-invalid`` (it can't be decoded, or is not of version 0.1.0) or
            ``initdata-digest`` (it is not what was measured).
    """
    initdata = decode_initdata(blob)
    if not hmac.compare_digest(initdata.digest, _digest(expected_digest)):
        raise Refused(
            "initdata-digest",
            f"the {initdata.algorithm} digest of the initdata is {initdata.digest.hex()}, but "
            f"{_shown(expected_digest)} was measured at boot; the file was changed since",
        )
    return initdata


def decode_initdata(blob: bytes) -> Initdata:
    """The same, with nothing to compare with: what is in it is nobody's but the writer's word.

    Raises:
        Refused: rule ``initdata-invalid``.
    """
    text = _text(blob)
    document = _load(text)
    algorithm = document.get("algorithm")
    if algorithm not in _ALGORITHMS:
        raise _invalid(f"algorithm is {_shown(algorithm)}; expected one of {', '.join(_ALGORITHMS)}")
    if document.get("version") != _VERSION:
        raise _invalid(f'version is {_shown(document.get("version"))}; expected "{_VERSION}"')
    digest = hashlib.new(algorithm, text).digest()
    return Initdata(algorithm, digest, _files(document.get("data", {})))


def _text(blob: bytes) -> bytes:
    if len(blob) > MAX_INITDATA:
        raise _invalid(f"it has more than {MAX_INITDATA} bytes")
    try:
        # Line breaks are no part of the alphabet, but writers of base64 put them in.
        compressed = base64.b64decode(b"".join(blob.split()), validate=True)
    except binascii.Error:
        return blob
    if not compressed.startswith(_GZIP):
        raise _invalid("it is base64, but not of gzip")
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        text = inflater.decompress(compressed, MAX_INITDATA)
    except zlib.error as error:
        raise _invalid(f"it can't be decompressed: {error}") from None
    if inflater.unconsumed_tail:
        raise _invalid(f"decompressed it has more than {MAX_INITDATA} bytes")
    if not inflater.eof or inflater.unused_data:
        raise _invalid("it is cut short, or something follows the compressed data")
    return text


def _load(text: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(text.decode())
    except UnicodeError:
        raise _invalid("it is neither base64 nor UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise _invalid(f"it is not TOML: {str(error)[:_SHOWN]}") from None


def _files(data: object) -> dict[str, str]:
    if not isinstance(data, dict):
        raise _invalid("data is not a table of files")
    for name, content in data.items():
        if not isinstance(content, str):
            raise _invalid(f"data.{_shown(name)} is not a string")
    return data


def _digest(written: bytes) -> bytes:
    try:
        return bytes.fromhex(written.decode("ascii"))
    except ValueError:
        raise Refused(
            "initdata-digest", f"the digest file holds {_shown(written)}, not a hexadecimal digest"
        ) from None


def _invalid(problem: str) -> Refused:
    return Refused("initdata-invalid", f"the initdata can't be used: {problem}")


def _shown(value: object) -> str:
    return ascii(value)[:_SHOWN] if isinstance(value, str | bytes | None) else f"a {type(value).__name__}"
