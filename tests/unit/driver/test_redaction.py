"""Secrets planted in every field, and in all that SDKs say at their most verbose, are nowhere to be read."""

from __future__ import annotations

import json
import logging
import re
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import grpc
import pytest
from azure.core.pipeline import Pipeline, policies
from azure.core.pipeline.transport import RequestsTransport
from azure.core.rest import HttpRequest
from hypothesis import given
from hypothesis import strategies as st

from driver.logs import LEVELS
from driver.redaction import STRIPPED, credentials_in, without_credentials
from providers.aws import AwsProvider
from providers.deadline import Deadline
from tests.contract.aws_backend import SETTINGS
from tests.fakes.arm.cloud import ArmCloud
from tests.fakes.arm.server import TOKEN
from tests.fakes.arm.server import serving as azure_server
from tests.fakes.ec2 import Cloud, Ec2Server
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider
from tests.tools.driver_process import METRICS_ON, running
from tests.unit.driver.rig import connect, controller, refused
from tests.unit.driver.test_logs import captured

PLANTED_KEY = "planted/secret+key/0123456789"
PLANTED_SESSION = "planted+session//token=="
KEY_ID = "ASIAPLANTEDPLANTED00"
PLANTED_JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.cGxhbnRlZC1zaWduYXR1cmU"
SAS = "sv=2024-11-04&sr=b&sig=planted%2Bsas%2Fsignature%3D&se=2030-01-01"

_values = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789+/_.~-", min_size=20, max_size=60)
#: How SDKs, shells, documents and people write a credential down.
_FORMS = (
    "Authorization: Bearer {}",
    "'Authorization': 'Bearer {}'",
    "{{'Authorization': b'AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20260101/us-east-1/ec2/"
    "aws4_request, SignedHeaders=host;x-amz-date, Signature={}', 'X-Amz-Date': b'20260101T000000Z'}}",
    "Authorization: SharedKey account:{}",
    "'X-Amz-Security-Token': b'{}'",
    "x-amz-security-token:{}\n\nhost;x-amz-date",
    "https://host/path?X-Amz-Signature={}&X-Amz-Expires=60",
    "https://account.blob.core.windows.net/c/b?sv=2024&sig={}&se=2030",
    "Signature:\n{}",
    "<SecretAccessKey>{}</SecretAccessKey><Expiration>2030</Expiration>",
    "<SessionToken>{}</SessionToken>",
    '{{"access_token": "{}", "expires_in": 3600}}',
    '{{\\"access_token\\": \\"{}\\", \\"expires_in\\": 3600}}',
    '{{"SecretAccessKey" : "{}", "Token": "x"}}',
    '{{"Code": "Success", "Token" : "{}"}}',
    "grant_type=client_credentials&client_secret={}&scope=x",
    "client_assertion={}&client_assertion_type=jwt",
    "aws_secret_access_key = {}",
    "AWS_SECRET_ACCESS_KEY={} confidential-csi controller",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=x",
    "password: {}",
    "'password': '{}'",
    "postgres://user:{}@host/db",
    "Cookie: {}",
    "X-IDENTITY-HEADER: {}",
    "X-Auth-Token: {}",
    '{{\\\\\\"SecretAccessKey\\\\\\": \\\\\\"{}\\\\\\"}}',
    "Set-Cookie: {}; Secure",
    "Metadata-Flavor: x, X-aws-ec2-metadata-token: {}",
    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----\\n{}",
    "eyJhbGciOiJub25lIn0.{0}.{0}",
)


@given(st.sampled_from(_FORMS), _values, st.text(max_size=15), st.text(max_size=15))
def test_a_credential_is_blanked_in_any_form(form: str, value: str, before: str, after: str) -> None:
    if "://user" in form:
        value = value.replace("/", "%2F")
    elif form.startswith("eyJ"):
        value = re.sub("[^A-Za-z0-9_-]", "_", value)  # base64url
    shown = without_credentials(f"{before} {form.format(value)} {after}")
    assert value not in shown
    assert STRIPPED in shown


@pytest.mark.parametrize(
    "text",
    [
        "kbs-key-id: default/volume-key/ledger",
        "no volume 'aws:us-east-1/vol-0123456789abcdef0' at provider 'aws'",
        "CreateVolume: EC2 says VolumeLimitExceeded; free some, ask AWS for a higher quota",
        "key=default/volume-key/ledger name=pvc-1 code=OK milliseconds=1.5",
        "the token 'after-5' is not one of this provider's",
        "ClientToken=5f2b NextToken=abc resource_version=7",
        "secret name: volume-keys; the secrets of the request were stripped",
        "unknown parameter 'kbs-key-ID'; did you mean kbs-key-id?",
        "https://docs.example/design:1/page@2x.png",
        "bearer of bad news",
        "signature mismatch of the record",
    ],
)
def test_what_is_no_credential_stays_as_it_is(text: str) -> None:
    assert without_credentials(text) == text


@given(st.text(max_size=300))
def test_any_text_is_taken_and_blanking_again_changes_nothing(text: str) -> None:
    once = without_credentials(text)
    assert without_credentials(once) == once


def test_credentials_are_found_in_an_environment_by_name() -> None:
    environment = {
        "AWS_SECRET_ACCESS_KEY": "secret-1",
        "AWS_SESSION_TOKEN": "session-1",
        "AZURE_CLIENT_SECRET": "secret-2",
        "AZURE_PASSWORD": "short",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token",
        "AZURE_TOKEN_CREDENTIALS": "prod-something",
        "AWS_ACCESS_KEY_ID": "AKIASOMETHING",
    }
    assert credentials_in(environment) == {"secret-1", "session-1", "secret-2"}


