"""The node plugin's client of the Kubernetes API, against a real HTTPS server with its own authority."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.errors import Unavailable
from driver.kubernetes_api import KubernetesApi, NotInCluster
from tests.fakes.kubernetes_api import HOST, HOST_AS_IPV6, ClusterApi, answer, cluster_api
from tests.peers.authority import Authority

_POD = "/api/v1/namespaces/default/pods/web-0"
_LIMIT = 4 * 1024 * 1024
_LONG, _SHORT = 30.0, 0.4
"""Seconds for a server that answers, and for one that does not."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "cluster")


@pytest.fixture
def cluster(authority: Authority) -> Iterator[ClusterApi]:
    with cluster_api(authority) as api:
        api.add_pod("default", "web-0", "uid-1", "kata-remote")
        yield api


def _client(cluster: ClusterApi, host: str = HOST) -> KubernetesApi:
    return KubernetesApi.in_cluster(cluster.environment(host), cluster.credentials)


def _get(client: KubernetesApi, path: str = _POD, seconds: float = _LONG) -> object:
    return client.get(path, "pods", time.monotonic() + seconds)


def _fails(client: KubernetesApi, seconds: float = _LONG) -> str:
    """The message of a read that must fail, fit for an event."""
    with pytest.raises(Unavailable) as caught:
        _get(client, seconds=seconds)
    message = str(caught.value)
    assert len(message.encode()) < 700
    return message


@pytest.mark.parametrize("host", [HOST, HOST_AS_IPV6])
def test_an_object_is_read_by_ipv4_and_ipv6_addresses(cluster: ClusterApi, host: str) -> None:
    assert _get(_client(cluster, host)) == cluster.objects[_POD]


def test_an_object_that_is_not_there_is_no_failure(cluster: ClusterApi) -> None:
    assert _get(_client(cluster), "/api/v1/namespaces/default/pods/gone") is None


def test_each_read_takes_the_token_of_the_moment(cluster: ClusterApi) -> None:
    client = _client(cluster)
    assert _get(client) is not None
    cluster.rotate_token("second")
    assert _get(client) is not None
    (cluster.credentials / "token").write_text("third\n")
    assert "does not accept the token" in _fails(client)
    cluster.rotate_token("fourth\n")
    cluster.token = cluster.token.strip()
    assert _get(client) is not None, "a line break at the end of the file is not the token's"


def test_the_authority_may_change_while_the_client_lives(cluster: ClusterApi, tmp_path: Path) -> None:
    client = _client(cluster)
    own = (cluster.credentials / "ca.crt").read_bytes()
    (cluster.credentials / "ca.crt").write_bytes(Authority(tmp_path, "other").certificate.read_bytes())
    message = _fails(client)
    assert "certificate" in message
    assert str(cluster.credentials / "ca.crt") in message
    assert cluster.asked == [], "no token for a server that is not the cluster's"
    (cluster.credentials / "ca.crt").write_bytes(own)
    assert _get(client) is not None


def test_an_authority_that_is_no_root_is_believed(authority: Authority, tmp_path: Path) -> None:
    """As Kubernetes' own clients do: a company's root may have signed for the cluster's."""
    with cluster_api(Authority(tmp_path, "of-the-cluster", issuer=authority)) as cluster:
        cluster.add_pod("default", "web-0", "uid-1", "kata-remote")
        assert _get(_client(cluster)) is not None


def test_a_certificate_for_another_host_is_refused(cluster: ClusterApi) -> None:
    assert "not for that host" in _fails(_client(cluster, "localhost"))
    assert cluster.asked == []


@pytest.mark.parametrize("content", [None, b"", b"\n", b"to\nken", b"two words", b"\xc3\xa4", b"t" * 20000])
def test_without_a_token_nothing_is_asked(cluster: ClusterApi, content: bytes | None) -> None:
    token = cluster.credentials / "token"
    token.unlink() if content is None else token.write_bytes(content)
    message = _fails(_client(cluster))
    assert str(token) in message
    assert "projected volume" in message
    assert cluster.asked == []


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_without_an_authority_nothing_is_asked(cluster: ClusterApi, content: bytes | None) -> None:
    authority = cluster.credentials / "ca.crt"
    authority.unlink() if content is None else authority.write_bytes(content)
    assert str(authority) in _fails(_client(cluster))
    assert cluster.asked == []


def test_a_missing_permission_is_named(cluster: ClusterApi) -> None:
    cluster.permissions.remove("pods")
    message = _fails(_client(cluster))
    assert "403" in message
    assert "verb get on pods" in message


def _status(code: int, content: bytes = b'{"message": "S3CR3T"}') -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda handler: answer(handler, code, content)


