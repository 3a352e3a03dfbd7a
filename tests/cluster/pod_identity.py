"""Stands in for EKS's Pod Identity agent: the driver gets its credentials from it, and from nowhere else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        expiration = datetime.now(UTC) + timedelta(hours=1)
        answer = {
            "AccessKeyId": "ASIATEST",
            "SecretAccessKey": "not-a-secret",
            "Token": "not-a-token",
            "Expiration": expiration.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


@contextmanager
def pod_identity() -> Iterator[str]:
    """The address for ``AWS_CONTAINER_CREDENTIALS_FULL_URI``, within the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/credentials"
    server.shutdown()
    server.server_close()
