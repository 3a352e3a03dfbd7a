"""A stand-in for kata-agent in the guest: binds mounts as the real one does. And a client for it."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from agent.ttrpc import Client, Handler, Server, TtrpcError
from proto import agent_pb2
from tests.guest.inside.agent import leftovers, start_server
from tests.lab import cdh
from tests.peers.ttrpc_raw import read_frame, request

_SERVICE = "grpc.AgentService"
_LOG = Path("/run/kata-stand-in.log")
_BUNDLES = Path("/run/kata-stand-in")


def _create(payload: bytes) -> bytes:
    call = agent_pb2.CreateContainerRequest.FromString(payload)
    if call.container_id.startswith("fail"):
        raise TtrpcError(9, "the stand-in refuses it")
    for mount in call.OCI.Mounts:
        target = _BUNDLES / call.container_id / mount.destination.strip("/").replace("/", "-")
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", mount.source, target], check=True)
        if "ro" in mount.options:
            subprocess.run(["mount", "-o", "remount,bind,ro", target], check=True)
    return b""


def _remove(payload: bytes) -> bytes:
    container_id = agent_pb2.RemoveContainerRequest.FromString(payload).container_id
    for target in (_BUNDLES / container_id).glob("*"):
        subprocess.run(["umount", target], check=True)
        target.rmdir()
    return b""


def _logged(method: str, handler: Handler, payload: bytes) -> bytes:
    with _LOG.open("a") as log:
        log.write(json.dumps({"method": method, "payload": payload.hex()}) + "\n")
    return handler(payload)


def _serve(socket_path: str) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    handlers: dict[str, Handler] = {
        "CreateContainer": _create,
        "RemoveContainer": _remove,
        "DestroySandbox": lambda _: b"",
        "StartContainer": lambda payload: payload,
    }
    server = Server(
        socket_path, {(_SERVICE, name): partial(_logged, name, handler) for name, handler in handlers.items()}
    )
    server.start()
    signal.sigwait({signal.SIGTERM})
    server.stop(1.0)
    return 0


def start(socket_path: str) -> int:
    """Start it in a process of its own; the process id."""
    _LOG.unlink(missing_ok=True)
    return start_server(partial(_serve, socket_path), Path("/run/kata-stand-in.err"), socket_path)


def calls(method: str) -> list[str]:
    """The payloads it got for a method, in hexadecimal."""
    lines = _LOG.read_text().splitlines() if _LOG.exists() else []
    return [one["payload"] for one in map(json.loads, lines) if one["method"] == method]


def call(
    *, socket_path: str, service: str, method: str, payload: str, timeout: float = 240.0
) -> dict[str, Any]:
    """Call a server by ttrpc; the payload is hexadecimal both ways."""
    with Client(socket_path) as client:
        try:
            answer = client.call(service, method, bytes.fromhex(payload), timeout)
        except TtrpcError as error:
            return {"code": error.code, "message": error.message, "payload": ""}
    return {"code": 0, "message": "", "payload": answer.hex()}


def call_over_tls(
    *, port: int, folder: str, service: str, method: str, payload: str, timeout: float = 240.0
) -> dict[str, Any]:
    """As :func:`call`, over TLS with the certificates in a folder."""
    context = ssl.create_default_context(cafile=f"{folder}/authority.pem")
    context.load_cert_chain(f"{folder}/client.pem", f"{folder}/client.key")
    with (
        socket.create_connection(("127.0.0.1", port), timeout) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(request(1, method, bytes.fromhex(payload), service=service))
        answer = read_frame(connection).response
    return {"code": answer.status.code, "message": answer.status.message, "payload": answer.payload.hex()}


def traced(*, over_tls: bool, **arguments: Any) -> dict[str, Any]:
    """A call, and what there was before and after it."""
    before = _trace()
    answer = call_over_tls(**arguments) if over_tls else call(**arguments)
    return {"answer": answer, "before": before, "after": _trace()}


def _trace() -> dict[str, Any]:
    """What an attempt to create a container can leave: calls of others, and things in the guest."""
    opened = [one for one in cdh.calls() if one["method"] == "SecureMount"]
    return {"created": len(calls("CreateContainer")), "opened": len(opened), "leftovers": leftovers()}
