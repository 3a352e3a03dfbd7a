"""Single objects of the Kubernetes API, read over the standard library's ``ssl`` and ``http.client``.

The node plugin runs on every worker and takes 44 MB; the package ``kubernetes`` would double that, for two
small objects a publish. So there is no watch, no cache, no redirect, no proxy and no second try (kubelet
repeats its call). Nothing is kept between two reads: kubelet replaces the token, and the CA's certificate may
change.
"""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from driver.errors import Unavailable

_MOST_BYTES: Final = 4 * 1024 * 1024
"""Of an answer; etcd takes objects of 1.5 MiB."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{1,16384}", re.ASCII)
"""RFC 6750, section 2.1; nothing that could end a header's line."""
_AGAIN: Final = "kubelet tries again"


class NotInCluster(Exception):
    """The environment does not tell where the API server is; the message says what to do."""


@dataclass(frozen=True)
class KubernetesApi:
    """The API server, as a pod of the cluster reaches it."""

    host: str
    port: int
    credentials: Path
    """Directory with ``token`` and ``ca.crt``, read anew each time."""

    @classmethod
    def in_cluster(cls, environment: Mapping[str, str], credentials: Path) -> KubernetesApi:
        """The API server of the cluster whose pod this is; nothing is read or asked yet.

        Raises:
            NotInCluster: the variables that kubelet sets in every container are missing or malformed.
        """
        host = environment.get("KUBERNETES_SERVICE_HOST", "")
        port = environment.get("KUBERNETES_SERVICE_PORT", "")
        if not host or not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or not 0 < int(port) < 65536:
            raise NotInCluster(
                "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT do not name the API server; kubelet "
                "sets them in every container of a cluster"
            )
        return cls(host, int(port), credentials)

    def get(self, path: str, resource: str, ends_at: float) -> dict[str, Any] | None:
        """The object at ``path``; None if the API server says that there is none.

        Args:
            resource: what is read, as a ClusterRole names it (``pods``).
            ends_at: when to give up, as ``time.monotonic()``.

        Raises:
            Unavailable: there is no answer to rely on; the message says why and what to do.
        """
        request = self._request(path)
        context = self._tls()
        try:
            received = self._exchange(context, request, ends_at)
        except TimeoutError as error:
            raise Unavailable(
                f"the API server at {self} did not answer for {resource} in time; {_AGAIN}. If it stays so, "
                "check that NetworkPolicies let the node plugin reach it"
            ) from error
        except ssl.SSLCertVerificationError as error:
            raise Unavailable(
                f"the certificate of the API server at {self} is not for that host, or not of the authority "
                f"in {self.credentials / 'ca.crt'} ({error.verify_message}); check the cluster's certificates"
            ) from error
        except (OSError, UnicodeError) as error:  # the latter for a name that can't be looked up
            why = getattr(error, "strerror", None) or type(error).__name__
            raise Unavailable(f"the API server at {self} can't be reached ({why}); {_AGAIN}") from error
        status, document = _parsed(received, resource)
        return self._judged(status, document, resource)

    def __str__(self) -> str:
        """Host and port, as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def _request(self, path: str) -> bytes:
        token_file = self.credentials / "token"
        try:
            token = token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeError) as error:
            raise Unavailable(
                f"the node plugin's token {token_file} can't be read ({type(error).__name__}); its container "
                "needs a projected volume with serviceAccountToken there, as in deploy/daemonset-*.yaml"
            ) from error
        if _TOKEN.fullmatch(token) is None:
            raise Unavailable(f"{token_file} holds no token of a service account; check the projected volume")
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {self}",
            f"Authorization: Bearer {token}",
            "Accept: application/json",
            "User-Agent: confidential-csi",
            "Connection: close",
            "\r\n",
        )
        return "\r\n".join(lines).encode("ascii")

    def _tls(self) -> ssl.SSLContext:
        """Checks the server's certificate and name.

        Not ``ssl.create_default_context``: since Python 3.13 that refuses certificates which clusters have
        and Kubernetes' own clients accept (VERIFY_X509_STRICT). These also believe an authority that is no
        root.
        """
        authority = self.credentials / "ca.crt"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(authority)
        except OSError as error:
            raise Unavailable(
                f"{authority} can't be read, or is no certificate ({type(error).__name__}); it is the "
                "ConfigMap kube-root-ca.crt, in a projected volume as in deploy/daemonset-*.yaml"
            ) from error
        return context

    def _exchange(self, context: ssl.SSLContext, request: bytes, ends_at: float) -> bytes:
        """All that the server sends until it closes the connection, or a byte more than is taken.

        Raises:
            OSError: as the system and TLS raise it; TimeoutError at ``ends_at`` whatever the server does.
        """
        address = (self.host, self.port)
        with (
            socket.create_connection(address, timeout=_left(ends_at)) as plain,
            context.wrap_socket(
                plain, server_hostname=self.host, do_handshake_on_connect=False
            ) as connection,
        ):
            connection.settimeout(_left(ends_at))
            connection.do_handshake()
            connection.sendall(request)
            received = bytearray()
            while len(received) <= _MOST_BYTES:
                connection.settimeout(_left(ends_at))
                part = connection.recv(65536)
                if not part:
                    break
                received += part
            return bytes(received)

    def _judged(self, status: int, document: dict[str, Any], resource: str) -> dict[str, Any] | None:
        """The object, or None, from the status and the document of an answer."""
        if status == http.client.OK:
            return document
        if status == http.client.NOT_FOUND and document.get("reason") == "NotFound":
            return None
        where = f"the API server at {self}"
        if status == http.client.UNAUTHORIZED:
            raise Unavailable(
                f"{where} does not accept the token in {self.credentials / 'token'} (401); kubelet replaces "
                "it in time: if this stays, check that the node plugin's service account exists"
            )
        if status == http.client.FORBIDDEN:
            raise Unavailable(
                f"{where} forbids the node plugin to get {resource} (403); bind its service account to a "
                f"ClusterRole with the verb get on {resource}, as in deploy/rbac.yaml"
            )
        if status == http.client.TOO_MANY_REQUESTS or status >= http.client.INTERNAL_SERVER_ERROR:
            raise Unavailable(f"{where} is busy or failing ({status} for {resource}); {_AGAIN}")
        raise Unavailable(
            f"{where} was not expected to answer {status} for {resource}; check that nothing stands between "
            "the node plugin and the API server"
        )


class _Received:
    """What was received, in the place of the socket that ``http.client`` reads from."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def _parsed(received: bytes, resource: str) -> tuple[int, dict[str, Any]]:
    """Status and document of an answer; a failure's document may be anything, and is empty then.

    Raises:
        Unavailable: too large, cut short, or not HTTP; or a success without a JSON object.
    """
    if len(received) > _MOST_BYTES:
        raise Unavailable(f"the API server's answer for {resource} is larger than {_MOST_BYTES} bytes")
    response = http.client.HTTPResponse(cast(socket.socket, _Received(received)))
    try:
        response.begin()
        content = response.read()
    except (http.client.HTTPException, ValueError) as error:
        raise Unavailable(
            f"the API server's answer for {resource} is cut short, or not HTTP ({type(error).__name__}); "
            f"{_AGAIN}"
        ) from error
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        return response.status, document
    if response.status == http.client.OK:
        raise Unavailable(
            f"the API server's answer for {resource} is no JSON object; check that nothing stands between "
            "the node plugin and the API server"
        )
    return response.status, {}


def _left(ends_at: float) -> float:
    """Seconds until then.

    Raises:
        TimeoutError: none.
    """
    seconds = ends_at - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
