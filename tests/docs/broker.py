"""A key broker over TLS for the commands of the pages: it takes whatever its administrator sends."""

from __future__ import annotations

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

#: Name of the broker in the pages.
HOST: Final = "kbs.example"
ADMIN: Final = "Bearer eyJ.of.admin"


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Broker:
    """``requests`` are those that were taken; ``settings`` is a configuration of curl to find the broker."""

    def __init__(self, port: int, certificate: Path) -> None:
        self.requests: list[Request] = []
        # Whatever host a page names, nothing leaves this machine.
        self.settings = f'connect-to = "::127.0.0.1:{port}"\ncacert = "{certificate}"\nnoproxy = "*"\n'


@contextmanager
def running_broker(directory: Path) -> Iterator[Broker]:
    """A broker with a certificate for :data:`HOST`, which is made in ``directory``."""
    certificate, key = directory / "broker.pem", directory / "broker.key"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    names = ("-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}")
    files = ("-out", certificate, "-keyout", key)
    subprocess.run(["openssl", "req", "-x509", *curve, *names, *files], check=True, capture_output=True)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            allowed = self.headers["Authorization"] == ADMIN
            if allowed:
                broker.requests.append(Request(self.path, dict(self.headers), body))
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        broker = Broker(server.server_port, certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield broker
        finally:
            server.shutdown()
            thread.join()
