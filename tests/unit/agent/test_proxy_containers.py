"""What the proxy does to containers, with a Go client in front and a Go stand-in for kata-agent behind."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.holds import Holds
from agent.policy import AgentRules, Measurement, Policy, VolumeRules
from agent.proxy_calls import Workers
from agent.proxy_containers import Containers
from agent.ttrpc import Code
from tests.peers.kata import (
    CLOUD_VOLUMES,
    SERVICE,
    TARGET_PATH,
    GoAgent,
    OciMount,
    by_id,
    create_container,
    go_agent,
    text,
)
from tests.peers.ttrpc_go import GoCall, GoResult, go_calls
from tests.tools.waiting import eventually
from tests.unit.agent.proxy_support import REFUSAL, CountingVolumes, containers, unix_proxy

POD = "/var/lib/kubelet/pods/8c1f/volumes/kubernetes.io~csi"
CLAIM = f"{POD}/pvc-a/mount"
OTHER_CLAIM = f"{POD}/pvc-b/mount"
PLAIN = OciMount("/etc/hosts", "/run/shared/hosts", options=("rbind", "ro"))


def volume(index: int, mount_point: str, **changes: str) -> dict[str, dict[str, str]]:
    fields = {
        "mount_point": mount_point,
        "fs_type": "ext4",
        "lun": str(index),
        "disk_id": f"disk-{index}",
        "encrypt_type": "luks2",
        "key_id": "default/key/a",
    }
    return {f"vol-{index}": fields | changes}


class Pod:
    """A proxy with a stand-in for kata-agent behind it."""

    def __init__(self, path: Path, volumes: CountingVolumes, agent: GoAgent) -> None:
        self.path = path
        self.volumes = volumes
        self.agent = agent

    def call(self, method: str, payload: bytes, timeout_ms: int = 0) -> GoResult:
        (result,) = go_calls(self.path, [GoCall(SERVICE, method, payload, timeout_ms)])
        return result

    def create(
        self,
        container_id: str,
        mounts: list[OciMount],
        cloud_volumes: dict[str, dict[str, str]] | str,
        timeout_ms: int = 0,
    ) -> GoResult:
        value = cloud_volumes if isinstance(cloud_volumes, str) else json.dumps(cloud_volumes)
        payload = create_container(
            container_id, [PLAIN, *mounts], {CLOUD_VOLUMES: value, TARGET_PATH: f",{CLAIM}"}
        )
        return self.call("CreateContainer", payload, timeout_ms)

    def remove(self, container_id: str) -> GoResult:
        return self.call("RemoveContainer", by_id(container_id))

    def mounts(self) -> list[tuple[str, str, str, list[str]]]:
        """Of the last container that the agent got: destination, source, type, options."""
        spec = self.agent.calls("CreateContainer")[-1]["6"][0]
        return [(one["1"][0], one["2"][0], one["3"][0], one["4"]) for one in spec["5"]]


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    volumes = CountingVolumes()
    with (
        go_agent(tmp_path / "u") as agent,
        unix_proxy(tmp_path, containers(volumes, tmp_path / "state")) as path,
    ):
        yield Pod(path, volumes, agent)


def test_a_container_without_volumes_goes_through_byte_for_byte(pod: Pod) -> None:
    payload = create_container("c1", [PLAIN])
    result = pod.call("CreateContainer", payload)
    assert (result.code, result.payload) == (0, payload)
    assert pod.agent.calls("CreateContainer")[0]["payload"] == payload


def test_both_annotations_are_stripped_and_the_mount_points_at_the_volume(pod: Pod) -> None:
    options = ("rbind", "rprivate", "ro", "nosuid")
    assert pod.create("c1", [OciMount("/data", CLAIM, "ext4", options)], volume(0, "/data")).code == 0
    assert pod.mounts() == [
        ("/etc/hosts", "/run/shared/hosts", "bind", ["rbind", "ro"]),
        ("/data", "/run/cloud-volumes/vol-0", "bind", list(options)),
    ]
    (spec,) = pod.agent.calls("CreateContainer")[0]["6"]
    assert spec["7"] == [{"1": ["io.kubernetes.cri.name"], "2": ["c"]}]


def test_of_a_changed_container_everything_else_arrives_unchanged(pod: Pod) -> None:
    """Compared by a Go decoder that knows no message of ours, field by field, unknown ones included."""
    pod.call("CreateContainer", create_container("c1", [PLAIN, OciMount("/data", "/x")]))
    pod.create("c1", [OciMount("/data", "/x")], volume(0, "/data"))
    plain, changed = pod.agent.calls("CreateContainer")
    assert plain["6"][0]["5"][1].pop("2") == ["/x"]
    assert changed["6"][0]["5"][1].pop("2") == ["/run/cloud-volumes/vol-0"]
    del plain["payload"], changed["payload"]
    assert changed == plain
    assert changed["1234"] == ["\x00" + b"\x80 unknown in the request".hex()]
    assert changed["6"][0]["5"][1]["90"] == ["\x00" + b"\xff mount".hex()]


def test_paths_are_compared_as_the_kernel_reads_them(pod: Pod) -> None:
    mounts = [OciMount("/data/", "/x"), OciMount("//data/.", "/y"), OciMount("/data/inner", "/z")]
    assert pod.create("c1", mounts, volume(0, "/data/")).code == 0
    sources = [source for _, source, _, _ in pod.mounts()]
    assert sources[1:] == ["/run/cloud-volumes/vol-0"] * 2 + ["/z"]


def test_several_volumes_and_one_claim_at_two_paths(pod: Pod) -> None:
    """cloud-api-adaptor names one path of a claim, and numbers volumes by LUN, those of others counted."""
    mounts = [OciMount("/a", CLAIM), OciMount("/b", OTHER_CLAIM), OciMount("/again", CLAIM)]
    assert pod.create("c1", mounts, volume(1, "/a") | volume(4, "/b")).code == 0
    sources = [source for _, source, _, _ in pod.mounts()]
    assert sources[1:] == [
        "/run/cloud-volumes/vol-1",
        "/run/cloud-volumes/vol-4",
        "/run/cloud-volumes/vol-1",
    ]


def test_a_volume_is_closed_when_its_last_container_is_gone(pod: Pod) -> None:
    for container_id, path in (("c1", "/data"), ("c2", "/elsewhere")):
        assert pod.create(container_id, [OciMount(path, CLAIM)], volume(0, path)).code == 0
    assert pod.create("c3", [OciMount("/b", OTHER_CLAIM)], volume(1, "/b")).code == 0
    assert pod.remove("c1").code == 0
    assert pod.volumes.mounted == {"vol-0", "vol-1"}
    assert pod.remove("c1").code == 0, "a second time changes nothing"
    assert pod.remove("unknown").code == 0
    assert pod.volumes.mounted == {"vol-0", "vol-1"}
    assert pod.remove("c2").code == 0
    assert pod.volumes.mounted == {"vol-1"}
    assert pod.call("DestroySandbox", b"").code == 0
    assert pod.volumes.mounted == set()


def test_a_container_that_is_not_removed_keeps_its_volume(pod: Pod) -> None:
    assert pod.create("fail later", [], "").code == Code.FAILED_PRECONDITION
    pod.create("c1", [OciMount("/data", CLAIM)], volume(0, "/data"))
    assert pod.call("RemoveContainer", b"\xff").code == Code.INVALID_ARGUMENT
    assert pod.volumes.mounted == {"vol-0"}


def test_a_container_that_the_agent_refuses_lets_go_of_its_volumes(pod: Pod) -> None:
    pod.create("c1", [OciMount("/data", CLAIM)], volume(0, "/data"))
    both = [OciMount("/data", CLAIM), OciMount("/b", OTHER_CLAIM)]
    refused = pod.create("fail me", both, volume(0, "/data") | volume(1, "/b"))
    assert (refused.code, "the stand-in refuses" in refused.message) == (9, True)
    assert pod.volumes.mounted == {"vol-0"}
    # The same id again, while the first one lives: what it holds is its own.
    pod.remove("c1")
    assert pod.volumes.mounted == set()


def test_a_refusal_names_the_rule_and_the_agent_never_sees_the_request(pod: Pod) -> None:
    pod.volumes.refuse["vol-1"] = REFUSAL
    both = volume(0, "/data") | volume(1, "/b")
    result = pod.create("c1", [OciMount("/data", CLAIM), OciMount("/b", OTHER_CLAIM)], both)
    assert result.code == Code.FAILED_PRECONDITION
    assert "[header-not-authenticated]" in result.message
    assert "vol-1" in result.message
    pod.volumes.refuse["vol-1"] = Unavailable("device-missing", "x" * 2000)
    result = pod.create("c1", [OciMount("/b", OTHER_CLAIM)], volume(1, "/b"))
    assert result.code == Code.UNAVAILABLE
    assert "[device-missing]" in result.message
    assert len(result.message) < 1100
    for annotation, rule in (
        ("{", "annotation-malformed"),
        ("x" * 70000, "annotation-malformed"),
        (json.dumps(volume(0, "/")), "mount-point"),
        (json.dumps(volume(0, "/data", encrypt_type="")), "encryption-required"),
        (json.dumps(volume(0, "/nowhere")), "mount-missing"),
        (json.dumps(volume(0, "/data") | volume(1, "/again")), "mount-ambiguous"),
    ):
        mounts = [OciMount("/data", CLAIM), OciMount("/again", CLAIM)]
        result = pod.create("c1", mounts, annotation)
        assert (result.code, f"[{rule}]" in result.message) == (Code.FAILED_PRECONDITION, True), result
    assert pod.agent.calls("CreateContainer") == []
    assert pod.volumes.mounts == []


def test_a_claim_or_subpath_that_no_volume_covers_is_refused(pod: Pod) -> None:
    """The annotation was stripped: the container would write to scratch in the guest."""
    subpath = "/var/lib/kubelet/pods/8c1f/volume-subpaths/pvc-a/c/0"
    for source in (CLAIM, subpath):
        result = pod.call("CreateContainer", create_container("c1", [OciMount("/data", source)]))
        assert (result.code, "[volume-not-covered]" in result.message) == (9, True)
    result = pod.create("c1", [OciMount("/data", CLAIM), OciMount("/b", OTHER_CLAIM)], volume(0, "/data"))
    assert "[volume-not-covered]" in result.message
    assert pod.agent.calls("CreateContainer") == []


def test_the_policy_holds_at_each_place_of_a_volume(tmp_path: Path) -> None:
    policy = Policy({"/data": VolumeRules(key_id="default/key/a"), "/again": VolumeRules(key_id="x/y/z")})
    volumes = CountingVolumes()
    with (
        go_agent(tmp_path / "u") as agent,
        unix_proxy(tmp_path, containers(volumes, tmp_path / "state", policy)) as path,
    ):
        pod = Pod(path, volumes, agent)
        data, again = OciMount("/data", CLAIM), OciMount("/again", CLAIM)
        assert "[policy-key]" in pod.create("c1", [data, again], volume(0, "/data")).message
        assert "[policy-key]" in pod.create("c1", [data], volume(0, "/data", key_id="x/y/z")).message
        other = pod.create("c1", [OciMount("/other", CLAIM)], volume(0, "/other"))
        assert "[policy-destination]" in other.message
        assert volumes.mounts == []
        assert pod.create("c1", [data], volume(0, "/data")).code == 0


def test_the_policy_is_asked_once_and_what_was_checked_is_what_is_mounted(tmp_path: Path) -> None:
    """A policy from the key broker may change between two questions."""
    answers = [
        Policy({"/data": VolumeRules(key_id="default/key/a", minimum_size=size)}) for size in range(1, 9)
    ]
    left = iter(answers)
    volumes = CountingVolumes()
    takeovers = Containers(volumes, Holds(tmp_path / "state"), lambda: next(left), Workers()).takeovers()
    with go_agent(tmp_path / "u") as agent, unix_proxy(tmp_path, takeovers) as path:
        pod = Pod(path, volumes, agent)
        for count in (1, 2):
            assert pod.create(f"c{count}", [OciMount("/data", CLAIM)], volume(0, "/data")).code == 0
            assert volumes.policies == answers[:count]


def test_nothing_that_the_host_has_mounted_comes_between_a_container_and_its_volume(tmp_path: Path) -> None:
    policy = Policy(
        {"/data": VolumeRules(key_id="default/key/a")},
        frozenset({"/data/conf"}),
        AgentRules(Measurement.REQUIRED),
    )
    volumes = CountingVolumes()
    with (
        go_agent(tmp_path / "u") as agent,
        unix_proxy(tmp_path, containers(volumes, tmp_path / "state", policy)) as path,
    ):
        pod = Pod(path, volumes, agent)
        data = OciMount("/data", CLAIM)
        for mounts, rule in (
            ([data, OciMount("/data/sub", "/run/x")], "volume-shadowed"),
            ([OciMount("/data/sub", "/run/x"), data], "volume-shadowed"),
            ([data, OciMount("/", "/run/x")], "volume-shadowed"),
            ([data, OciMount("/data/../data2", "/run/x")], "mount-destination"),
            ([data, OciMount("/x", "/run/cloud-volumes/vol-0")], "mount-source"),
            ([data, OciMount("/x", "/run/x"), OciMount("/x/link", "/run/y")], "volume-shadowed"),
            ([data, OciMount("/x", "/z", "tmpfs"), OciMount("/x/link", "/run/y")], "volume-shadowed"),
            ([data, OciMount("/proc/self/root/data", "/dev/vdc", "ext4")], "mount-destination"),
        ):
            result = pod.create("c1", mounts, volume(0, "/data"))
            assert (result.code, f"[{rule}]" in result.message) == (9, True), result
        shared = create_container("c1", [data], {CLOUD_VOLUMES: json.dumps(volume(0, "/data"))})
        shared += text(8, text(1, "n") + text(2, "other") + text(3, "/mine") + text(5, "/data/sub"))
        assert "[volume-shadowed]" in pod.call("CreateContainer", shared).message
        assert volumes.mounts == []
        named = [data, OciMount("/data/conf", "/run/x", options=("rbind", "ro"))]
        assert pod.create("c1", named, volume(0, "/data")).code == 0
        assert [source for _, source, _, _ in pod.mounts()][1:] == ["/run/cloud-volumes/vol-0", "/run/x"]


def test_a_container_whose_root_is_a_volume_is_refused(pod: Pod) -> None:
    payload = create_container("c1", [PLAIN]) + text(6, text(3, text(1, "/run/cloud-volumes/vol-0")))
    result = pod.call("CreateContainer", payload)
    assert (result.code, "[mount-source]" in result.message) == (9, True), result
    assert pod.agent.calls("CreateContainer") == []


def test_a_volume_is_mounted_and_not_what_was_there_before_remounted(pod: Pod) -> None:
    data = OciMount("/data", CLAIM, options=("bind", "remount", "ro"))
    assert pod.create("c1", [data], volume(0, "/data")).code == 0
    assert pod.mounts()[1] == ("/data", "/run/cloud-volumes/vol-0", "bind", ["bind", "ro"])


@pytest.mark.parametrize(
    ("method", "number"), [("CreateContainer", 5), ("CreateSandbox", 3), ("UpdateEphemeralMounts", 1)]
)
def test_kata_agent_mounts_nothing_over_the_volumes_in_the_guest(pod: Pod, method: str, number: int) -> None:
    """Between our mount and its bind, the host would put its own directory in the volume's place."""

    def payload(mount_point: str) -> bytes:
        return text(number, text(1, "local") + text(6, mount_point) + text(70, b"\xff new"))

    base = create_container("c1", [PLAIN]) if method == "CreateContainer" else text(1234, b"\x80")
    for place in ("/run/cloud-volumes/vol-0", "/run/kata-containers/../cloud-volumes", "/run"):
        result = pod.call(method, base + payload(place))
        assert (result.code, "[guest-mount]" in result.message) == (9, True), result
    assert pod.agent.calls(method) == []
    assert pod.call(method, b"\x0a\xff").code == Code.INVALID_ARGUMENT
    harmless = base + payload("/run/kata-containers/sandbox/shm")
    assert pod.call(method, harmless).payload == harmless
    assert pod.agent.calls(method)[0]["payload"] == harmless


