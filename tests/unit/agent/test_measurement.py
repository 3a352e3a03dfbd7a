"""Measuring volumes: what is measured, once for each opening, and what an absent or failing agent means."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import measurement
from agent.errors import AgentError, Refused, Unavailable
from agent.measurement import Measurements, VolumeEvent
from agent.mount_point import MAX_PATH
from agent.policy import Encryption, Measurement
from agent.ttrpc import Server
from proto import aa_pb2
from tests.lab.aa import Fault, RuntimeMeasurement, digest_of
from tests.peers.ttrpc_raw import read_frame, response, scripted_server

UUID = "0a1b2c3d-0123-4567-89ab-0123456789ab"
EVENT = VolumeEvent("vol-0", "/data", Encryption.LUKS2, "default/key/vol1", UUID, False)
CONTENT = (
    '{"encryption":"luks2","key":"default/key/vol1","luks-uuid":"0a1b2c3d-0123-4567-89ab-0123456789ab",'
    '"mount-point":"/data","read-only":false,"version":1,"volume":"vol-0"}'
)
OPEN, CLOSE = f"confidential-csi volume-open {CONTENT}", f"confidential-csi volume-close {CONTENT}"
REQUIRED, IF_ENABLED = Measurement.REQUIRED, Measurement.IF_ENABLED


class Vm:
    """The agent's side and the Attestation Agent's, with folders for both."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "aa.sock"
        self.aa = RuntimeMeasurement(folder / "aa")
        self.notes = folder / "notes"
        self.notes.mkdir()

    def agent(self) -> Measurements:
        """A newly started one."""
        return Measurements(self.socket, self.notes)

    @contextmanager
    def serving(self) -> Iterator[None]:
        server = Server(str(self.socket), self.aa.handlers())
        server.start()
        try:
            yield
        finally:
            server.stop(0.1)


@pytest.fixture
def vm(tmp_path: Path) -> Vm:
    return Vm(tmp_path)


def failure(vm: Vm, demand: Measurement = IF_ENABLED) -> AgentError:
    with pytest.raises(AgentError) as raised:
        vm.agent().opened(EVENT, demand)
    assert len(str(raised.value).encode()) < 990
    assert list(vm.notes.iterdir()) == [], "not measured, as far as anybody knows"
    return raised.value


def test_a_volume_is_measured_when_opened_and_when_closed_in_words_that_can_be_recomputed(vm: Vm) -> None:
    with vm.serving():
        vm.agent().opened(EVENT, REQUIRED)
        assert vm.aa.events() == [OPEN]
        vm.agent().closed("vol-0")
        assert vm.aa.events() == [OPEN, CLOSE]
        assert list(vm.notes.iterdir()) == []


def test_the_stand_in_computes_an_event_as_the_attestation_agent_does() -> None:
    """Its own test vector (guest-components, eventlog/mod.rs), so that the page tells verifiers the truth."""
    expected = "46df8dacf00a07d34a83cdf56d7978697790787cf2ba1432ef7c38f22cd96351"
    assert digest_of("domain operation content").hex() == expected


def test_a_volume_that_is_open_is_not_measured_again_whichever_agent_asks(vm: Vm) -> None:
    with vm.serving():
        for _ in range(3):
            vm.agent().opened(EVENT, REQUIRED)
        assert vm.aa.events() == [OPEN]
        vm.agent().closed("vol-0")
        vm.agent().closed("vol-0")
        vm.agent().opened(EVENT, REQUIRED)
        assert vm.aa.events() == [OPEN, CLOSE, OPEN]
        vm.agent().opened(VolumeEvent("vol-1", "/x", Encryption.NONE, None, None, True), REQUIRED)
    plain = '{"encryption":"none","key":null,"luks-uuid":null,"mount-point":"/x","read-only":true,'
    assert vm.aa.events()[-1] == f'confidential-csi volume-open {plain}"version":1,"volume":"vol-1"}}'


@pytest.mark.parametrize("fault", ["not-supported", "not-enabled"])
def test_a_vm_that_measures_nothing_is_for_the_policy_to_accept(vm: Vm, fault: Fault) -> None:
    with vm.serving():
        vm.aa.set_fault(fault)
        vm.agent().opened(EVENT, IF_ENABLED)
        refused = failure(vm, REQUIRED)
        assert (type(refused), refused.rule) == (Refused, "measurement-required")
        vm.aa.set_fault("none")
        vm.agent().opened(EVENT, REQUIRED)
        assert vm.aa.events() == [OPEN], "what was opened unmeasured is measured as soon as that is possible"


