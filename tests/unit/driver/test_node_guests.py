"""Stats and growth of published volumes, asked of guests: stand-ins on real sockets, with every fault."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import driver
from driver.errors import Aborted, DriverError, FailedPrecondition, NotFound, Unavailable, bounded
from driver.guests import GUEST_CODES, Guests
from driver.node import NodeService
from driver.pod_sockets import PodSockets
from proto import agent_pb2, csi_pb2
from tests.fakes.podvm import HEADER_AREA, PodVm
from tests.peers.ttrpc_raw import scripted_server
from tests.unit.driver.node_support import POD_UID, Worker, expand, publish, stats, unpublish

GIB = 1 << 30
DISK = "disk-1"
"""What ``publish`` publishes unless told otherwise."""

BYTES, INODES = csi_pb2.VolumeUsage.BYTES, csi_pb2.VolumeUsage.INODES


class Rig:
    """A published volume, and the PodVMs of its node."""

    def __init__(self, node: Worker, cleanup: ExitStack) -> None:
        self.node = node
        self.plugin = node.start()
        self.target = node.target()
        self.disk_bytes = GIB
        self.hung: SimpleQueue[socket.socket] = SimpleQueue()
        """Connections on which a server that never answers was asked."""
        self._cleanup = cleanup
        publish(self.plugin, self.target)

    def vm(self, sandbox_id: str, *, noted: bool = False, older: bool = False, mounted: bool = True) -> PodVm:
        """A running PodVM; ``noted`` beside the record or not, ``older`` than the publish or not."""
        vm = PodVm(lambda _: self.disk_bytes)
        if mounted:
            vm.mount(DISK)
        path = self._cleanup.enter_context(vm.serving(self.node.pods, sandbox_id))
        if older:
            os.utime(path, ns=(0, (self.record / "mountInfo.json").stat().st_mtime_ns - 1))
        if noted:
            self.note(sandbox_id)
        return vm

    def server(self, sandbox_id: str, answer: bytes | None) -> None:
        """Something else than an agent behind the socket; None never answers."""

        def script(connection: socket.socket) -> None:
            connection.recv(1 << 16)
            if answer is not None:
                connection.sendall(answer)
                return
            self.hung.put(connection)
            while connection.recv(1 << 16):
                pass

        folder = self.node.pods / sandbox_id
        folder.mkdir(parents=True)
        self._cleanup.enter_context(scripted_server(folder / "agent.ttrpc", script))

    @property
    def record(self) -> Path:
        return self.node.record(self.target)

    def note(self, sandbox_id: str) -> None:
        """As Kata's Go runtime does."""
        (self.record / sandbox_id).touch()

    def expand(self, required: int = 2 * GIB, timeout: float = 5) -> int:
        return expand(self.plugin, self.target, required=required, timeout=timeout)

    def stats(self, timeout: float = 5) -> csi_pb2.NodeGetVolumeStatsResponse:
        return stats(self.plugin, self.target, timeout=timeout)


@pytest.fixture
def rig(node: Worker) -> Iterator[Rig]:
    with ExitStack() as cleanup:
        yield Rig(node, cleanup)


