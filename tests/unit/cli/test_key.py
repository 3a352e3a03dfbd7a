"""``confidential-csi key new``: the key goes into a pipe, and nowhere else."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.key import _upload_command
from tests.tools.driver_process import COMMAND

KEY_ID = "default/volume-key/ledger"
ADMIN = "eyJ.of.admin"


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Broker:
    """Plays KBS's resource API: refuses what is not from its administrator."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                requests.append(Request(self.command, self.path, dict(self.headers), body))
                self.send_response(200 if self.headers["Authorization"] == f"Bearer {ADMIN}" else 401)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.stop()


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([COMMAND, "key", "new", *arguments], check=False, timeout=60, **options)


def shown_pipeline(broker: Broker, folder: Path) -> str:
    """What the command tells its user to run, as shown when standard output is a file."""
    with (folder / "out").open("wb") as out:
        finished = run(KEY_ID, "--kbs-url", broker.url, stdout=out, stderr=subprocess.PIPE)
    assert finished.returncode == 1
    assert (folder / "out").read_bytes() == b"", "a file would keep the key"
    text = finished.stderr.decode()
    return text[text.index("  confidential-csi") : text.index("\n\nkbs-admin.header")]


def test_the_shown_command_line_stores_32_random_bytes(broker: Broker, tmp_path: Path) -> None:
    """Run as shown, by a shell, with curl."""
    (tmp_path / "kbs-admin.header").write_text(f"Authorization: Bearer {ADMIN}\n")
    pipeline = shown_pipeline(broker, tmp_path)
    environment = {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}
    for _ in range(2):
        finished = subprocess.run(
            ["/bin/bash", "-o", "pipefail", "-c", pipeline],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout == b""
        assert ADMIN.encode() not in finished.stderr
    first, second = broker.requests
    assert (first.method, first.path) == ("POST", f"/kbs/v0/resource/{KEY_ID}")
    assert first.headers["Authorization"] == f"Bearer {ADMIN}"
    assert len(first.body) == len(second.body) == 32
    assert first.body != second.body
    stored = [file.read_bytes() for file in tmp_path.iterdir() if file.is_file()]
    assert not any(one.body in content for one in broker.requests for content in stored)


def test_a_refused_upload_fails_the_command_line(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "kbs-admin.header").write_text("Authorization: Bearer wrong\n")
    environment = {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}
    finished = subprocess.run(
        ["/bin/sh", "-c", shown_pipeline(broker, tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 22
    assert b"401" in finished.stderr


def test_neither_key_nor_token_is_in_what_is_printed() -> None:
    finished = run(KEY_ID, "--kbs-url", "https://kbs.example:8080/", capture_output=True)
    assert finished.returncode == 0
    assert len(finished.stdout) == 32
    key, said = finished.stdout, finished.stderr
    assert key not in said
    assert key.hex().encode() not in said
    assert b"https://kbs.example:8080/kbs/v0/resource/default/volume-key/ledger" in said


@pytest.mark.parametrize(
    ("url", "warned"), [("http://kbs:8080", True), ("https://kbs", False), ("http://localhost:8080", False)]
)
def test_a_key_made_for_a_broker_without_tls_comes_with_a_warning(url: str, warned: bool) -> None:
    finished = run(KEY_ID, "--kbs-url", url, capture_output=True)
    assert len(finished.stdout) == 32
    assert (b"in the clear" in finished.stderr) == warned


def test_a_terminal_gets_a_hint_and_no_key() -> None:
    ours, theirs = pty.openpty()
    try:
        finished = run(KEY_ID, "--kbs-url", "http://kbs:8080", stdout=theirs, stderr=subprocess.PIPE)
        os.set_blocking(ours, False)
        with pytest.raises(BlockingIOError):
            os.read(ours, 1)
    finally:
        os.close(ours)
        os.close(theirs)
    assert finished.returncode == 1
    for words in (b"not a pipe", b"--data-binary @-", b"in the clear", b"is replaced", b"No copy is kept"):
        assert words in finished.stderr


def test_a_closed_standard_output_gets_no_key(tmp_path: Path) -> None:
    """Whatever is opened next would get its number, and the key."""
    finished = subprocess.run(
        ["/bin/sh", "-c", f'exec "{COMMAND}" key new "{KEY_ID}" --kbs-url https://kbs >&-'],
        capture_output=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 1
    assert b"not a pipe" in finished.stderr


def test_a_reader_that_went_away_is_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    finished = run(KEY_ID, "--kbs-url", "https://kbs", stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert finished.returncode == 1
    assert b"make a new key" in finished.stderr
    assert b"Traceback" not in finished.stderr


@pytest.mark.parametrize(
    "key_id", ["kbs:///a/b/c", "a/b", "a/b/c/d", "a/b/..", "a/b/${pvc.name}", "a/b/c\n", "a/b/c?x=1", ""]
)
def test_a_key_id_that_no_volume_can_have_is_refused(key_id: str) -> None:
    """Field case J1."""
    finished = run(key_id, "--kbs-url", "https://kbs", capture_output=True)
    assert finished.returncode == 1
    assert finished.stdout == b""
    assert b"[key-id]" in finished.stderr


@pytest.mark.parametrize(
    "url",
    [
        "kbs",
        "kbs:8080",
        "ftp://kbs",
        "https://",
        "https://user:S3CR3T@kbs",
        "https://kbs?token=S3CR3T",
        "https://kbs#S3CR3T",
        "https://kbs:x",
        "https://[S3CR3T",
        "https://k bs",
        "https://kbs\n",
    ],
)
def test_a_url_that_is_none_is_refused_and_not_repeated(url: str) -> None:
    finished = run(KEY_ID, "--kbs-url", url, capture_output=True)
    assert finished.returncode == 1
    assert finished.stdout == b""
    assert b"--kbs-url" in finished.stderr
    assert b"S3CR3T" not in finished.stderr


@given(st.from_regex(r"https://[a-z]{1,9}/[!-~]{0,30}", fullmatch=True))
def test_whatever_the_url_the_shell_reads_it_as_one_word(url: str) -> None:
    try:
        command = _upload_command(KEY_ID, url)
    except Exception as error:
        assert "--kbs-url" in str(error)
        return
    assert shlex.split(command)[-1] == f"{url.rstrip('/')}/kbs/v0/resource/{KEY_ID}"
