"""Messages of the Kata agent protocol in raw protobuf encoding, and a stand-in for kata-agent in Go.

Field numbers are those of Kata Containers, ``src/libs/protocols/protos/{agent,oci}.proto``. Shares no code
with ``agent`` or ``proto``.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.peers import peer_program

SERVICE = "grpc.AgentService"
CLOUD_VOLUMES = "io.confidentialcontainers.org.cloud_volumes"
TARGET_PATH = "io.confidentialcontainers.org.peerpodvolumes.target_path"


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def text(number: int, value: str | bytes) -> bytes:
    """A length-delimited field: a string, bytes, or a message."""
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def entry(number: int, key: str, value: str) -> bytes:
    """An entry of a map of strings."""
    return text(number, text(1, key) + text(2, value))


@dataclass(frozen=True)
class OciMount:
    destination: str
    source: str
    type: str = "bind"
    options: tuple[str, ...] = ("rbind", "rprivate", "rw")

    def encode(self) -> bytes:
        known = text(1, self.destination) + text(2, self.source) + text(3, self.type)
        # With a field that no version of the protocol has yet.
        return known + b"".join(text(4, option) for option in self.options) + text(90, b"\xff mount")


def create_container(
    container_id: str, mounts: Sequence[OciMount] = (), annotations: Mapping[str, str] | None = None
) -> bytes:
    """A CreateContainerRequest with something in every field, and fields that nobody knows at each level."""
    process = (
        integer(1, 1)
        + text(3, integer(1, 1000) + integer(2, 2000) + text(4, "user"))
        + b"".join(text(4, argument) for argument in ("sh", "-c", "sleep 1"))
        + b"".join(text(5, variable) for variable in ("PATH=/bin", "HOME=/"))
        + text(6, "/work")
        + integer(11, (1 << 64) - 1)  # OOMScoreAdj = -1
    )
    linux = b"".join(text(6, text(1, kind) + text(2, "")) for kind in ("ipc", "mount")) + text(
        99, b"\x00\xfe"
    )
    spec = b"".join(
        [
            text(1, "1.1.0"),
            text(2, process),
            text(3, text(1, "/run/rootfs") + integer(2, 1)),
            text(4, "host"),
            *(text(5, mount.encode()) for mount in mounts),
            text(6, text(1, text(1, "/hook"))),
            *(entry(7, *pair) for pair in {"io.kubernetes.cri.name": "c", **(annotations or {})}.items()),
            text(8, linux),
            text(77, b"\xf0\x9f unknown in the spec"),
        ]
    )
    return b"".join(
        [
            text(1, container_id),
            text(2, "exec-1"),
            text(3, text(1, "0")),
            text(4, text(1, "dev-1") + text(2, "blk")),
            text(
                5, text(1, "image_guest_pull") + text(3, "image") + text(6, "/run/kata-containers/c/rootfs")
            ),
            text(6, spec),
            integer(7, 1),
            text(8, text(1, "shared") + text(5, "/shared")),
            integer(9, 1025),
            text(1234, b"\x80 unknown in the request"),
            varint(1235 << 3 | 1) + bytes(range(8)),
            varint(1236 << 3 | 5) + bytes(range(4)),
        ]
    )


def by_id(container_id: str) -> bytes:
    """A request whose first field is a container id, as most have, and one that nobody knows."""
    return text(1, container_id) + text(2000, b"\xff later")


@dataclass
class GoAgent:
    """The stand-in: every call it saw, in order. It prints a call before it answers."""

    output: int
    _calls: list[dict[str, Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read_calls(self) -> None:
        """Until the stand-in ends. What is read is counted before the lock is let go."""
        rest = b""
        while True:
            select.select([self.output], [], [])
            with self._lock:
                chunk = os.read(self.output, 1 << 20)
                *lines, rest = (rest + chunk).split(b"\n")
                self._calls += map(json.loads, lines)
            if not chunk:
                return

    def _printed(self) -> list[dict[str, Any]]:
        """Everything that was printed until now, not only what the reader came to."""
        while True:
            waiting = struct.unpack("i", fcntl.ioctl(self.output, termios.FIONREAD, bytes(4)))[0]
            with self._lock:
                if not waiting:
                    return list(self._calls)

    def calls(self, method: str) -> list[dict[str, Any]]:
        """The decoded fields of the calls of one method, each with ``payload``, its bytes."""
        return [
            {**one["Fields"], "payload": base64.b64decode(one["Payload"] or "")}
            for one in self._printed()
            if one["Method"] == method
        ]


@contextmanager
def go_agent(socket_path: Path) -> Iterator[GoAgent]:
    """A running stand-in for kata-agent. See ``ttrpc-go/agent.go`` for what container ids make it do."""
    with subprocess.Popen(
        [peer_program("ttrpc-go"), "agent", socket_path], stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        agent = GoAgent(process.stdout.fileno())
        reader = threading.Thread(target=agent.read_calls, daemon=True)
        try:
            assert process.stdout.readline() == b"ready\n"
            reader.start()
            yield agent
        finally:
            process.kill()
        reader.join()