def test_a_container_remembers_whether_its_policy_shows_usage(tmp_path: Path) -> None:
    quiet = Policy({"/data": VolumeRules(key_id="default/key/a")}, agent=AgentRules(usage_figures=False))
    with (
        go_agent(tmp_path / "u") as agent,
        unix_proxy(tmp_path, containers(CountingVolumes(), tmp_path / "state", quiet)) as path,
    ):
        pod = Pod(path, CountingVolumes(), agent)
        assert pod.create("c1", [OciMount("/data", CLAIM)], volume(0, "/data")).code == 0
    after_restart = Holds(tmp_path / "state")
    assert not after_restart.shows_usage("vol-0")
    assert after_restart.shows_usage("vol-1")


def test_one_name_is_one_disk_as_long_as_it_is_held(pod: Pod) -> None:
    pod.create("c1", [OciMount("/data", CLAIM)], volume(0, "/data"))
    changed = pod.create("c2", [OciMount("/data", CLAIM)], volume(0, "/data", disk_id="another"))
    assert (changed.code, "[disk-differs]" in changed.message) == (9, True)
    pod.remove("c1")
    assert pod.create("c2", [OciMount("/data", CLAIM)], volume(0, "/data", disk_id="another")).code == 0


def test_a_volume_in_use_stays_until_the_sandbox_is_destroyed(pod: Pod) -> None:
    pod.create("c1", [OciMount("/data", CLAIM)], volume(0, "/data"))
    pod.volumes.busy.add("vol-0")
    assert pod.remove("c1").code == 0, "the container is gone all the same"
    assert pod.volumes.mounted == {"vol-0"}
    pod.volumes.busy.clear()
    assert pod.call("DestroySandbox", b"").code == 0
    assert pod.volumes.mounted == set()