def _raw(content: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(content)

    return write


def _cut_short(handler: BaseHTTPRequestHandler) -> None:
    answer(handler, 200, b"{}", length=100)


def _endless(handler: BaseHTTPRequestHandler) -> None:
    """Until the client goes away."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(bytes(1 << 16))


_FAULTS = [
    (_status(429), "tries again"),
    (_status(500), "tries again"),
    (_status(503, b"<html>"), "tries again"),
    (_status(404), "404"),  # not the API's own, so nobody knows whether the pod exists
    (_status(404, b"nothing here"), "404"),
    (_status(301), "301"),
    (_status(204, b""), "204"),
    (_status(200, b"<html>"), "no JSON object"),
    (_status(200, b""), "no JSON object"),
    (_status(200, b"[]"), "no JSON object"),
    (_status(200, b"[" * 100_000), "no JSON object"),
    (_status(200, b"\xff\xfe"), "no JSON object"),
    (_status(200, b'"' + b"x" * _LIMIT + b'"'), "larger than"),
    (_raw(b"x" * (_LIMIT + 1)), "larger than"),
    (_endless, "larger than"),
    (_raw(b"SSH-2.0-server\r\n"), "not HTTP"),
    (_raw(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\n\r\n{}"), "not HTTP"),
    (_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "cut short"),
    (_raw(b""), "cut short"),
    (_cut_short, "cut short"),
]


@pytest.mark.parametrize(("fault", "words"), _FAULTS)
def test_an_answer_to_rely_on_is_none_of_these(
    cluster: ClusterApi, fault: Callable[[BaseHTTPRequestHandler], None], words: str
) -> None:
    cluster.fault = fault
    message = _fails(_client(cluster))
    assert words in message
    assert "S3CR3T" not in message, "what a server says may hold anything"
    assert len(cluster.asked) == 1, "no second try: kubelet repeats its call"


_HEADS = st.sampled_from(
    [b"", b"Content-Length: 2\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n"]
)
_ANSWERS = st.binary(max_size=200) | st.builds(
    lambda code, head, more, body: b"HTTP/1.1 %d x\r\n%s%s\r\n%s" % (code, head, more, body),
    st.integers(0, 1000),
    _HEADS,
    st.binary(max_size=40),
    st.binary(max_size=40) | st.sampled_from([b"{}", b"2\r\n{}\r\n0\r\n\r\n", b"-5\r\n{}", b"[[[["]),
)


@pytest.fixture(scope="module")
def odd(authority: Authority) -> Iterator[ClusterApi]:
    with cluster_api(authority) as api:
        yield api


@settings(max_examples=100, deadline=None)
@given(_ANSWERS)
def test_whatever_a_server_sends_is_an_object_or_unavailable(odd: ClusterApi, content: bytes) -> None:
    odd.fault = _raw(content)
    try:
        found = _get(_client(odd))
    except Unavailable as error:
        assert len(str(error).encode()) < 700
    else:
        assert found is None or isinstance(found, dict)


def test_an_object_of_the_largest_size_is_read(cluster: ClusterApi) -> None:
    largest = b'{"a":"' + b"x" * (_LIMIT - 300) + b'"}'
    cluster.fault = _status(200, largest)
    assert _get(_client(cluster)) == {"a": "x" * (_LIMIT - 300)}


def test_a_server_that_is_not_there_is_told(cluster: ClusterApi) -> None:
    with closing(socket.socket()) as unserved:
        unserved.bind((HOST, 0))
        client = KubernetesApi(HOST, unserved.getsockname()[1], cluster.credentials)
        assert "can't be reached" in _fails(client)
    assert "can't be reached" in _fails(_client(cluster, "x" * 64)), "no name that could be looked up"


def test_a_server_without_tls_is_told(cluster: ClusterApi) -> None:
    with closing(socket.create_server((HOST, 0))) as plain:

        def greet() -> None:
            connection, _ = plain.accept()
            with connection:
                connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                connection.recv(65536)

        thread = threading.Thread(target=greet)
        thread.start()
        client = KubernetesApi(HOST, plain.getsockname()[1], cluster.credentials)
        assert "can't be reached" in _fails(client)
        thread.join()


def test_a_server_that_says_nothing_is_given_up(cluster: ClusterApi) -> None:
    """Neither a handshake, nor an answer after one, nor an answer that never ends, lasts beyond the limit."""
    with closing(socket.create_server((HOST, 0))) as silent:
        client = KubernetesApi(HOST, silent.getsockname()[1], cluster.credentials)
        assert "in time" in _fails(client, _SHORT)

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while True:  # until the client goes away, which is an error here
            handler.wfile.write(b"A: b\r\n")
            time.sleep(0.02)

    def say_nothing(handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(1)

    for fault in (drip, say_nothing):
        cluster.fault = fault
        assert "NetworkPolicies" in _fails(_client(cluster), _SHORT)


def test_without_time_nothing_is_asked(cluster: ClusterApi) -> None:
    assert "in time" in _fails(_client(cluster), 0.0)
    assert cluster.asked == []


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"KUBERNETES_SERVICE_HOST": HOST},
        {"KUBERNETES_SERVICE_PORT": "443"},
        {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": "tcp://10.0.0.1:443"},
        {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": "0"},
        {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": "65536"},
        {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": "\uff14\uff14\uff13"},
    ],
)
def test_outside_of_a_cluster_there_is_no_client(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(NotInCluster, match="KUBERNETES_SERVICE_HOST"):
        KubernetesApi.in_cluster(environment, tmp_path)
