"""The server in front of a cloud."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from uuid import uuid4

import boto3
from botocore.config import Config

from tests.fakes.ec2.cloud import Cloud
from tests.fakes.ec2.policy import CALLER
from tests.fakes.ec2.rules import Ec2Error, Fault
from tests.fakes.ec2.wire import (
    is_identity_request,
    read_request,
    write_answer,
    write_error,
    write_identity,
)

_HANG_SECONDS = 30.0

_ERRORS = {
    Fault.THROTTLED: Ec2Error("RequestLimitExceeded", "Request limit exceeded.", 503),
    Fault.DENIED: Ec2Error("UnauthorizedOperation", "You are not authorized.", 403),
    Fault.SERVER_ERROR: Ec2Error("InternalError", "An internal error has occurred", 500),
}

_SESSION = boto3.Session("AKIATEST", "not-a-secret")


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, cloud: Cloud | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.clouds: dict[str, Cloud] = {}
        self.ended = threading.Event()
        if cloud is not None:
            self.clouds["/"] = cloud


class Ec2Server:
    """Serves clouds on a port of its own, within a ``with`` block: one at its root, others below it."""

    def __init__(self, cloud: Cloud | None = None) -> None:
        self._server = _HttpServer(cloud)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Ec2Server:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def add(self, cloud: Cloud) -> str:
        """The address of a further cloud."""
        path = f"/{len(self._server.clouds)}/"
        self._server.clouds[path] = cloud
        return self.url + path

    def environment(self, zone: str) -> dict[str, str]:
        """Of a controller whose disks are in that zone of the cloud at the root."""
        return {
            "AWS_ENDPOINT_URL_EC2": self.url,
            "AWS_ACCESS_KEY_ID": "AKIATEST",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": zone[:-1],
            "CONFIDENTIAL_CSI_AWS_ZONE": zone,
        }


def clients_of(url: str) -> Callable[[str], Any]:
    """Clients of an EC2 at that address, with retries as in the product: none."""
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        max_pool_connections=100,
        connect_timeout=30,
        read_timeout=60,
    )
    return lambda region: _SESSION.client("ec2", region_name=region, endpoint_url=url, config=config)


class _Handler(BaseHTTPRequestHandler):
    server: _HttpServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        cloud = self.server.clouds[self.path]
        try:
            self._authenticate(cloud)
            if is_identity_request(body):
                self._send(200, write_identity(CALLER))
                return
            action, arguments = read_request(body)
            fault = cloud.fault(action)
            if fault is Fault.LOST_REQUEST:
                self.close_connection = True
                return
            if fault in _ERRORS:
                raise _ERRORS[fault]
            answer = cloud.perform(action, arguments)
        except Ec2Error as error:
            self._send(error.status, write_error(error, str(uuid4())))
            return
        if fault is Fault.LOST_ANSWER:
            self.close_connection = True
            return
        if fault is Fault.HANG and self.server.ended.wait(_HANG_SECONDS):
            self.close_connection = True
            return
        self._send(200, write_answer(action, answer, str(uuid4())))

    def _authenticate(self, cloud: Cloud) -> None:
        """Which key it is; what it signs is not looked at."""
        key = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        if cloud.access_keys is not None and (key is None or key[1] not in cloud.access_keys):
            text = "AWS was not able to validate the provided access credentials"
            raise Ec2Error("AuthFailure", text, 401)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/xml;charset=UTF-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: thousands of calls."""
