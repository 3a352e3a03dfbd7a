"""A Kubernetes API server that has pods and RuntimeClasses, over real TLS with an authority of its own.

As strict as the real one, and stricter about headers: what a client sends that kubelet's would not is an
answer 400. It can be told to fail in the ways in which a real one, or something before it, does.
"""

from __future__ import annotations

import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.peers.authority import Authority

Json = dict[str, Any]

#: Both are this machine's loopback; the second is written as an IPv6 address, and needs no IPv6 network.
HOST = "127.0.0.1"
HOST_AS_IPV6 = "::ffff:127.0.0.1"


@dataclass
class ClusterApi:
    """One API server: what is in it, whom it believes, what it was asked, and how it fails."""

    port: int
    credentials: Path
    """As a pod has them: ``token`` and ``ca.crt``."""
    token: str = ""
    permissions: set[str] = field(default_factory=lambda: {"pods", "runtimeclasses"})
    objects: dict[str, Json] = field(default_factory=dict)
    """By path."""
    asked: list[str] = field(default_factory=list)
    """Paths, in order."""
    fault: Callable[[BaseHTTPRequestHandler], None] | None = None
    """Answers in the place of the server."""

    def environment(self, host: str = HOST) -> dict[str, str]:
        """What kubelet tells each container."""
        return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(self.port)}

    def rotate_token(self, token: str) -> None:
        """As kubelet does: the file gets the new token, and the old one is no longer taken."""
        self.token = token
        (self.credentials / "token").write_text(token)

    def add_pod(self, namespace: str, name: str, uid: str, runtime_class: str | None) -> None:
        """A pod, as small as one can be."""
        spec: Json = {"containers": [{"name": "main", "image": "busybox"}], "nodeName": "worker-1"}
        if runtime_class is not None:
            spec["runtimeClassName"] = runtime_class
        self.objects[f"/api/v1/namespaces/{namespace}/pods/{name}"] = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": "1"},
            "spec": spec,
            "status": {"phase": "Pending"},
        }

    def add_runtime_class(self, name: str, handler: str) -> None:
        """A RuntimeClass."""
        self.objects[f"/apis/node.k8s.io/v1/runtimeclasses/{name}"] = {
            "kind": "RuntimeClass",
            "apiVersion": "node.k8s.io/v1",
            "metadata": {"name": name, "uid": f"uid-of-{name}"},
            "handler": handler,
        }

    def answer(self, path: str, authorization: str | None) -> tuple[int, Json]:
        """Status and document, by what is known of the asker."""
        if authorization != f"Bearer {self.token}":
            return 401, _status(401, "Unauthorized")
        resource = "pods" if "/pods/" in path else "runtimeclasses"
        if resource not in self.permissions:
            return 403, _status(403, "Forbidden")
        if path not in self.objects:
            return 404, _status(404, "NotFound")
        return 200, self.objects[path]


def _status(code: int, reason: str) -> Json:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ClusterApi

    def do_GET(self) -> None:
        self.api.asked.append(self.path)
        if self.api.fault is not None:
            self.close_connection = True
            self.api.fault(self)
            return
        hosts = (f"{HOST}:{self.api.port}", f"[{HOST_AS_IPV6}]:{self.api.port}")
        wanted = {"Accept": "application/json", "Connection": "close", "User-Agent": "confidential-csi"}
        is_proper = self.headers["Host"] in hosts and all(
            self.headers[name] == value for name, value in wanted.items()
        )
        code, document = self.api.answer(self.path, self.headers["Authorization"])
        if not is_proper or set(self.headers) != {*wanted, "Host", "Authorization"}:
            code, document = 400, _status(400, "BadRequest")
        answer(self, code, json.dumps(document).encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


def answer(handler: BaseHTTPRequestHandler, code: int, content: bytes, length: int | None = None) -> None:
    """An answer of one's choice, for a fault; a ``length`` that is not the content's is a lie."""
    handler.send_response(code)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content) if length is None else length))
    handler.end_headers()
    handler.wfile.write(content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away, or did not like the certificate, is its own affair."""


@contextmanager
def cluster_api(authority: Authority) -> Iterator[ClusterApi]:
    """An API server, until the end of the block, with RuntimeClasses of three kinds."""
    hosts = f"IP:{HOST},IP:{HOST_AS_IPV6}"
    certificate = authority.folder / "api.pem", authority.folder / "api.key"
    if not certificate[0].exists():
        authority.issue("api", "serverAuth", hosts)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server = _Server((HOST, 0), _Handler)
    # The handshake is for the thread of the connection: a silent client holds up nobody.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    credentials = Path(tempfile.mkdtemp(dir=authority.folder))
    (credentials / "ca.crt").write_bytes(authority.certificate.read_bytes())
    api = ClusterApi(server.server_address[1], credentials)
    api.rotate_token("first")
    for name in ("kata-remote", "kata-qemu", "runc"):
        api.add_runtime_class(name, name)
    server.RequestHandlerClass = type("Handler", (_Handler,), {"api": api})
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
