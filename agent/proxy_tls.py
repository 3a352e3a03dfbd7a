"""The TLS of cloud-api-adaptor's forwarder: certificates on both sides, from ``apf.json``.

The adaptor writes that file into the VM (``pkg/forwarder/forwarder.go``, ``pkg/util/tlsutil/tls.go``); with
it the proxy listens in the forwarder's place, and asks of clients what the forwarder would.
"""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path
from typing import Final

from agent.errors import Refused, Unavailable

DEFAULT_CONFIG: Final = Path("/run/peerpod/apf.json")

_MAX_CONFIG: Final = 1 << 20
_VERSIONS: Final = {
    "": ssl.TLSVersion.TLSv1_2,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}
#: The cipher suites of TLS 1.2 with forward secrecy and authenticated encryption; those of TLS 1.3 are fixed.
_CIPHERS: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}


def server_context(config: Path) -> ssl.SSLContext:
    """A context for the listener that asks each client for a certificate of the configured authority.

    Raises:
        Unavailable: the file is not there (``tls-config-unreadable``).
        Refused: it is malformed or lacks key, certificate or authority (``tls-config``): the proxy does not
            listen without them.
    """
    fields = _load(config)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    version = _text(fields, "tls-min-version").strip()
    if version not in _VERSIONS:
        raise Refused(
            "tls-config", f"tls-min-version {version[:50]!a} is not one of VersionTLS12, VersionTLS13"
        )
    context.minimum_version = _VERSIONS[version]
    context.set_ciphers(":".join(_ciphers(fields)))
    certificate, key, authority = (
        _required(fields, name) for name in ("tls-server-cert", "tls-server-key", "tls-client-ca")
    )
    try:
        context.load_verify_locations(cadata=authority)
        _load_chain(context, certificate, key)
    except (ssl.SSLError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else "not PEM"
        raise Refused("tls-config", f"the certificates in {config} can't be used: {reason}") from None
    return context


def _load(config: Path) -> dict[str, object]:
    try:
        with config.open("rb") as file:
            text = file.read(_MAX_CONFIG + 1)
    except OSError as error:
        raise Unavailable("tls-config-unreadable", f"cannot read {config}: {error.strerror}") from None
    try:
        fields = json.loads(text.decode())
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or len(text) > _MAX_CONFIG:
        raise Refused("tls-config", f"{config} is not a JSON object of at most {_MAX_CONFIG} bytes")
    return fields


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Refused("tls-config", f"{name} must be a JSON string")
    return value


def _required(fields: dict[str, object], name: str) -> str:
    value = _text(fields, name)
    if not value:
        raise Refused(
            "tls-config", f"{name} is missing; the proxy listens only with TLS and certificates on both sides"
        )
    return value


def _ciphers(fields: dict[str, object]) -> list[str]:
    """In OpenSSL's names. Of a list that is given, what is too weak for this proxy is left out."""
    given = fields.get("tls-cipher-suites") or list(_CIPHERS)
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise Refused("tls-config", "tls-cipher-suites must be a list of strings")
    known = [_CIPHERS[name.strip()] for name in given if name.strip() in _CIPHERS]
    if not known:
        raise Refused("tls-config", f"tls-cipher-suites has none of {', '.join(_CIPHERS)}")
    return known


def _load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    # OpenSSL takes them from a file only: one in memory, so that the key is not written anywhere.
    memory = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        os.write(memory, f"{certificate}\n{key}\n".encode())

        def no_password() -> str:
            raise ValueError("the key is encrypted")

        context.load_cert_chain(f"/proc/self/fd/{memory}", password=no_password)
    finally:
        os.close(memory)