def test_stats_are_the_guest_s(rig: Rig) -> None:
    rig.vm("s1", noted=True)
    answer = rig.stats()
    size, inodes = answer.usage
    total = GIB - HEADER_AREA
    assert (size.unit, size.total, size.used) == (BYTES, total, total // 4)
    assert size.available == total - total // 4 - 4096
    assert (inodes.unit, inodes.total, inodes.used, inodes.available) == (INODES, 1000, 11, 989)
    assert (answer.volume_condition.abnormal, answer.volume_condition.message) == (False, "mounted")


def test_growth_is_real_before_it_is_reported(rig: Rig) -> None:
    """Field case F3."""
    vm = rig.vm("s1", noted=True)
    with pytest.raises(Unavailable, match="disk-not-grown"):
        rig.expand()
    assert vm.mounted == {DISK: GIB}
    rig.disk_bytes = 2 * GIB
    assert rig.expand() == 2 * GIB
    assert vm.mounted == {DISK: 2 * GIB}
    assert rig.expand() == 2 * GIB
    assert vm.calls == [("ResizeVolume", DISK, 2 * GIB)] * 3


def test_an_expansion_without_a_size_lets_the_file_system_fill_its_disk(rig: Rig) -> None:
    vm = rig.vm("s1", noted=True)
    rig.disk_bytes = 3 * GIB
    assert rig.expand(required=0) == 0
    assert vm.mounted == {DISK: 3 * GIB}


def test_before_a_sandbox_exists_there_is_a_condition_and_growth_is_the_mount_s(rig: Rig) -> None:
    """Field case F3: kubelet expands before it makes the sandbox, whatever else runs on the node."""
    others = [rig.vm(f"other-{number}", older=True, mounted=False) for number in range(3)]
    rig.server("plain", b"")
    os.utime(rig.node.pods / "plain/agent.ttrpc", ns=(0, 0))
    (rig.node.pods / "leftover").mkdir()
    assert rig.expand() == 2 * GIB
    answer = rig.stats()
    assert not answer.usage
    assert not answer.volume_condition.abnormal
    assert "no PodVM" in answer.volume_condition.message
    assert not any(vm.calls for vm in others)


def test_a_policy_that_keeps_the_figures_leaves_the_condition(rig: Rig) -> None:
    rig.vm("s1", noted=True).figures = False
    answer = rig.stats()
    assert not answer.usage
    assert answer.volume_condition.message == "mounted"


def test_an_abnormal_condition_is_told(rig: Rig) -> None:
    vm = rig.vm("s1", noted=True)
    told = agent_pb2.VolumeStatsResponse()
    told.volume_condition.abnormal = True
    told.volume_condition.message = "nothing is mounted\nthere" + "x" * 5000
    vm.override["GetVolumeStats"] = (0, "", told.SerializeToString())
    condition = rig.stats().volume_condition
    assert condition.abnormal
    assert condition.message.startswith("nothing is mounted?there")
    assert len(condition.message) < 500


def test_only_the_noted_sandbox_is_asked(rig: Rig) -> None:
    vm, other = rig.vm("s1", noted=True), rig.vm("s0")
    rig.stats()
    assert len(vm.calls) == 1
    assert not other.calls


def test_a_noted_sandbox_that_can_t_be_reached_is_never_ok(rig: Rig) -> None:
    """Field case F3: its socket is missing, nobody listens, or it is no socket."""
    rig.note("s1")
    folder = rig.node.pods / "s1"
    made: list[Callable[[], object]] = [
        lambda: None,
        lambda: folder.mkdir(parents=True),
        lambda: (folder / "agent.ttrpc").write_text(""),
        (folder / "agent.ttrpc").unlink,
        lambda: _bind(folder / "agent.ttrpc"),
    ]
    for step in made:
        step()
        with pytest.raises(Unavailable, match="s1"):
            rig.expand()
        with pytest.raises(Unavailable, match="s1"):
            rig.stats()


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def test_the_sandbox_made_anew_is_found_beside_the_old_one_s_note(rig: Rig) -> None:
    """Two notes: the first sandbox is gone."""
    rig.note("a-dead-one")
    vm = rig.vm("s2", noted=True)
    rig.disk_bytes = 2 * GIB
    assert rig.stats().usage
    assert rig.expand() == 2 * GIB
    assert vm.mounted == {DISK: 2 * GIB}


def test_two_live_sandboxes_and_one_has_the_volume(rig: Rig) -> None:
    first, second = rig.vm("s1", noted=True, mounted=False), rig.vm("s2", noted=True)
    assert rig.stats().usage
    assert [len(vm.calls) for vm in (first, second)] == [1, 1]


def test_without_a_note_the_young_sandboxes_are_asked(rig: Rig) -> None:
    """Kata's Rust runtime notes nothing."""
    old = rig.vm("old", older=True)
    other, vm = rig.vm("a", mounted=False), rig.vm("b")
    rig.disk_bytes = 2 * GIB
    assert rig.stats().usage
    assert rig.expand() == 2 * GIB
    assert vm.mounted == {DISK: 2 * GIB}
    assert len(other.calls) == 2
    assert not old.calls


def test_without_a_note_and_no_guest_that_has_it_nothing_is_claimed(rig: Rig) -> None:
    """A container may be about to mount it, with the size of before."""
    rig.vm("a", mounted=False)
    with pytest.raises(Unavailable, match="grows when it is mounted"):
        rig.expand()
    plain = rig.vm("b", mounted=False)
    plain.override["ResizeVolume"] = (12, "not supported", b"")
    with pytest.raises(Unavailable, match="not supported"):
        rig.expand()


def test_another_pod_s_sandbox_does_not_hold_up_a_mount(rig: Rig) -> None:
    """It started between this publish and kubelet's expansion; Kata noted it beside its own volume. With the
    pod's own sandbox noted beside another of the pod's volumes, the guest is asked."""
    other = rig.vm("other", mounted=False)
    rig.node.record("/no/directory").touch()
    for uid in ("22222222-2222-3333-4444-555555555555", POD_UID):
        target = rig.node.target("pvc-2", uid)
        publish(rig.plugin, target, volume_id=f"local:{uid}", context={"cloud-volume-path": f"disk-{uid}"})
        (rig.node.record(target) / "other").touch()
        if uid != POD_UID:
            assert rig.expand() == 2 * GIB
            assert not other.calls
            unpublish(rig.plugin, target, volume_id=f"local:{uid}")
    with pytest.raises(Unavailable):
        rig.expand()
    assert other.calls


def test_a_repaired_record_makes_every_sandbox_one_that_may_have_it(rig: Rig) -> None:
    """Since when the volume is published is not known any more, so nothing is ruled out."""
    vm = rig.vm("a", older=True)
    (rig.record / "mountInfo.json").write_bytes(b"{")
    publish(rig.plugin, rig.target)
    rig.stats()
    assert vm.calls


@pytest.mark.parametrize("code", [*range(1, 17), 99, -1])
@pytest.mark.parametrize("method", ["ResizeVolume", "GetVolumeStats"])
def test_no_code_of_a_guest_ends_an_expansion_for_good(rig: Rig, code: int, method: str) -> None:
    """INVALID_ARGUMENT, NOT_FOUND and OUT_OF_RANGE would: kubelet and external-resizer stop on them."""
    vm = rig.vm("s1", noted=True)
    vm.override[method] = (code, "[some-rule] the guest's words\n", b"left over")
    with pytest.raises(DriverError, match=r"\[some-rule\] the guest's words\?") as caught:
        rig.expand() if method == "ResizeVolume" else rig.stats()
    reached_and_can_not = code in (3, 7, 9, 12)
    assert caught.value.code is (
        grpc.StatusCode.FAILED_PRECONDITION if reached_and_can_not else grpc.StatusCode.UNAVAILABLE
    )


def test_the_table_of_codes_is_the_documented_one() -> None:
    page = (Path(driver.__file__).parents[1] / "docs/version-skew.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    told = {row[1].split()[0]: row[2].strip("`") for row in rows if len(row) > 3 and row[1][:1].isdigit()}
    assert told == {str(code): meaning.error.code.name for code, meaning in GUEST_CODES.items()}


def test_a_plain_kata_agent_is_told_from_a_refusal(rig: Rig) -> None:
    """Version skew: kata-agent alone, or the agent as guard (docs/version-skew.md)."""
    vm = rig.vm("s1", noted=True)
    vm.override["ResizeVolume"] = (12, "resize_volume is not implemented in kata-agent", b"")
    vm.override["GetVolumeStats"] = (13, "No such file or directory (os error 2)", b"")
    with pytest.raises(FailedPrecondition, match="PodVM image lacks confidential-csi-agent"):
        rig.expand()
    with pytest.raises(Unavailable, match="No such file"):
        rig.stats()


def test_a_guest_s_long_words_leave_room_for_what_to_do(rig: Rig) -> None:
    vm = rig.vm("s" * 64, noted=True)
    vm.override["ResizeVolume"] = (12, "\U0001f512" * 5000, b"")
    with pytest.raises(FailedPrecondition) as caught:
        rig.expand()
    message = bounded(str(caught.value))
    assert len(message.encode()) < 990
    assert message.endswith("started again)")


def test_a_guest_that_hangs_costs_its_caller_no_more_than_the_deadline(rig: Rig) -> None:
    rig.server("s1", None)
    rig.note("s1")
    for call in (rig.expand, rig.stats):
        started = time.monotonic()
        # Some of the time is kept for our own answer.
        with pytest.raises(Unavailable, match=r"no answer within 0\.[0-5] s"):
            call(timeout=0.6)
        assert time.monotonic() - started < 20


def test_a_guest_that_hangs_leaves_the_others_their_share(rig: Rig) -> None:
    rig.server("a", None)
    rig.note("a")
    vm = rig.vm("b", noted=True)
    assert rig.stats(timeout=3).usage
    assert vm.calls


@pytest.mark.parametrize(
    "answer", [b"", b"\0\0\0\2\0\0\0\1\2", b"HTTP/1.1 400 Bad Request\r\n", b"\xff" * 64]
)
def test_something_else_behind_the_socket_is_never_ok(rig: Rig, answer: bytes) -> None:
    rig.server("s1", answer)
    rig.note("s1")
    for call in (rig.expand, rig.stats):
        with pytest.raises(Unavailable):
            call()


def test_a_growing_volume_can_be_unpublished_and_is_grown_once_at_a_time(rig: Rig) -> None:
    rig.server("s1", None)
    rig.note("s1")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(rig.expand, timeout=60)
        asked = rig.hung.get(timeout=60)
        with pytest.raises(Aborted):
            rig.expand()
        unpublish(rig.plugin, rig.target)
        asked.shutdown(socket.SHUT_RDWR)
        with pytest.raises(Unavailable):
            first.result()
    with pytest.raises(NotFound):
        rig.expand()


def _link(path: Path) -> None:
    path.symlink_to("mountInfo.json")


def _directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("s1", _link),
        ("s1", _directory),
        ("s1", os.mkfifo),
        ("..s1", Path.touch),
        (".s1", Path.touch),
        ("-s1", Path.touch),
        ("s 1", Path.touch),
        ("s\n1", Path.touch),
        ("s" * 129, Path.touch),
        ("\u03b1", Path.touch),
    ],
)
def test_what_notes_no_sandbox_is_not_followed_and_not_passed_over(rig: Rig, name: str, make: object) -> None:
    vm = rig.vm("s1")
    assert callable(make)
    make(rig.record / name)
    for call in (rig.expand, rig.stats):
        with pytest.raises(Unavailable, match="notes no sandbox"):
            call()
    assert not vm.calls


def test_too_many_notes_are_not_all_asked(rig: Rig) -> None:
    for number in range(17):
        rig.note(f"s{number}")
    with pytest.raises(Unavailable, match="17 sandboxes"):
        rig.expand()


def test_no_symlink_leads_to_another_guest(rig: Rig) -> None:
    vm = rig.vm("victim")
    (rig.node.pods / "s1").symlink_to("victim")
    (rig.node.pods / "s2").mkdir()
    (rig.node.pods / "s2/agent.ttrpc").symlink_to("../victim/agent.ttrpc")
    for sandbox in ("s1", "s2"):
        rig.note(sandbox)
    for call in (rig.expand, rig.stats):
        with pytest.raises(Unavailable):
            call()
    assert not vm.calls


@contextmanager
def many_sandboxes(pods: Path) -> Iterator[PodSockets]:
    vm = PodVm(lambda _: GIB)
    with ExitStack() as stack:
        for name in ("a", "b"):
            stack.enter_context(vm.serving(pods, name))
        yield PodSockets(pods)


def test_only_sandboxes_with_a_socket_are_seen(tmp_path: Path) -> None:
    assert PodSockets(tmp_path / "none").made_since(0) == ()
    with many_sandboxes(tmp_path) as sockets:
        (tmp_path / "empty").mkdir()
        (tmp_path / ".hidden").mkdir()
        (tmp_path / "link").symlink_to("a")
        (tmp_path / "file").touch()
        assert sockets.made_since(0) == ("a", "b")
        assert sockets.made_since(time.time_ns() + 10**9) == ()
        made = (tmp_path / "a/agent.ttrpc").stat().st_mtime_ns
        assert "a" in sockets.made_since(made)
    (tmp_path / "root").touch()
    with pytest.raises(Unavailable, match="can't tell"):
        Guests(PodSockets(tmp_path / "root")).that_may_use(0, ())


def test_a_socket_deep_below_a_long_path_is_reached(tmp_path: Path) -> None:
    """A Unix socket's address holds 107 bytes, fewer than a root and a sandbox id may take."""
    deep = tmp_path / ("d" * 100)
    vm = PodVm(lambda _: GIB)
    vm.mount(DISK)
    with vm.serving(tmp_path, "s1"):
        deep.mkdir()
        (tmp_path / "s1").rename(deep / "s1")
        answer = Guests(PodSockets(deep)).stats(("s1",), DISK, 5)
        (deep / "s1").rename(tmp_path / "s1")
    assert answer.usage


numbers = st.integers(0, (1 << 64) - 1)
usages = st.lists(
    st.builds(
        agent_pb2.VolumeUsage,
        total=numbers,
        used=numbers,
        available=numbers,
        unit=st.integers(0, 4),
    ),
    max_size=4,
)


class Canned(PodSockets):
    """Answers without a socket: for properties of many answers."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(Path("/nowhere"))
        self._payload = payload

    def call(self, sandbox_id: str, service: str, method: str, payload: bytes, seconds: float) -> bytes:
        del sandbox_id, service, method, payload, seconds
        return self._payload


@given(usages | st.binary(max_size=40))
def test_no_figures_leave_the_range_that_the_specification_gives(
    answer: list[agent_pb2.VolumeUsage] | bytes,
) -> None:
    if isinstance(answer, list):
        answer = agent_pb2.VolumeStatsResponse(usage=answer).SerializeToString()
    try:
        told = Guests(Canned(answer)).stats(("s",), DISK, 1)
    except Unavailable:
        return
    assert told.volume_condition.message
    assert len({one.unit for one in told.usage}) == len(told.usage)
    for one in told.usage:
        assert one.unit in (BYTES, INODES)
        assert 0 <= one.used <= one.total < 1 << 63
        assert 0 <= one.available <= one.total


def test_many_callers_are_answered_at_once(rig: Rig) -> None:
    rig.vm("s1", noted=True)
    started = threading.Barrier(16)

    def one(_: int) -> int:
        started.wait(60)
        return len(rig.stats().usage)

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(16))) == [2] * 16


def test_stats_of_an_unknown_path_are_not_found(rig: Rig) -> None:
    """Field case C9."""
    for path in ("/unknown", "relative", "/" + "p" * 300, "../../etc", rig.target + "/", "/x\0y"):
        with pytest.raises(NotFound):
            stats(rig.plugin, path)
    unpublish(rig.plugin, rig.target)
    with pytest.raises(NotFound):
        rig.stats()
    assert isinstance(rig.plugin, NodeService)