class _TokenService(BaseHTTPRequestHandler):
    """AWS' STS, whose answer holds the planted credentials."""

    def do_POST(self) -> None:
        sent = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        assert sent["WebIdentityToken"] == [PLANTED_JWT]
        answer = (
            '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            "<AssumeRoleWithWebIdentityResult><Credentials>"
            f"<SessionToken>{PLANTED_SESSION}</SessionToken><SecretAccessKey>{PLANTED_KEY}</SecretAccessKey>"
            f"<Expiration>2099-01-01T00:00:00Z</Expiration><AccessKeyId>{KEY_ID}</AccessKeyId>"
            "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@contextmanager
def _served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_botocore_at_its_most_verbose_shows_no_credential(
    log_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a web identity: the token sent, the keys that come back, and every signature made with them."""
    token = tmp_path / "token"
    token.write_text(PLANTED_JWT)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/volumes")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with (
        _served(_TokenService) as sts,
        Ec2Server(Cloud()) as ec2,
        captured(log_format, "trace") as stream,
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts)

        def client(region: str) -> Any:
            return boto3.Session().client("ec2", region_name=region, endpoint_url=ec2.url)

        assert AwsProvider(SETTINGS, client).check_backend(Deadline.after(20)) is None
        logged = stream.getvalue()
    assert "AssumeRoleWithWebIdentity" in logged
    assert "Sending http request" in logged
    assert "DescribeVolumes" in logged
    for secret in (PLANTED_KEY, PLANTED_SESSION, KEY_ID, PLANTED_JWT):
        for form in {secret, urllib.parse.quote(secret, safe=""), secret.replace("/", "\\/")}:
            assert form not in logged
    assert "Signature=***" in logged or "Authorization': b'***" in logged


class _Exporting(BaseHTTPRequestHandler):
    """Azure's answer to a disk's export, a token beside it."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps(
            {"accessSAS": f"https://md-1.blob.core.windows.net/x/abcd?{SAS}", "access_token": PLANTED_JWT}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", f"session={PLANTED_KEY}; Secure")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_azure_s_http_logging_at_its_most_verbose_shows_no_credential(log_format: str) -> None:
    """Headers, bodies and URLs of both directions, as ``logging_enable`` prints them."""
    lines = policies.NetworkTraceLoggingPolicy(logging_enable=True)
    headers = policies.HttpLoggingPolicy()
    headers.allowed_header_names.add("*")
    with _served(_Exporting) as url, captured(log_format, "trace") as stream:
        request = HttpRequest(
            "POST",
            f"{url}/disks/x/beginGetAccess?{SAS}",
            headers={"Authorization": f"Bearer {PLANTED_JWT}", "Cookie": PLANTED_KEY},
            content=f"grant_type=x&client_secret={PLANTED_KEY}&client_assertion={PLANTED_JWT}",
        )
        pipeline: Any = Pipeline(
            RequestsTransport(use_env_settings=False), [policies.ContentDecodePolicy(), headers, lines]
        )
        pipeline.run(request)
        logged = stream.getvalue()
    assert "Request headers" in logged
    assert "beginGetAccess" in logged
    assert "accessSAS" in logged
    for secret in (PLANTED_KEY, PLANTED_JWT, "planted%2Bsas", "planted+sas", PLANTED_JWT.split(".")[2]):
        assert secret not in logged


def test_a_real_controller_on_azure_shows_neither_its_identity_nor_its_token(tmp_path: Path) -> None:
    """The federated token that it proves itself with, and the one that it gets, at the most verbose level."""
    token = tmp_path / "federated-token"
    token.write_text(PLANTED_JWT)
    cloud = ArmCloud(operation_looks=1)
    with azure_server(tmp_path) as server:
        environment = server.environment(server.add(cloud).subscription, token)
        options = ("--provider=azure", "--log-level=trace", METRICS_ON)
        with (
            running("controller", tmp_path, *options, env=environment) as process,
            connect(process.target()) as client,
        ):
            client.delete(client.create(timeout=30).volume_id)
            with urllib.request.urlopen(f"http://{process.metrics_address()}/metrics", timeout=60) as answer:
                metrics = answer.read().decode()
        logged = process.log.read_text()
    assert "azure.identity" in logged
    assert "/csi.v1.Controller/CreateVolume" in logged
    assert 'operation="disks.put"' in metrics
    for shown in (logged, metrics):
        assert PLANTED_JWT not in shown
        assert TOKEN not in shown


@pytest.mark.parametrize("level", LEVELS)
def test_sdks_are_heard_at_trace_alone(level: str) -> None:
    with captured("text", level) as stream:
        logging.getLogger("botocore.hooks").debug("chatter")
        logging.getLogger("azure.identity").info("chatter")
        logging.getLogger("providers.aws").debug("ours")
        logging.getLogger("urllib3").warning("a warning")
        logged = stream.getvalue()
    assert logged.count("chatter") == (2 if level == "trace" else 0)
    assert ("ours" in logged) is (level in ("trace", "debug"))
    assert ("a warning" in logged) is (level != "error")


def test_a_credential_as_a_parameter_is_refused_without_being_repeated() -> None:
    """In the message of the error, which becomes an event, and at every level of the log."""
    with captured("json", "trace") as stream, controller(MemoryProvider(MemoryCloud())) as client:
        for name in ("awsSecretAccessKey", "azureClientSecret", "password", "sasToken", "private-key"):
            with refused(grpc.StatusCode.INVALID_ARGUMENT) as refusal:
                client.create(parameters={name: PLANTED_KEY})
            assert name in refusal.message
            assert PLANTED_KEY not in refusal.message
        logged = stream.getvalue()
    assert "sasToken" in logged
    assert PLANTED_KEY not in logged
