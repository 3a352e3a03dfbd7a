"""What is logged of each call, and that no secret ever is."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from driver import logs
from driver.logs import SCRUBBER, JsonFormatter, TextFormatter, secret_values, strip_secrets
from driver.redaction import STRIPPED
from driver.required_fields import REQUIRED_FIELDS
from proto import csi_pb2
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider, raising
from tests.unit.driver.rig import controller, refused, serving

MARKED_VALUE = "S3CR3T"
KEYED_VALUE = "TOK3N"
TOKENS_KEY = "csi.storage.k8s.io/serviceAccount.tokens"


@contextmanager
def captured(log_format: str, level: str) -> Iterator[io.StringIO]:
    """The log of this process, configured as by the command, in memory."""
    stream = io.StringIO()
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    real, sys.stderr = sys.stderr, stream
    try:
        logs.configure(log_format, level)
        yield stream
    finally:
        sys.stderr = real
        root.handlers[:] = before[1]
        root.setLevel(before[0])


def _requests() -> list[type[Message]]:
    return [
        getattr(csi_pb2, method.input_type.name)
        for service in csi_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


def _filled(request_class: type[Message]) -> Message:
    """A request with every string, every secret and every token-like key filled."""
    request = request_class()
    for field in request.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = MARKED_VALUE if field.name == "secrets" else KEYED_VALUE
            getattr(request, field.name)[TOKENS_KEY] = f'{{"aud": {{"token": "{value}"}}}}'
            getattr(request, field.name)["k"] = MARKED_VALUE if field.name == "secrets" else "plain"
        elif field.type == field.TYPE_STRING and not field.is_repeated:
            setattr(request, field.name, "memory:x")
    return request


class Raising:
    """Services whose every RPC fails, quoting its request."""

    def __getattr__(self, name: str) -> object:
        if not name[0].isupper():
            raise AttributeError(name)

        def behavior(request: Message, context: grpc.ServicerContext) -> Message:
            if name.startswith("Controller"):
                context.abort(grpc.StatusCode.INTERNAL, f"details {request}")
            raise ValueError(f"can't handle {request!r} {request}")

        return behavior


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_secret_of_any_rpc_is_in_log_or_status(log_format: str) -> None:
    """Field case L1: every RPC, at debug level, forced to raise with its request in the exception."""
    services: dict[str, object] = {
        name: Raising() for name in ("Controller", "Node", "Identity", "GroupController")
    }
    with captured(log_format, "debug") as stream, serving(services) as client:
        for service in services:
            for method in csi_pb2.DESCRIPTOR.services_by_name[service].methods:
                request_class: type[Message] = getattr(csi_pb2, method.input_type.name)
                call: grpc.UnaryUnaryMultiCallable[Message, bytes] = client.channel.unary_unary(
                    f"/csi.v1.{service}/{method.name}",
                    request_serializer=request_class.SerializeToString,
                )
                with refused(grpc.StatusCode.INTERNAL) as refusal:
                    call(_filled(request_class), timeout=10)
                assert MARKED_VALUE not in refusal.message
                assert KEYED_VALUE not in refusal.message
        logged = stream.getvalue()
    assert "NodePublishVolume" in logged
    assert "Traceback" in logged
    assert MARKED_VALUE not in logged
    assert KEYED_VALUE not in logged


@pytest.mark.parametrize("request_class", _requests(), ids=lambda request: str(request.__name__))
def test_secret_fields_are_found_by_their_mark(request_class: type[Message]) -> None:
    """Field case L1: whatever the specification adds is covered by walking its descriptors."""
    request = _filled(request_class)
    stripped = str(strip_secrets(request))
    assert MARKED_VALUE not in stripped
    assert KEYED_VALUE not in stripped
    marked = [
        field for field in request.DESCRIPTOR.fields if field.GetOptions().Extensions[csi_pb2.csi_secret]
    ]
    assert (MARKED_VALUE in secret_values(request)) == bool(marked)


def test_nested_and_repeated_messages_are_walked() -> None:
    """Field case L1, for messages inside messages."""
    response = csi_pb2.ListVolumesResponse()
    entry = response.entries.add()
    entry.volume.volume_context.update(
        {TOKENS_KEY: KEYED_VALUE, "Password": MARKED_VALUE, "kbs-key-id": "default/key/1"}
    )
    assert secret_values(response) == {KEYED_VALUE, MARKED_VALUE}
    stripped = str(strip_secrets(response))
    assert (stripped.count(STRIPPED), "default/key/1" in stripped) == (2, True)
    assert response.entries[0].volume.volume_context[TOKENS_KEY] == KEYED_VALUE


@given(st.dictionaries(st.text(max_size=8), st.text(min_size=4, max_size=30), max_size=4))
def test_any_secret_value_is_blanked_in_all_its_written_forms(secrets: dict[str, str]) -> None:
    request = csi_pb2.DeleteVolumeRequest(volume_id="v", secrets=secrets)
    with SCRUBBER.hold(request):
        for value in secrets.values():
            for form in (value, repr(value), json.dumps(value)):
                shown = SCRUBBER.scrub(f"a {form} b")
                assert value not in shown.replace(STRIPPED, "")
    assert SCRUBBER.scrub("a b") == "a b"


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_a_secret_of_many_lines_is_blanked_in_a_traceback(formatter: logging.Formatter) -> None:
    """Field case L1: a key in PEM form, shown by an exception as ``repr`` and then written as JSON."""
    several_lines = "-----BEGIN KEY-----\nMIIS3CR3T\\x\n-----END KEY-----\n"
    request = csi_pb2.DeleteVolumeRequest(volume_id="v", secrets={"k": several_lines})
    with SCRUBBER.hold(request):
        try:
            raise KeyError(several_lines)
        except KeyError as error:
            about = (type(error), error, error.__traceback__)
            record = logging.LogRecord("q", logging.ERROR, "f", 1, "failed", None, about)
            line = formatter.format(record)
    assert "KeyError" in line
    assert "MIIS3CR3T" not in line


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_credential_in_the_second_line_of_a_text_is_blanked(log_format: str) -> None:
    """Written down with its line break escaped, its name would seem to be the end of another one."""
    text = "first\nToken: planted-token\nCookie: planted-cookie"
    with captured(log_format, "info") as stream:
        logging.getLogger("x").info(text, extra={"fields": {"error": text}})
        logged = stream.getvalue()
    assert logged.count(STRIPPED) == 4
    assert "planted" not in logged


def test_no_text_forges_a_line_of_the_log_or_steers_a_terminal() -> None:
    hostile = "name\n2026-01-01T00:00:00.000+00:00 INFO rpc forged\r\x1b[2J\x9b2J\u2028"
    with captured("text", "info") as stream:
        logging.getLogger("x").warning("left out: %s", hostile, extra={"fields": {"error": hostile}})
        try:
            raise ValueError(hostile)
        except ValueError:
            logging.getLogger("x").exception("failed")
        logged = stream.getvalue()
    first, second, *traceback = logged.split("\n")[:-1]
    assert "WARNING x left out: name\\n2026" in first
    assert second.endswith("ERROR x failed")
    assert all(line.startswith("    ") for line in traceback)
    assert "forged" in "".join(traceback)
    assert [one for one in logged if not (one.isprintable() or one == "\n")] == []


def test_a_secret_too_short_to_search_for_is_still_stripped_from_the_logged_request() -> None:
    """Field case L1."""
    request = csi_pb2.DeleteVolumeRequest(volume_id="x", secrets={"k": "q7z"})
    with captured("text", "debug") as stream, controller(MemoryProvider(MemoryCloud())) as client:
        client.controller.DeleteVolume(request, timeout=10)
        logged = stream.getvalue()
    assert STRIPPED in logged
    assert "q7z" not in logged


def test_overlapping_calls_hold_the_same_secret_until_the_last_ends() -> None:
    request = csi_pb2.DeleteVolumeRequest(volume_id="v", secrets={"k": MARKED_VALUE})
    with SCRUBBER.hold(request):
        with SCRUBBER.hold(request):
            pass
        assert MARKED_VALUE not in SCRUBBER.scrub(MARKED_VALUE)
    assert SCRUBBER.scrub(MARKED_VALUE) == MARKED_VALUE


def test_a_call_is_one_line_with_what_and_how_long() -> None:
    with captured("json", "info") as stream, controller(MemoryProvider(MemoryCloud())) as client:
        client.create("pvc-1")
        with refused(grpc.StatusCode.NOT_FOUND):
            client.expand("memory:gone", 1)
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    created, expanded = lines
    assert (created["method"], created["code"], created["level"], created["name"]) == (
        "/csi.v1.Controller/CreateVolume",
        "OK",
        "INFO",
        "pvc-1",
    )
    assert created["milliseconds"] >= 0
    assert (expanded["code"], expanded["level"], expanded["volume_id"]) == (
        "NOT_FOUND",
        "WARNING",
        "memory:gone",
    )
    assert "no volume" in expanded["error"]
    assert expanded["request_id"] == created["request_id"] + 1


def test_an_unplanned_error_has_its_traceback_in_the_log_even_if_answered_aborted() -> None:
    cloud = MemoryCloud()
    cloud.after["create_volume"].append(raising(KeyError("the bug")))
    with captured("text", "info") as stream, controller(MemoryProvider(cloud)) as client:
        with refused(grpc.StatusCode.ABORTED) as refusal:
            client.create()
        logged = stream.getvalue()
    assert "the bug" not in refusal.message
    assert re.search(r"ERROR .* code=ABORTED", logged)
    assert "KeyError: 'the bug'" in logged


def test_text_lines_can_t_be_forged() -> None:
    with captured("text", "info") as stream, controller(MemoryProvider(MemoryCloud())) as client:
        client.delete("x\n2026-01-01 INFO forged")
        assert len(stream.getvalue().splitlines()) == 1


def test_required_fields_are_fields_of_the_requests() -> None:
    for name, fields in REQUIRED_FIELDS.items():
        assert set(fields) <= set(getattr(csi_pb2, name).DESCRIPTOR.fields_by_name)


def test_every_required_field_is_asked_for() -> None:
    """Field case C9: an empty id is refused in every RPC that carries one."""
    ids = {"volume_id", "snapshot_id", "name", "source_volume_id", "target_path", "volume_path"}
    served = {"Controller", "Node"}
    not_served = re.compile(
        "Modify|ControllerPublish|ControllerUnpublish|GetSnapshotRequest|VolumeStats|List"
    )
    for service in served:
        for method in csi_pb2.DESCRIPTOR.services_by_name[service].methods:
            request = method.input_type
            if not not_served.search(request.name):
                assert ids & set(request.fields_by_name) <= set(REQUIRED_FIELDS.get(request.name, ()))


@pytest.mark.parametrize(
    "message", ["no password:", "expected Authorization:", "token=", "'sig'='", 'secret: "']
)
def test_a_line_that_ends_like_a_credential_begins_is_json_all_the_same(message: str) -> None:
    record = logging.LogRecord("driver", logging.INFO, "", 0, message, (), None)
    record.fields = {"method": "/csi.v1.Node/NodePublishVolume", "milliseconds": 1.5}
    line = json.loads(JsonFormatter().format(record))
    assert (line["method"], line["milliseconds"]) == ("/csi.v1.Node/NodePublishVolume", 1.5)
