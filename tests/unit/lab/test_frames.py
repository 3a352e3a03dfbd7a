"""Frames survive devices that take and give less than they are asked."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.frames import pack, read_frame, unpack, write_frame


class Trickle:
    """Takes and gives a few bytes at a time, as a virtio-serial port may."""

    def __init__(self) -> None:
        self._content = bytearray()

    def write(self, data: bytes | memoryview, /) -> int:
        self._content += data[:7]
        return len(data[:7])

    def read(self, size: int, /) -> bytes:
        taken = bytes(self._content[: min(size, 5)])
        del self._content[: len(taken)]
        return taken

    def flush(self) -> None:
        """There is no buffer."""


@given(st.binary(max_size=200), st.text())
def test_a_frame_comes_back_whole(data: bytes, text: str) -> None:
    stream = Trickle()
    write_frame(stream, {"data": pack(data), "text": text})
    write_frame(stream, {"second": True})
    first = read_frame(stream)
    assert (unpack(first["data"]), first["text"]) == (data, text)
    assert read_frame(stream) == {"second": True}


@pytest.mark.parametrize("length", [0, 3, 5, 20])
def test_an_end_within_a_frame_is_an_error(length: int) -> None:
    stream = io.BytesIO()
    write_frame(stream, {"data": "x" * 100})
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(stream.getvalue()[:length]))
