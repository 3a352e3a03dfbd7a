"""A hundred thousand frames, good ones and broken ones, through the proxy."""

from __future__ import annotations

import random
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError

from agent.ttrpc import Code
from proto import ttrpc_pb2
from tests.peers.kata import SERVICE, OciMount, create_container, text
from tests.peers.ttrpc_raw import (
    DATA,
    REQUEST,
    RESPONSE,
    RawFrame,
    connected,
    frame,
    read_frame,
    request,
    scripted_server,
)
from tests.unit.agent.proxy_support import CountingVolumes, containers, unix_proxy

FRAMES = 100_000
BATCH = 250
MOUNTING = ("CreateContainer", "CreateSandbox", "UpdateEphemeralMounts")
METHODS = (
    "StartContainer",
    "ReadStdout",
    "WaitProcess",
    "CreateSandbox",
    "UpdateEphemeralMounts",
    "SomethingNew",
)
CONTAINER = create_container("c", [OciMount("/data", "/src")])


def echo_data(connection: socket.socket) -> None:
    """Answer each request with its very data: what came through comes back."""
    while True:
        got = read_frame(connection)
        assert got.type == REQUEST
        connection.sendall(frame(got.stream_id, RESPONSE, got.data, flags=got.flags))


def envelope(chance: random.Random) -> bytes:
    """A request with unknown fields, at times damaged."""
    create = chance.random() < 0.05
    payload = bytearray(CONTAINER if create else chance.randbytes(chance.choice((0, 1, 30, 300))))
    if create:
        for _ in range(chance.randrange(4)):
            payload[chance.randrange(len(payload))] ^= 1 << chance.randrange(8)
    method = "CreateContainer" if create else chance.choice(METHODS)
    data = bytearray(
        ttrpc_pb2.Request(service=SERVICE, method=method, payload=bytes(payload)).SerializeToString()
        + text(chance.randrange(100, 9000), chance.randbytes(chance.randrange(20)))
    )
    if chance.random() < 0.1:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def fits(sent: RawFrame, answer: RawFrame) -> bool:
    """Whether the answer is what a proxy may give for a request."""
    if sent.flags & 7:
        return answer.response.status.code == Code.UNIMPLEMENTED
    echoed = answer.data == sent.data and answer.flags == sent.flags
    try:
        call = ttrpc_pb2.Request.FromString(sent.data)
    except DecodeError:
        return answer.response.status.code == Code.INVALID_ARGUMENT
    if call.service == SERVICE and call.method in MOUNTING:
        # Echoed, or refused for a payload that can't be read, or one whose mounts the damage made strange.
        return echoed or 3 <= ttrpc_pb2.Response.FromString(answer.data).status.code <= 14
    return echoed


@pytest.mark.parametrize("seed", [1])
def test_frames_of_all_kinds_are_answered_rightly_or_not_at_all(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    started = time.process_time()  # of both ends and of what is between; others use the machine, too
    sent_frames = 0
    takeovers = containers(CountingVolumes(), tmp_path / "state")
    with (
        scripted_server(tmp_path / "u", echo_data),
        unix_proxy(tmp_path, takeovers) as path,
    ):
        while sent_frames < FRAMES:
            with connected(path) as client:
                stream_id = chance.randrange(1, 1000, 2)
                for _ in range(chance.randrange(1, 20)):
                    expected: dict[int, RawFrame] = {}
                    batch = []
                    for _ in range(BATCH):
                        if chance.random() < 0.03:
                            # Ignored: kinds of later versions, an answer nobody asked for.
                            kind = chance.choice((RESPONSE, 0, 9, 255))
                            batch.append(frame(chance.randrange(1, 99, 2), kind, chance.randbytes(5)))
                            continue
                        flags = chance.choice((0,) * 12 + (0x80, 0x40, 1, 2, 4))
                        one = RawFrame(stream_id, REQUEST, flags, envelope(chance))
                        expected[stream_id] = one
                        batch.append(frame(*one[:2], one.data, flags=one.flags))
                        stream_id += chance.choice((2, 4, 200))
                    client.sendall(b"".join(batch))
                    sent_frames += len(batch)
                    answers = [read_frame(client) for _ in expected]
                    assert {one.stream_id for one in answers} == expected.keys(), "one answer for each call"
                    wrong = [one for one in answers if not fits(expected[one.stream_id], one)]
                    assert not wrong, (wrong[0], expected[wrong[0].stream_id])
                # At last, a header that lies, or noise; then the connection is of no more use.
                end = chance.choice(
                    (
                        frame(stream_id, REQUEST, chance.randbytes(50), length=chance.randrange(1 << 32)),
                        chance.randbytes(chance.randrange(1, 100)),
                        frame(stream_id, DATA, b"x", flags=chance.randrange(256)),
                    )
                )
                with suppress(OSError):
                    client.sendall(end)
            with connected(path) as other:
                other.sendall(request(1, "Alive"))
                assert read_frame(other).stream_id == 1
    elapsed = time.process_time() - started
    print(f"{sent_frames} frames in {elapsed:.1f} s of a processor")
    assert elapsed < 60
