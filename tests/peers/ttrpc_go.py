"""The Go implementation of ttrpc, as a server and as a client (``tests/peers/ttrpc-go``)."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.wrappers_pb2 import BytesValue

from tests.peers import peer_program

SERVICE = "peer.Go"


@contextmanager
def go_server(socket_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A running Go server; its methods take and return the value of a BytesValue."""
    with subprocess.Popen(
        [peer_program("ttrpc-go"), "server", socket_path], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@dataclass(frozen=True)
class GoCall:
    service: str
    method: str
    payload: bytes
    timeout_ms: int = 0


@dataclass(frozen=True)
class GoResult:
    """``code`` is the gRPC code, 0 for success and 2 for errors that are no status."""

    index: int
    payload: bytes
    code: int
    message: str
    closed: bool


def go_calls(socket_path: Path, calls: Iterable[GoCall], timeout: float = 60.0) -> list[GoResult]:
    """What a Go client gets for ``calls``, all made at once on one connection, in the order of arrival."""
    lines = [
        json.dumps(
            {
                "ID": index,
                "Service": one.service,
                "Method": one.method,
                "Payload": base64.b64encode(one.payload).decode(),
                "TimeoutMS": one.timeout_ms,
            }
        )
        for index, one in enumerate(calls)
    ]
    done = subprocess.run(
        [peer_program("ttrpc-go"), "client", socket_path],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=True,
    )
    return [
        GoResult(
            index=one["ID"],
            payload=base64.b64decode(one["Payload"] or ""),
            code=one["Code"],
            message=one["Message"],
            closed=one["Closed"],
        )
        for one in map(json.loads, done.stdout.splitlines())
    ]


def wrapped(value: bytes) -> bytes:
    return BytesValue(value=value).SerializeToString()


def unwrapped(payload: bytes) -> bytes:
    return BytesValue.FromString(payload).value
