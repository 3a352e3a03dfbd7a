"""The metadata service of a cloud's machines, as strict about headers as the real ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

AWS_ZONE = "us-east-1b"
COMPUTE = {"location": "westeurope", "zone": "2", "platformFaultDomain": "1"}


class _Metadata(BaseHTTPRequestHandler):
    """Both clouds' services."""

    compute = json.dumps(COMPUTE)

    def do_PUT(self) -> None:
        is_token = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._answer("t0ken" if is_token else None)

    def do_GET(self) -> None:
        if self.path == "/latest/meta-data/placement/availability-zone":
            allowed = self.headers["X-aws-ec2-metadata-token"] == "t0ken"
            self._answer(AWS_ZONE if allowed else None)
        elif self.path.startswith("/metadata/instance/compute?api-version="):
            self._answer(self.compute if self.headers["Metadata"] == "true" else None)
        else:
            self._answer(None)

    def _answer(self, text: str | None) -> None:
        self.send_response(200 if text is not None else 401)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@contextmanager
def metadata(compute: object = None) -> Iterator[str]:
    """The address of a metadata service."""
    handler = type("Handler", (_Metadata,), {"compute": json.dumps(compute or COMPUTE)})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
