"""The files for a PodVM image: all is where the units expect it, and systemd understands the units."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import command_guard, command_hub_config, command_proxy
from agent.__main__ import command_line
from agent.cdh import DEFAULT_SOCKET
from agent.policy_source import PolicyFiles
from agent.proxy_tls import DEFAULT_CONFIG
from agent.volume_lock import STATE_ROOT
from deploy.podvm.overlay import AGENT, CONFIGURATION, MODES, POLICY, TREE, main

POLICY_TEXT = 'version = 1\n[volumes."/data"]\nkey = "default/volume-key/ledger"\n'
UNITS = Path("etc/systemd/system")
COMMON = UNITS / "confidential-csi-agent.service.d/10-common.conf"

#: Each gives a service a mount namespace of its own (systemd.exec(5), PrivateMounts=), from which its mounts
#: do not reach kata-agent.
NAMESPACING = re.compile(
    r"(Private(Tmp|Devices|Mounts|Users|PIDs|IPC)|Protect(Home|System|Kernel\w+|ControlGroups|Proc|Clock|Hostname)"
    r"|(ReadOnly|ReadWrite|Inaccessible|Exec|NoExec)Paths|Bind(ReadOnly)?Paths|TemporaryFileSystem|ProcSubset"
    r"|Root(Directory|Image)|MountFlags|MountAPIVFS|DynamicUser|RestrictSUIDSGID|\w+Images|LogNamespace)="
)

#: Stand-ins for cloud-api-adaptor's units, with what ours refer to.
PODVM_UNITS = {
    "agent-protocol-forwarder.service": "[Service]\nExecStart=/usr/local/bin/agent-protocol-forwarder",
    "agent-protocol-forwarder.path": "[Path]\nPathExists=/run/kata-containers/agent.sock",
    "confidential-data-hub.service": "[Service]\nExecStart=/usr/local/bin/confidential-data-hub",
    "process-user-data.service": "[Service]\nType=oneshot\nExecStart=/usr/local/bin/process-user-data",
}
PODVM_PROGRAMS = ("agent-protocol-forwarder", "confidential-data-hub", "process-user-data")


@pytest.fixture(params=sorted(MODES))
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    file = tmp_path / "agent"
    file.write_bytes(b"#!/usr/bin/python3 -IS\n")
    return file


def overlay(mode: str, agent: Path, *options: str | Path) -> Path:
    """The tree of a mode, as it ends up in the image."""
    folder = agent.parent / f"podvm-{mode}"
    arguments = ["--mode", mode, "--into", folder, "--agent", agent, *options]
    assert main([str(argument) for argument in arguments]) == 0
    return folder / TREE


def settings(tree: Path, pattern: str, name: str) -> list[str]:
    """The values of a setting in the units that match; one that is emptied starts afresh."""
    found: list[str] = []
    for file in sorted(tree.glob(f"{UNITS}/{pattern}")):
        for line in file.read_text().splitlines():
            if line.startswith(f"{name}="):
                value = line.partition("=")[2]
                found = [*found, value] if value else []
    return found


def commands(tree: Path) -> Iterator[list[str]]:
    for name in ("ExecStartPre", "ExecStart"):
        for pattern in ("*.service", "*.service.d/*.conf"):
            yield from map(shlex.split, settings(tree, pattern, name))


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_every_file_is_where_the_units_expect_it(mode: str, agent: Path) -> None:
    tree = overlay(mode, agent)
    agents = 0
    for program, *arguments in commands(tree):
        if Path(program).name in PODVM_PROGRAMS:
            assert program.startswith("/usr/local/bin/")
            continue
        installed = tree / program.removeprefix("/")
        assert installed == tree / AGENT
        assert installed.read_bytes() == agent.read_bytes()
        assert installed.stat().st_mode & 0o777 == 0o755
        command_line().parse_args(arguments)
        agents += 1
    assert agents == (2 if mode == "c" else 1)
    assert not (tree / POLICY).exists()


def test_the_path_unit_starts_the_service_in_every_kind_of_image(mode: str, agent: Path) -> None:
    """By preset (mkosi), and by link (images whose files are copied in)."""
    tree = overlay(mode, agent)
    preset = (tree / "usr/lib/systemd/system-preset/31-confidential-csi.preset").read_text()
    assert preset == "enable confidential-csi-agent.path\n"
    link = tree / UNITS / "multi-user.target.wants/confidential-csi-agent.path"
    assert link.is_symlink()
    assert link.resolve() == (tree / UNITS / "confidential-csi-agent.path").resolve()
    assert link.exists()
    assert settings(tree, "confidential-csi-agent.path", "WantedBy") == ["multi-user.target"]


def test_the_ends_of_mode_a_meet(agent: Path) -> None:
    tree = overlay("a", agent)
    mine = command_line().parse_args(
        settings(tree, "confidential-csi-agent.service", "ExecStart")[0].split()[1:]
    )
    (forwarder,) = settings(tree, "agent-protocol-forwarder.service.d/*", "ExecStart")
    assert mine.mode == command_proxy.FRONT
    assert option(forwarder.split(), "-listen") == str(command_proxy.DEFAULT_UPSTREAM[command_proxy.FRONT])
    assert "-disable-tls" in forwarder
    assert "$" not in forwarder, "a variable could put it back on the network"
    assert str(command_proxy.DEFAULT_LISTEN[command_proxy.FRONT]) == "0.0.0.0:15150"
    assert mine.tls_config == DEFAULT_CONFIG


def test_the_ends_of_mode_b_meet(agent: Path) -> None:
    tree = overlay("b", agent)
    mine = command_line().parse_args(
        settings(tree, "confidential-csi-agent.service", "ExecStart")[0].split()[1:]
    )
    (forwarder,) = settings(tree, "agent-protocol-forwarder.service.d/*", "ExecStart")
    listen = str(command_proxy.DEFAULT_LISTEN[command_proxy.MIDDLE])
    assert mine.mode == command_proxy.MIDDLE
    assert option(forwarder.split(), "-kata-agent-socket") == listen
    assert settings(tree, "agent-protocol-forwarder.path.d/*", "PathExists") == [listen]
    assert settings(tree, "confidential-csi-agent.path", "PathExists") == [
        str(command_proxy.DEFAULT_UPSTREAM[command_proxy.MIDDLE])
    ]


def test_the_ends_of_mode_c_meet(agent: Path) -> None:
    tree = overlay("c", agent)
    mine = command_line().parse_args(
        settings(tree, "confidential-csi-agent.service", "ExecStart")[0].split()[1:]
    )
    (rewrite,) = settings(tree, "confidential-data-hub.service.d/*", "ExecStartPre")
    (hub,) = settings(tree, "confidential-data-hub.service.d/*", "ExecStart")
    rewritten = command_line().parse_args(rewrite.split()[1:])
    assert option(hub.split(), "-c") == str(rewritten.target) == str(command_hub_config.DEFAULT_TARGET)
    assert mine.listen == DEFAULT_SOCKET
    assert rewritten.socket == mine.upstream == command_guard.DEFAULT_UPSTREAM
    assert settings(tree, "confidential-csi-agent.path", "PathExists") == [mine.upstream]


def test_a_mount_reaches_the_containers(mode: str, agent: Path) -> None:
    """No unit gives the agent a mount namespace, nor forbids the set-group-id bit of fsGroup."""
    tree = overlay(mode, agent)
    for file in (
        tree.glob(f"{UNITS}/confidential-csi-agent*/*"),
        tree.glob(f"{UNITS}/confidential-csi-agent.*"),
    ):
        for unit in file:
            if unit.is_file():
                lines = [line for line in unit.read_text().splitlines() if NAMESPACING.match(line)]
                assert lines == [], unit


def test_keys_stay_in_its_memory_and_it_comes_back_to_its_state(mode: str, agent: Path) -> None:
    common = configparser.ConfigParser(strict=False)
    common.read(overlay(mode, agent) / COMMON)
    service = common["Service"]
    assert (service["LimitCORE"], service["NoNewPrivileges"], service["Restart"]) == ("0", "yes", "always")
    assert common["Unit"]["StartLimitIntervalSec"] == "0"
    assert Path("/run", service["RuntimeDirectory"]) == STATE_ROOT
    assert (service["RuntimeDirectoryMode"], service["RuntimeDirectoryPreserve"]) == ("0700", "yes")


def test_a_policy_is_baked_in_where_the_agent_looks_for_it(agent: Path, tmp_path: Path) -> None:
    policy = tmp_path / "my.toml"
    policy.write_text(POLICY_TEXT)
    tree = overlay("a", agent, "--policy", policy)
    assert (tree / POLICY).read_text() == POLICY_TEXT
    assert Path("/", POLICY) == PolicyFiles().image


def test_a_policy_that_the_agent_would_refuse_is_refused_before_anything_is_written(
    agent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "my.toml"
    policy.write_text(POLICY_TEXT.replace("key", "keys"))
    arguments = ["--mode", "a", "--into", str(tmp_path / "o"), "--agent", str(agent), "--policy", str(policy)]
    assert main(arguments) == 1
    assert "[policy-invalid]" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_policy_or_agent_that_is_not_there_is_named(
    agent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing")
    for given in (["--agent", str(agent), "--policy", missing], ["--agent", missing]):
        assert main(["--mode", "a", "--into", str(tmp_path / "into"), *given]) == 1
        assert f"No such file or directory: '{missing}'" in capsys.readouterr().err


def test_two_modes_are_never_mixed(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = overlay("a", agent)
    into = str(tree.parents[1])
    assert main(["--mode", "b", "--into", into, "--agent", str(agent)]) == 1
    assert "exists" in capsys.readouterr().err
    assert settings(tree, "confidential-csi-agent.service", "ExecStart")[0].endswith("front")


def test_it_reports_every_file_with_its_size(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = overlay("c", agent).parents[1]
    *lines, total = capsys.readouterr().out.splitlines()
    reported = {path: int(size) for size, path in (line.split() for line in lines)}
    present = {
        str(path.relative_to(folder)): path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()
    }
    assert reported == present
    assert int(total.split()[0]) == sum(present.values())


def test_the_image_gets_the_tree_and_what_it_lacks(agent: Path) -> None:
    tree = overlay("a", agent)
    configuration = configparser.ConfigParser()
    configuration.read(tree.parents[1] / CONFIGURATION)
    content = configuration["Content"]
    assert content["Packages"].split() == ["python3", "dmsetup"]
    # mkosi takes it relative to the folder of the image, mkosi.images/system.
    extra = (tree.parents[1] / "mkosi.images/system" / content["ExtraTrees"]).resolve()
    assert extra == tree.resolve()


def verify(tree: Path, root: Path) -> subprocess.CompletedProcess[str]:
    """What ``systemd-analyze verify`` says about the units in a root of their own."""
    shutil.copytree(tree, root, symlinks=True)
    system = root / "usr/lib/systemd/system"
    system.mkdir(parents=True)
    for unit in Path("/usr/lib/systemd/system").glob("*.target"):
        if not unit.is_symlink():
            shutil.copyfile(unit, system / unit.name)
    for name, text in PODVM_UNITS.items():
        (root / UNITS / name).write_text(f"[Unit]\nDescription=Stand-in\n{text}\n")
    for name in PODVM_PROGRAMS:
        program = root / "usr/local/bin" / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    names = ("confidential-csi-agent.path", "confidential-csi-agent.service", *PODVM_UNITS)
    return subprocess.run(
        ["systemd-analyze", "verify", "--man=no", f"--root={root}", *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_systemd_understands_the_units(mode: str, agent: Path, tmp_path: Path) -> None:
    done = verify(overlay(mode, agent), tmp_path / "root")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [("LimitCORE=", "LimitCores="), ("=native", "=alien"), ("@mount", "@mounts")],
)
def test_a_mistake_in_a_unit_would_be_noticed(
    agent: Path, tmp_path: Path, wrong: str, complaint: str
) -> None:
    tree = overlay("a", agent)
    common = tree / COMMON
    common.write_text(common.read_text().replace(wrong, complaint))
    assert complaint.strip("=") in verify(tree, tmp_path / "root").stderr
