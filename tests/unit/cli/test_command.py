"""The command: what it says when it can't start, what each role imports, and its documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import cli
from cli.attach_libvirt import attach_libvirt
from cli.controller import controller
from cli.main import main
from cli.node import node
from tests.tools.driver_process import COMMAND, METRICS_ON, running

FLAGS_PAGE = Path(cli.__file__).parent.parent / "docs" / "flags.md"


def _fails(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Run the command, which must exit with an error, and return what it says."""
    environment = {"PATH": "/usr/bin", **(env or {})}
    finished = subprocess.run(
        [COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode in (1, 2)
    assert "Traceback" not in finished.stderr
    return finished.stderr


def test_the_list_of_commands_fits_a_terminal() -> None:
    listed = CliRunner().invoke(main, ["--help"], terminal_width=80).stdout
    assert "completion" in listed
    assert "..." not in listed.partition("Commands:")[2]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    socket = f"unix://{tmp_path}/s"
    assert "--provider" in _fails("controller", "--endpoint", socket)
    assert "--node-id" in _fails("node", "--endpoint", socket)
    assert "LIBVIRT_URI" in _fails("attach-libvirt", "--node-id", "n")
    assert "CONFIDENTIAL_CSI_LOCAL_DIRECTORY" in _fails(
        "controller", "--endpoint", socket, "--provider", "local"
    )
    unknown = _fails("controller", "--endpoint", socket, "--provider", "gcp")
    assert "gcp" in unknown
    assert "local" in unknown


def test_a_bad_endpoint_is_an_error_at_start(tmp_path: Path) -> None:
    for endpoint, words in (("tcp://0.0.0.0:1", "unix:///"), (f"unix://{tmp_path}/no/s", "not a directory")):
        assert words in _fails("node", "--endpoint", endpoint, "--node-id", "n")


def test_metrics_are_served_where_they_can_be_or_the_process_ends(tmp_path: Path) -> None:
    options = ("--node-id", "n", "--direct-volumes-root", str(tmp_path))
    for address in ("9810", "127.0.0.1:x", "127.0.0.1:99999", ":", "127.0.0.1:-1"):
        assert "is not HOST:PORT" in _fails("node", *options, "--metrics-address", address)
    with running("node", tmp_path, *options, METRICS_ON) as first:
        address = first.metrics_address()
        assert f"can't listen on {address}" in _fails("node", *options, "--metrics-address", address)


def test_a_live_socket_is_refused_by_the_second_process(tmp_path: Path) -> None:
    options = ("--node-id", "n", "--direct-volumes-root", str(tmp_path))
    with running("node", tmp_path, *options) as first:
        assert "another process serves" in _fails("node", "--endpoint", first.target(), *options)
        assert first.process.poll() is None


def test_settings_can_come_from_the_environment(tmp_path: Path) -> None:
    settings = {
        "CONFIDENTIAL_CSI_PROVIDER": "local",
        "CONFIDENTIAL_CSI_LOCAL_DIRECTORY": str(tmp_path),
        "CONFIDENTIAL_CSI_LOG_FORMAT": "json",
    }
    with running("controller", tmp_path, env=settings) as driver:
        assert driver.terminate(5) == 0
    assert driver.log.read_text().startswith('{"time"')


def test_the_node_role_imports_no_provider() -> None:
    program = "import sys; from cli.node import node; print(*sorted(sys.modules))"
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()
    allowed = {"providers", "providers.errors", "providers.observation"}
    assert {name for name in printed if name.split(".")[0] == "providers"} <= allowed
    assert not {"driver.controller", "driver.metrics", "prometheus_client", "http.server"} & set(printed)
    assert not {"driver.peer_pods", "driver.kubernetes_api", "http.client"} & set(printed), (
        "a guard that is off"
    )


def test_a_guard_that_could_never_tell_is_an_error_at_start() -> None:
    """Field case K4: outside of a cluster, or with a handler that no RuntimeClass can have."""
    cluster = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert "KUBERNETES_SERVICE_HOST" in _fails("node", "--node-id", "n", "--peer-pod-handlers", "kata-remote")
    for handlers in ("Kata", "kata-remote,", "kata remote"):
        message = _fails("node", "--node-id", "n", "--peer-pod-handlers", handlers, env=cluster)
        assert "not the handler of a RuntimeClass" in message


@pytest.mark.parametrize("role", [controller, node, attach_libvirt], ids=lambda role: str(role.name))
def test_every_flag_is_documented_with_its_variable_and_default(role: click.Command) -> None:
    page = FLAGS_PAGE.read_text(encoding="utf-8")
    for option in role.params:
        assert isinstance(option, click.Option)
        if option.name == "help":
            continue
        line = next(line for line in page.splitlines() if f"`{option.opts[0]}`" in line)
        assert f"`{option.envvar}`" in line
        if not option.required:
            unset = "off" if option.is_flag else "none"
            assert f"`{option.default or unset}`".replace(".0`", "`") in line


def test_the_commands_are_listed_and_others_refused() -> None:
    context = click.Context(main)
    assert main.list_commands(context) == [
        *("attach-libvirt", "completion", "controller", "doctor", "inspect", "key", "lint", "node", "policy"),
    ]
    assert main.get_command(context, "nothing") is None
