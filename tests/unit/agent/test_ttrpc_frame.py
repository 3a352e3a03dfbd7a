"""Frames on a socket pair, against bytes written out here."""

from __future__ import annotations

import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ttrpc_frame import (
    MAX_DATA,
    Channel,
    ChannelClosed,
    Frame,
    MessageType,
    OversizedFrame,
    TtrpcError,
    encode_frame,
)


@contextmanager
def _pair(frame_timeout: float) -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, frame_timeout)
    yield channel, theirs
    channel.close()
    theirs.close()


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    with _pair(60.0) as patient:
        yield patient


@pytest.fixture
def hasty() -> Iterator[tuple[Channel, socket.socket]]:
    """A pair whose frames must be complete within 0.3 s."""
    with _pair(0.3) as one:
        yield one


def test_a_frame_begins_with_length_stream_type_and_flags_in_network_order() -> None:
    assert encode_frame(0x01020305, MessageType.RESPONSE, b"ab") == b"\0\0\0\x02\x01\x02\x03\x05\x02\0ab"


def test_data_of_exactly_4_mib_fits_and_one_byte_more_does_not() -> None:
    assert len(encode_frame(1, MessageType.REQUEST, bytes(MAX_DATA))) == 10 + 4 * 1024 * 1024
    with pytest.raises(ValueError, match="4194305"):
        encode_frame(1, MessageType.REQUEST, bytes(MAX_DATA + 1))


@given(
    stream_id=st.integers(0, 2**32 - 1), kind=st.integers(0, 255), flags=st.integers(0, 255), data=st.binary()
)
def test_any_frame_is_received_as_it_was_sent(stream_id: int, kind: int, flags: int, data: bytes) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, frame_timeout=60.0)
    with theirs:
        theirs.sendall(struct.pack(">IIBB", len(data), stream_id, kind, flags) + data)
        assert channel.receive() == Frame(stream_id, kind, flags, data)
    channel.close()


def test_a_frame_that_comes_in_single_bytes_is_put_together(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair

    def trickle() -> None:
        for byte in encode_frame(7, MessageType.DATA, b"slowly"):
            theirs.send(bytes([byte]))
            time.sleep(0.002)

    thread = threading.Thread(target=trickle)
    thread.start()
    assert channel.receive() == Frame(7, MessageType.DATA, 0, b"slowly")
    thread.join()


@pytest.mark.parametrize("sent", [1, 9, 10, 14], ids=lambda sent: f"{sent} bytes")
def test_a_frame_that_stays_incomplete_ends_the_channel(
    hasty: tuple[Channel, socket.socket], sent: int
) -> None:
    channel, theirs = hasty
    theirs.sendall(encode_frame(1, MessageType.REQUEST, b"complete")[:sent])
    started = time.monotonic()
    with pytest.raises(ChannelClosed, match="stalled"):
        channel.receive()
    assert time.monotonic() - started < 30


def test_an_oversized_frame_is_reported_and_the_next_one_received(
    pair: tuple[Channel, socket.socket],
) -> None:
    channel, theirs = pair
    size = MAX_DATA + 1

    def send() -> None:
        theirs.sendall(struct.pack(">IIBB", size, 3, 1, 0) + bytes(size))
        theirs.sendall(encode_frame(5, MessageType.REQUEST, b"next"))

    thread = threading.Thread(target=send)
    thread.start()
    assert channel.receive() == OversizedFrame(3, size)
    assert channel.receive() == Frame(5, MessageType.REQUEST, 0, b"next")
    thread.join()


def test_an_oversized_frame_is_not_kept_in_memory(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    size = (16 << 20) - 1

    def send() -> None:
        block = bytes(1 << 16)
        theirs.sendall(struct.pack(">IIBB", size, 3, 1, 0))
        for _ in range(0, size, len(block)):
            theirs.sendall(block)

    thread = threading.Thread(target=send)
    tracemalloc.start()
    thread.start()
    try:
        assert channel.receive() == OversizedFrame(3, size)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
        thread.join()


def test_a_header_alone_reserves_no_memory(hasty: tuple[Channel, socket.socket]) -> None:
    channel, theirs = hasty
    theirs.sendall(struct.pack(">IIBB", MAX_DATA, 3, 1, 0))
    tracemalloc.start()
    try:
        with pytest.raises(ChannelClosed):
            channel.receive()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [16 << 20, 2**32 - 1])
def test_a_length_that_the_protocol_reserves_ends_the_channel_at_once(
    pair: tuple[Channel, socket.socket], length: int
) -> None:
    channel, theirs = pair
    theirs.sendall(struct.pack(">IIBB", length, 1, 1, 0))
    with pytest.raises(ChannelClosed, match=str(length)):
        channel.receive()


def test_a_peer_that_never_reads_times_a_sender_out(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    small = encode_frame(1, MessageType.REQUEST, b"")
    with pytest.raises(TimeoutError):
        for _ in range(100_000):
            channel.send(small, timeout=0.05)
    # Nothing of the last frame went out, so the stream is intact once the peer reads again.
    theirs.settimeout(60)
    assert len(theirs.recv(1 << 20)) % 10 == 0
    channel.send(small, timeout=60)


def test_a_peer_that_stops_reading_midway_is_cut_off(pair: tuple[Channel, socket.socket]) -> None:
    channel, _ = pair
    with pytest.raises(ChannelClosed, match="stopped reading"):
        channel.send(encode_frame(1, MessageType.REQUEST, bytes(MAX_DATA)), timeout=1)
    with pytest.raises(ChannelClosed):
        channel.send(encode_frame(3, MessageType.REQUEST, b""), timeout=0.1)


def test_shutting_down_wakes_a_waiting_receiver(pair: tuple[Channel, socket.socket]) -> None:
    channel, _ = pair
    timer = threading.Timer(0.05, channel.shut_down)
    timer.start()
    with pytest.raises(ChannelClosed):
        channel.receive()
    timer.join()


@pytest.mark.parametrize("code", [0, 2**31, -(2**31) - 1])
def test_a_status_that_is_success_or_no_32_bit_number_is_no_error(code: int) -> None:
    with pytest.raises(ValueError, match=str(code)):
        TtrpcError(code, "x")
