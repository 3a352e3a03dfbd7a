"""``confidential-csi-agent proxy`` and ``guard`` as processes."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.command_proxy import address
from agent.proxy import Address
from tests.peers.authority import Authority
from tests.peers.kata import SERVICE, by_id, go_agent
from tests.peers.ttrpc_go import GoCall, go_calls
from tests.tools.ports import free_port
from tests.unit.agent.test_proxy_tls import call_over_tls, client_context


@contextmanager
def command(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "agent", *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(60)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["proxy", "guard"])
def test_it_forwards_until_sigterm_and_leaves_no_socket(tmp_path: Path, name: str) -> None:
    listen, upstream = tmp_path / "p", tmp_path / "u"
    mode = ("--mode", "middle") if name == "proxy" else ()
    with (
        go_agent(upstream) as agent,
        command(name, *mode, "--listen", listen, "--upstream", upstream) as process,
    ):
        wait_for(listen)
        (result,) = go_calls(listen, [GoCall(SERVICE, "StartContainer", by_id("c1"))])
        assert (result.code, result.payload) == (0, by_id("c1"))
        assert len(agent.calls("StartContainer")) == 1
        assert ended(process) == 0
    assert not listen.exists()


def test_in_front_it_listens_with_the_forwarders_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server", "serverAuth")
    config = {
        "tls-server-key": key.read_text(),
        "tls-server-cert": certificate.read_text(),
        "tls-client-ca": authority.certificate.read_text(),
    }
    (tmp_path / "apf.json").write_text(json.dumps(config))
    port = free_port()
    with (
        go_agent(tmp_path / "u"),
        command(
            *("proxy", "--mode", "front", "--tls-config", tmp_path / "apf.json"),
            *("--listen", f"127.0.0.1:{port}", "--upstream", tmp_path / "u"),
        ) as process,
    ):
        assert process.stderr is not None
        assert f"listening on 127.0.0.1:{port}" in process.stderr.readline()
        context = client_context(authority)
        context.load_cert_chain(*authority.issue("client", "clientAuth"))
        answer = call_over_tls(port, context, SERVICE, "StartContainer", by_id("c1"))
        assert answer == by_id("c1")
        assert ended(process) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "rule"),
    [
        (("--mode", "front", "--tls-config", "/nonexistent/apf.json"), 4, "tls-config-unreadable"),
        (("--mode", "middle", "--listen", "/nonexistent/p"), 4, "listen-failed"),
    ],
)
def test_without_what_it_needs_it_ends_and_says_why(arguments: tuple[str, ...], code: int, rule: str) -> None:
    with command("proxy", *arguments) as process:
        assert process.wait(60) == code
        assert process.stderr is not None
        message = process.stderr.read()
    assert f"[{rule}]" in message
    assert arguments[-1] in message, "what is missing is named"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/run/x.sock", Address(path="/run/x.sock")),
        ("127.0.0.1:15151", Address(host="127.0.0.1", port=15151)),
        ("::1:80", Address(host="::1", port=80)),
    ],
)
def test_addresses(text: str, expected: Address) -> None:
    assert address(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["", "x.sock", "host:", ":80", "host:port", "host:70000", "host:-1", "h:٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="neither"):
        address(text)