def test_a_restarted_proxy_knows_which_containers_hold_what(tmp_path: Path) -> None:
    volumes = CountingVolumes()
    with go_agent(tmp_path / "u") as agent:
        for container_id in ("c1", "c2"):
            with unix_proxy(tmp_path, containers(volumes, tmp_path / "state")) as path:
                pod = Pod(path, volumes, agent)
                pod.create(container_id, [OciMount("/data", CLAIM)], volume(0, "/data"))
        with unix_proxy(tmp_path, containers(volumes, tmp_path / "state")) as path:
            pod = Pod(path, volumes, agent)
            pod.remove("c1")
            assert volumes.mounted == {"vol-0"}
            pod.remove("c2")
            assert volumes.mounted == set()


class Late(threading.Event):
    """Comes later than a caller waits who waits half a second."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        time.sleep(0.7)
        return True


def test_the_agent_gets_what_is_left_of_the_callers_time(pod: Pod) -> None:
    pod.volumes.delay = Late()
    late = pod.create("c1", [OciMount("/data", CLAIM)], volume(0, "/data"), timeout_ms=500)
    assert late.code or "deadline" in late.message
    eventually(lambda: pod.volumes.unmounts == ["vol-0"])
    assert pod.agent.calls("CreateContainer") == [], "the caller has given this container up"
    assert pod.volumes.mounted == set()


def test_when_the_agent_dies_the_volume_of_a_container_that_may_exist_stays(pod: Pod) -> None:
    result = pod.create("die now", [OciMount("/data", CLAIM)], volume(0, "/data"))
    assert result.code == Code.UNAVAILABLE
    assert pod.volumes.mounted == {"vol-0"}


def test_a_mount_that_takes_long_holds_up_no_other_call(pod: Pod) -> None:
    pod.volumes.delay.clear()
    slow = GoCall(
        SERVICE,
        "CreateContainer",
        create_container("c1", [OciMount("/data", CLAIM)], {CLOUD_VOLUMES: json.dumps(volume(0, "/data"))}),
    )
    others = [GoCall(SERVICE, "WaitProcess", by_id(f"c{i}")) for i in range(50)]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(go_calls, pod.path, [slow, *others])
        deadline = time.monotonic() + 60
        while len(pod.agent.calls("WaitProcess")) < 50:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        pod.volumes.delay.set()
        results = running.result(60)
    assert [one.code for one in results] == [0] * 51
    # The agent had all of them by then; the last answers may still have been under way.
    assert results[0].index != 0


def test_containers_come_and_go_side_by_side(pod: Pod) -> None:
    """Whatever the order, a volume is open while a container holds it, and closed in the end."""
    value = json.dumps(volume(0, "/data"))
    creates = [
        GoCall(
            SERVICE,
            "CreateContainer",
            create_container(f"c{i}", [OciMount("/data", CLAIM)], {CLOUD_VOLUMES: value}),
        )
        for i in range(30)
    ]
    removes = [GoCall(SERVICE, "RemoveContainer", by_id(f"c{i}")) for i in range(30)]
    assert not [one for one in go_calls(pod.path, creates) if one.code]
    assert pod.volumes.mounted == {"vol-0"}
    both = go_calls(pod.path, [call for pair in zip(creates, removes, strict=True) for call in pair])
    assert not [one for one in both if one.code]
    go_calls(pod.path, removes)
    assert pod.volumes.mounted == set()
