"""The listener of mode A: certificates on both sides, from the forwarder's own configuration."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import AgentError
from agent.proxy import Address
from agent.proxy_tls import server_context
from tests.peers.authority import Authority
from tests.peers.ttrpc_go import SERVICE, go_server, unwrapped, wrapped
from tests.peers.ttrpc_raw import read_frame, request
from tests.unit.agent.proxy_support import running_proxy


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "authority")


@pytest.fixture(scope="module")
def config(authority: Authority) -> dict[str, object]:
    """As cloud-api-adaptor writes it, with fields that are none of ours."""
    certificate, key = authority.issue("server", "serverAuth")
    return {
        "pod-network": {"podip": "10.0.0.1/24"},
        "pod-name": "pod",
        "tls-server-key": key.read_text(),
        "tls-server-cert": certificate.read_text(),
        "tls-client-ca": authority.certificate.read_text(),
    }


def written(config: dict[str, object], folder: Path, **changes: object) -> Path:
    file = folder / "apf.json"
    file.write_text(
        json.dumps({**config, **{key.replace("_", "-"): value for key, value in changes.items()}})
    )
    return file


@pytest.fixture
def port(config: dict[str, object], tmp_path: Path) -> Iterator[int]:
    with (
        go_server(tmp_path / "u"),
        running_proxy(
            Address(host="127.0.0.1", port=0),
            Address(path=str(tmp_path / "u")),
            tls=server_context(written(config, tmp_path)),
        ) as bound,
    ):
        yield bound.port


def client_context(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


def call_over_tls(port: int, context: ssl.SSLContext, service: str, method: str, payload: bytes) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(request(1, method, payload, service=service))
        return read_frame(connection).response.payload


def call(port: int, context: ssl.SSLContext) -> bytes:
    return unwrapped(call_over_tls(port, context, SERVICE, "Echo", wrapped(b"over TLS")))


def test_a_client_of_the_configured_authority_gets_through(port: int, authority: Authority) -> None:
    context = client_context(authority)
    context.load_cert_chain(*authority.issue("client", "clientAuth"))
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.minimum_version = context.maximum_version = version
        assert call(port, context) == b"over TLS"


def test_other_clients_do_not(port: int, authority: Authority, tmp_path: Path) -> None:
    without = client_context(authority)
    stranger = client_context(authority)
    stranger.load_cert_chain(*Authority(tmp_path, "other").issue("stranger", "clientAuth"))
    a_server = client_context(authority)
    a_server.load_cert_chain(*authority.issue("a-server", "serverAuth"))
    for context in (without, stranger, a_server):
        with pytest.raises((OSError, EOFError)):
            call(port, context)


def test_without_tls_nobody_gets_an_answer_and_a_silent_one_holds_up_nobody(
    port: int, authority: Authority
) -> None:
    with (
        socket.create_connection(("127.0.0.1", port), 10),
        socket.create_connection(("127.0.0.1", port), 10) as plain,
    ):
        plain.sendall(request(1, "Echo", wrapped(b"x"), service=SERVICE))
        reset = b""
        try:
            while piece := plain.recv(1000):
                reset += piece
        except OSError:
            pass
        assert b"x" not in reset
        context = client_context(authority)
        context.load_cert_chain(*authority.issue("client2", "clientAuth"))
        assert call(port, context) == b"over TLS"


def test_the_profile_of_the_configuration_is_kept(config: dict[str, object], tmp_path: Path) -> None:
    context = server_context(written(config, tmp_path, tls_min_version="VersionTLS13"))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    suites = ["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_RSA_WITH_AES_128_CBC_SHA"]
    context = server_context(written(config, tmp_path, tls_cipher_suites=suites))
    older = [one["name"] for one in context.get_ciphers() if one["protocol"] != "TLSv1.3"]
    assert older == ["ECDHE-RSA-AES256-GCM-SHA384"]
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    "changes",
    [
        {"tls_client_ca": None},
        {"tls_client_ca": ""},
        {"tls_client_ca": "nonsense"},
        {"tls_server_key": None},
        {"tls_server_key": "nonsense"},
        {"tls_server_cert": 5},
        {"tls_min_version": "VersionTLS10"},
        {"tls_cipher_suites": "all"},
        {"tls_cipher_suites": ["TLS_RSA_WITH_RC4_128_SHA"]},
    ],
)
def test_the_proxy_does_not_listen_without_certificates_on_both_sides(
    config: dict[str, object], tmp_path: Path, changes: dict[str, object]
) -> None:
    with pytest.raises(AgentError, match=r"\[tls-config\]") as raised:
        server_context(written(config, tmp_path, **changes))
    assert "PRIVATE KEY" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_malformed_configuration_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "apf.json"
    file.write_bytes(content)
    with pytest.raises(AgentError, match=r"\[tls-config\]"):
        server_context(file)
    with pytest.raises(AgentError, match=r"\[tls-config-unreadable\]"):
        server_context(tmp_path / "missing")
