"""Ask cryptsetup's own library, many times a second.

Run as a program, it is the child that loads the library: for each header on standard input it answers with
the JSON that the library loaded, or with nothing if it refused. A child, because hostile headers go into C.
The calls are those of ``cryptsetup luksDump --dump-json-metadata``; a test holds the two together.
"""

import ctypes
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.differential.cryptsetup import Verdict, write_device

LIBRARY = "libcryptsetup.so.12"
_REQUEST = struct.Struct(">QI")
_ANSWER = struct.Struct(">?I")


class Library:
    """A child process that judges headers; raises EOFError if the library crashes on one."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    def verdict(self, area: bytes, device_bytes: int) -> Verdict:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(_REQUEST.pack(device_bytes, len(area)) + area)
        self._child.stdin.flush()
        head = self._child.stdout.read(_ANSWER.size)
        if len(head) < _ANSWER.size:
            raise EOFError("the library crashed")
        accepted, length = _ANSWER.unpack(head)
        text = self._child.stdout.read(length)
        return Verdict(text if accepted else None)


@contextmanager
def library() -> Iterator[Library]:
    command = [sys.executable, "-m", "tests.differential.libcryptsetup"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        yield Library(child)
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(timeout=60) == 0


def _loaded_json(bindings: ctypes.CDLL, image: Path) -> bytes | None:
    device = ctypes.c_void_p()
    if bindings.crypt_init(ctypes.byref(device), str(image).encode()) < 0:
        raise RuntimeError("crypt_init failed")
    try:
        if bindings.crypt_load(device, None, None) < 0:
            return None
        text = ctypes.c_char_p()
        if bindings.crypt_dump_json(device, ctypes.byref(text), 0) < 0:
            return None
        return text.value
    finally:
        bindings.crypt_free(device)


def main() -> None:
    bindings = ctypes.CDLL(LIBRARY)
    bindings.crypt_free.restype = None
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image"
        while head := sys.stdin.buffer.read(_REQUEST.size):
            device_bytes, length = _REQUEST.unpack(head)
            write_device(image, sys.stdin.buffer.read(length), device_bytes)
            text = _loaded_json(bindings, image)
            sys.stdout.buffer.write(_ANSWER.pack(text is not None, len(text or b"")) + (text or b""))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
