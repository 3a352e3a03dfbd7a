"""A node's zone from instance metadata, over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from driver.instance_zone import NoMetadata, instance_zone
from tests.unit.cli.test_command import _fails

COMPUTE = {"location": "westeurope", "zone": "2", "platformFaultDomain": "1"}


class _Metadata(BaseHTTPRequestHandler):
    """Both clouds' services, as strict as they are about headers."""

    compute = json.dumps(COMPUTE)

    def do_PUT(self) -> None:
        is_token = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._answer("t0ken" if is_token else None)

    def do_GET(self) -> None:
        if self.path == "/latest/meta-data/placement/availability-zone":
            allowed = self.headers["X-aws-ec2-metadata-token"] == "t0ken"
            self._answer("us-east-1b" if allowed else None)
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


def test_each_cloud_tells_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past any proxy: the address is the machine's own."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with metadata() as service:
        assert instance_zone("aws", service) == "us-east-1b"
        assert instance_zone("azure", service) == "westeurope-2"


def test_a_machine_in_no_zone_is_told_by_its_fault_domain() -> None:
    with metadata({**COMPUTE, "zone": ""}) as service:
        assert instance_zone("azure", service) == "1"


@pytest.mark.parametrize(
    "compute", [["x"], {"location": "westeurope"}, {**COMPUTE, "zone": "", "platformFaultDomain": ""}]
)
def test_metadata_without_a_zone_is_an_error(compute: object) -> None:
    with metadata(compute) as service, pytest.raises(NoMetadata, match="azure"):
        instance_zone("azure", service)


def test_no_metadata_is_an_error_that_says_what_to_do() -> None:
    for cloud in ("aws", "azure"):
        with pytest.raises(NoMetadata, match="zone's name"):
            instance_zone(cloud, "127.0.0.1:1")
    assert "gcp" in _fails("node", "--node-id", "n", "--zone", "metadata:gcp")
