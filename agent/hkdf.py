"""HKDF with SHA-256 (RFC 5869), of which the standard library has only the HMAC."""

from __future__ import annotations

import hmac

_HASH_BYTES = 32


def hkdf_sha256(key_material: bytes, *, salt: bytes = b"", info: bytes, length: int = _HASH_BYTES) -> bytes:
    """Derive ``length`` bytes (at most 8,160) from ``key_material``, bound to ``info``."""
    if not 0 < length <= 255 * _HASH_BYTES:
        raise ValueError(f"length {length} is outside 1 to {255 * _HASH_BYTES} bytes")
    secret = hmac.digest(salt or bytes(_HASH_BYTES), key_material, "sha256")
    output = block = b""
    counter = 1
    while len(output) < length:
        block = hmac.digest(secret, block + info + bytes([counter]), "sha256")
        output += block
        counter += 1
    return output[:length]
