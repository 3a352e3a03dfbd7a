"""The fake over HTTPS, with the token endpoint of Microsoft Entra beside it.

Without TLS for tests that fork: OpenSSL's locks don't survive a fork while another thread holds them.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.fakes.arm.cloud import ArmCloud
from tests.fakes.arm.messages import Answer, Dropped, Request, error
from tests.peers.authority import Authority

CLAIMS = {"appid": "app-1", "oid": "object-1", "tid": "tenant-1"}
"""Who the identity is, by its token."""
TOKEN = f"e30.{base64.urlsafe_b64encode(json.dumps(CLAIMS).encode()).decode().rstrip('=')}.signature"
"""What the fake takes; a token in the form of Microsoft Entra's."""


class ArmServer(ThreadingHTTPServer):
    """Serves any number of subscriptions."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.clouds: dict[str, ArmCloud] = {}
        if folder is None:
            return
        authority = Authority(folder, "arm-authority")
        certificate, key = authority.issue("arm", "serverAuth")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.certificate = authority.certificate
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def endpoint(self) -> str:
        """Its URL, as the SDK wants it: always https."""
        return f"https://localhost:{self.server_address[1]}"

    def start(self) -> None:
        """Serve in the background."""
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def add(self, cloud: ArmCloud) -> ArmCloud:
        """Serve this subscription, too."""
        self.clouds[cloud.subscription] = cloud
        return cloud

    def environment(self, subscription: str, token: Path) -> dict[str, str]:
        """Of a controller with disks in that subscription; as pods in AKS it gets its token in a file."""
        return {
            "CONFIDENTIAL_CSI_AZURE_SUBSCRIPTION_ID": subscription,
            "CONFIDENTIAL_CSI_AZURE_RESOURCE_GROUP": "disks",
            "CONFIDENTIAL_CSI_AZURE_LOCATION": "westeurope",
            "CONFIDENTIAL_CSI_AZURE_ENDPOINT": self.endpoint,
            "AZURE_AUTHORITY_HOST": self.endpoint,
            "AZURE_TENANT_ID": "11111111-2222-3333-4444-555555555555",
            "AZURE_CLIENT_ID": "66666666-7777-8888-9999-000000000000",
            "AZURE_FEDERATED_TOKEN_FILE": str(token),
            "REQUESTS_CA_BUNDLE": str(self.certificate),
        }

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that were killed are no news."""


@contextmanager
def serving(folder: Path | None) -> Iterator[ArmServer]:
    """A running server; ``folder`` is for its certificates, None means that it has none."""
    with ArmServer(folder) as server:
        server.start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ArmServer

    def do_GET(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        fields = dict(urllib.parse.parse_qsl(body))
        right = self.path.endswith("/oauth2/v2.0/token") and fields.get("scope", "").endswith("/.default")
        if right and fields.get("client_assertion"):
            self._answer(Answer(200, {"token_type": "Bearer", "expires_in": 3600, "access_token": TOKEN}))
        else:
            self._answer(Answer(400, {"error": "invalid_request"}))

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        data = self.rfile.read(length)
        parts = urllib.parse.urlsplit(self.path)
        request = Request(
            method=self.command,
            path=urllib.parse.unquote(parts.path),
            query=dict(urllib.parse.parse_qsl(parts.query)),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=json.loads(data) if data else None,
        )
        try:
            answer = self._handle(request)
        except Dropped:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return
        self._answer(answer)

    def _handle(self, request: Request) -> Answer:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return error(401, "AuthenticationFailed")
        subscription = request.path.split("/")[2] if request.path.count("/") > 1 else ""
        cloud = self.server.clouds.get(subscription)
        return error(404, "SubscriptionNotFound") if cloud is None else cloud.handle(request)

    def _answer(self, answer: Answer) -> None:
        data = json.dumps(answer.body).encode() if answer.body is not None else b""
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""