def test_without_an_attestation_agent_nothing_is_measured_and_nobody_waits(vm: Vm) -> None:
    started = time.monotonic()
    vm.agent().opened(EVENT, IF_ENABLED)
    vm.agent().closed("vol-0")
    assert failure(vm, REQUIRED).rule == "measurement-required"
    assert time.monotonic() - started < measurement._TIMEOUT


def test_an_attestation_agent_without_the_call_measures_nothing(vm: Vm) -> None:
    server = Server(str(vm.socket), {})
    server.start()
    vm.agent().opened(EVENT, IF_ENABLED)
    assert failure(vm, REQUIRED).rule == "measurement-required"
    server.stop()


@pytest.mark.parametrize("demand", [IF_ENABLED, REQUIRED])
def test_an_attestation_agent_that_fails_is_not_one_that_is_absent(
    vm: Vm, demand: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    with vm.serving():
        expected: dict[Fault, tuple[str, float]] = {
            "refuse": ("status 13", 60),
            "hang": ("within 0.2 s", 0.2),  # by our clock; by the agent's own, it is status 4
        }
        for fault, (words, seconds) in expected.items():
            monkeypatch.setattr(measurement, "_TIMEOUT", seconds)
            vm.aa.set_fault(fault)
            failed = failure(vm, demand)
            assert (type(failed), failed.rule) == (Unavailable, "measurement-failed")
            assert words in str(failed).replace("with status 4;", "within 0.2 s;")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(vm.socket))
    listener.close()
    assert failure(vm, demand).rule == "measurement-failed", "its socket is there, but it died"


@pytest.mark.parametrize("payload", [b"\x08\x07", b"\x0a\xff"], ids=["unknown result", "not a message"])
def test_an_answer_that_says_nothing_is_not_a_measurement(vm: Vm, payload: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(response(read_frame(connection).stream_id, payload))

    with scripted_server(vm.socket, answer):
        assert failure(vm).rule == "measurement-failed"
    assert aa_pb2.ExtendRuntimeMeasurementResponse.FromString(b"\x08\x07").Result == 7


def test_a_kill_before_the_note_measures_twice_and_never_not(vm: Vm, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with vm.serving():
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(measurement, "_write", killed)
            vm.agent().opened(EVENT, REQUIRED)
        vm.agent().opened(EVENT, REQUIRED)
        assert vm.aa.events() == [OPEN, OPEN]
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(Path, "unlink", killed)
            vm.agent().closed("vol-0")
        vm.agent().closed("vol-0")
    assert vm.aa.events() == [OPEN, OPEN, CLOSE, CLOSE]


def test_a_close_that_can_not_be_measured_is_reported_and_does_not_vouch_for_the_next_opening(
    vm: Vm, caplog: pytest.LogCaptureFixture
) -> None:
    with vm.serving():
        vm.agent().opened(EVENT, REQUIRED)
        vm.aa.set_fault("refuse")
        with caplog.at_level(logging.WARNING):
            vm.agent().closed("vol-0")
        assert "vol-0 was closed is not measured" in caplog.text
        vm.aa.set_fault("none")
        vm.agent().opened(EVENT, REQUIRED)
    assert vm.aa.events() == [OPEN, OPEN]


def test_a_note_that_can_not_be_written_is_a_failure(vm: Vm) -> None:
    vm.notes.rmdir()
    with vm.serving(), pytest.raises(Unavailable, match=r"\[state-unwritable\]"):
        vm.agent().opened(EVENT, REQUIRED)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=MAX_PATH),
    st.none() | st.text("abc/._-", max_size=200),
    st.booleans(),
)
def test_any_event_is_one_line_of_bounded_ascii_that_reads_back(
    mount_point: str, key_id: str | None, read_only: bool
) -> None:
    event = VolumeEvent("vol-255", mount_point, Encryption.LUKS2, key_id, UUID, read_only)
    content = event.content()
    assert content.isascii()
    assert content.isprintable()
    assert len(content) < 500 + 12 * MAX_PATH
    read = json.loads(content)
    assert (read["mount-point"], read["key"], read["read-only"]) == (mount_point, key_id, read_only)
    assert content == json.dumps(read, sort_keys=True, separators=(",", ":"))
