"""The agent as one file: small, quick to start, the same bytes every time, and with nothing beside it."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import time
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from deploy.podvm import build_agent
from tests.peers.kata import SERVICE, by_id, go_agent
from tests.peers.ttrpc_go import GoCall, go_calls
from tests.tools.agent_file import STOCK_PYTHON, agent_file

MAX_BYTES = 10_000_000
MAX_START = 0.5
"""Seconds of a processor, so that a busy machine does not count; a start that waits shows by the clock."""
_MAX_CLOCK = 10 * MAX_START
_ROUNDS = 5

TOP = Path(__file__).parents[3]
VERSION = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["version"]
LISTENING = re.compile(r"INFO agent\.command_proxy: listening on (.+)\n")


@pytest.fixture(scope="module")
def file() -> Path:
    return agent_file()


def run(
    argv: Sequence[str | Path], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run to the end, in an empty environment and far from the checkout."""
    return subprocess.run(
        argv, env=environment or {}, cwd="/", capture_output=True, text=True, timeout=60, check=False
    )


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@dataclass(frozen=True, order=True)
class Start:
    """What a start took, in seconds: of a processor, and by the clock."""

    processor: float
    clock: float

    def keeps_the_budget(self, what: str) -> bool:
        print(f"{what}: {self.clock:.3f} s, {self.processor:.3f} s of a processor; allowed {MAX_START} s")
        return self.processor < MAX_START and self.clock < _MAX_CLOCK


def best_of(start: Callable[[], Start]) -> Start:
    return min(start() for _ in range(_ROUNDS))


def start_of(*argv: str | Path) -> Start:
    """To the end of a command."""
    clock, children = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    succeeded(run(argv))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime - children.ru_utime - children.ru_stime
    return Start(processor, time.monotonic() - clock)


def processor_seconds(process: int) -> float:
    """What a running process used so far (proc(5): the 14th and 15th field of stat, in ticks)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def test_it_runs_by_its_name_and_knows_its_version(file: Path) -> None:
    assert succeeded(run([file, "--version"])) == f"confidential-csi-agent {VERSION}\n"


def test_it_keeps_to_its_size(file: Path) -> None:
    size = file.stat().st_size
    print(f"size: {size} bytes, allowed {MAX_BYTES}")
    assert size < MAX_BYTES


@pytest.mark.parametrize("arguments", [("--help",), ("status", "--json")], ids=" ".join)
def test_it_starts_in_half_a_second(file: Path, arguments: tuple[str, ...]) -> None:
    best = best_of(lambda: start_of(file, *arguments))
    assert best.keeps_the_budget(" ".join(arguments))


def test_the_proxy_listens_in_half_a_second(file: Path, tmp_path: Path) -> None:
    def start() -> Start:
        before = time.monotonic()
        with proxy(file, tmp_path / "p", tmp_path / "u") as process:
            listening(process)
            start = Start(processor_seconds(process.pid), time.monotonic() - before)
            process.kill()
        return start

    assert best_of(start).keeps_the_budget("the proxy listens")


def test_the_proxy_in_it_serves_a_real_client(file: Path, tmp_path: Path) -> None:
    listen, upstream = tmp_path / "p", tmp_path / "u"
    with go_agent(upstream) as agent, proxy(file, listen, upstream) as process:
        assert listening(process) == str(listen)
        (result,) = go_calls(listen, [GoCall(SERVICE, "StartContainer", by_id("c1"))])
        assert (result.code, result.payload) == (0, by_id("c1"))
        assert len(agent.calls("StartContainer")) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not listen.exists()


def proxy(file: Path, listen: Path, upstream: Path) -> subprocess.Popen[str]:
    command: list[str | Path] = [
        file,
        "proxy",
        "--mode",
        "middle",
        "--listen",
        listen,
        "--upstream",
        upstream,
    ]
    return subprocess.Popen(command, env={}, cwd="/", stderr=subprocess.PIPE, text=True)


def listening(process: subprocess.Popen[str]) -> str:
    """Wait until it listens; where."""
    assert process.stderr is not None
    line = process.stderr.readline()
    found = LISTENING.fullmatch(line)
    assert found, line
    return found[1]


def test_two_builds_give_the_same_bytes(file: Path, tmp_path: Path) -> None:
    """Another time, another folder, another umask; and none of this machine's paths are in it."""
    mask = os.umask(0o077)
    try:
        build_agent.build(tmp_path / "again/confidential-csi-agent", str(STOCK_PYTHON))
    finally:
        os.umask(mask)
    content = file.read_bytes()
    assert (tmp_path / "again/confidential-csi-agent").read_bytes() == content
    assert (tmp_path / "again/confidential-csi-agent").stat().st_mode & 0o777 == 0o755
    for path in (TOP, file.parent, Path.home()):
        # Not as the end of another path: /proc/1/root/ is in the sources.
        assert not re.search(rb"(?<![\w.-])" + re.escape(f"{path}/".encode()), content)


def test_nothing_is_installed_that_the_lock_file_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "agent.txt"
    lock.write_text(re.sub(r"sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", build_agent.LOCK.read_text()))
    monkeypatch.setattr(build_agent, "LOCK", lock)
    with pytest.raises(subprocess.CalledProcessError):
        build_agent.build(tmp_path / "agent", str(STOCK_PYTHON))
    assert "hash" in capfd.readouterr().err.lower()
    assert not (tmp_path / "agent").exists()


def test_it_holds_no_machine_code_and_no_contract_of_the_host(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    assert {Path(name).suffix for name in names} <= {".py", ".pyc", ""}
    assert names == sorted(names)
    assert not [
        name for name in names if "csi_pb2" in name or name.startswith(("driver", "providers", "cli"))
    ]


@pytest.mark.parametrize("wanted", ["upb", "cpp", "python", "nonsense"])
def test_protobuf_runs_without_its_extension_and_without_a_warning(file: Path, wanted: str) -> None:
    done = run(
        [STOCK_PYTHON, "-IS", "-W", "error", file, "status", "--json"],
        {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": wanted},
    )
    assert json.loads(succeeded(done)) == {"volumes": []}


def test_what_else_is_installed_does_not_matter(file: Path, tmp_path: Path) -> None:
    """Even when started by a Python that looks for modules elsewhere."""
    for module in ("google/_upb/_message", "google/protobuf/message", "agent/errors", "proto/cdh_pb2"):
        stray = tmp_path / f"{module}.py"
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_text("raise SystemExit('a module from elsewhere')")
    done = run([STOCK_PYTHON, file, "status", "--json"], {"PYTHONPATH": str(tmp_path)})
    assert json.loads(succeeded(done)) == {"volumes": []}


def test_a_python_that_the_bytecode_is_not_for_runs_the_sources(file: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "agent"
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(foreign, "w") as copy:
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith(".pyc"):
                assert content.startswith(MAGIC_NUMBER[2:], 2), name
                content = b"\0\0" + content[2:]
            copy.writestr(name, content)
    assert json.loads(succeeded(run([STOCK_PYTHON, "-IS", foreign, "status", "--json"]))) == {"volumes": []}


def test_the_command_names_the_file_as_it_is_seen_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build_agent, "build", lambda target, _python: target.write_bytes(bytes(1_500_000)))
    build_agent.main(["--into", str(tmp_path / "agent")])
    assert capsys.readouterr().out == "agent: 1.5 MB\n"


def test_an_interpreter_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        build_agent.main(["--python", "/nonexistent/python3.99"])
    assert end.value.code == 2
    assert "there is no interpreter /nonexistent/python3.99" in capsys.readouterr().err
