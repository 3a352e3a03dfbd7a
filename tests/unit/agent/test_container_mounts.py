"""What a container may get mounted beside its volumes: the host's orders, duplicates and nestings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.container_mounts import (
    ContainerMount,
    GuestMount,
    normalized,
    refuse_guest_mounts,
    refuse_root,
    refuse_uncovered,
)
from agent.errors import Refused
from agent.policy import DEFAULT_POLICY, Encryption, Policy, VolumeRules
from tests.unit.agent.policy_support import KEY_ID

LUKS = VolumeRules(key_id=KEY_ID)
POLICY = Policy({"/data": LUKS})
OTHERS = frozenset({"/srv"})
POD = "/var/lib/kubelet/pods/1111/"
SCRATCH = "/run/kata-containers/shared/x"


def volume(destination: str) -> ContainerMount:
    return ContainerMount(destination, "/whatever/the/host/wrote", is_volume=True)


def other(destination: str, source: str = SCRATCH) -> ContainerMount:
    return ContainerMount(destination, source)


def refusal(policy: Policy, *mounts: ContainerMount) -> str:
    with pytest.raises(Refused) as raised:
        refuse_uncovered(policy, mounts)
    assert len(str(raised.value).encode()) < 990
    return raised.value.rule


def test_a_named_destination_without_its_volume_is_refused() -> None:
    """A stripped annotation: the workload would write to the guest's scratch space."""
    assert refusal(POLICY, other("/data")) == "volume-not-covered"
    refuse_uncovered(POLICY, [volume("/data")])
    refuse_uncovered(Policy({}), [other("/data")])
    refuse_uncovered(DEFAULT_POLICY, [other("/data")])


@pytest.mark.parametrize("spelling", ["/data/", "//data", "///data", "/./data", "data", "/data/."])
def test_no_spelling_of_a_destination_slips_through(spelling: str) -> None:
    assert refusal(POLICY, other(spelling)) == "volume-not-covered"
    assert refusal(POLICY, volume("/data"), other(f"{spelling}/sub")) == "volume-shadowed"
    refuse_uncovered(POLICY, [volume(spelling)])


@pytest.mark.parametrize(
    "destination", ["/x/../data", "/data/../data2", "/..", "..", "/" + "a/" * 2048 + "b"]
)
@pytest.mark.parametrize("policy", [DEFAULT_POLICY, POLICY], ids=["default", "policy"])
def test_a_destination_that_leads_back_up_is_refused_even_for_a_volume(
    policy: Policy, destination: str
) -> None:
    """Where it leads depends on links in the image: ``/data`` may be one."""
    assert refusal(policy, other(destination)) == "mount-destination"
    assert refusal(policy, volume(destination)) == "mount-destination"


@pytest.mark.parametrize(
    "source",
    [
        POD + "volumes/kubernetes.io~csi/pvc-1/mount",
        POD + "volumes//kubernetes.io~csi/./pvc-1/mount",
        POD + "volumes/kubernetes.io~csi",
        POD + "volume-subpaths/pvc-1/app/0",
    ],
)
@pytest.mark.parametrize("policy", [DEFAULT_POLICY, POLICY], ids=["default", "policy"])
def test_a_csi_volume_or_subpath_that_nothing_covers_is_refused(policy: Policy, source: str) -> None:
    """CAA passes subpaths over: the container would write to an empty directory in the guest."""
    assert refusal(policy, volume("/data"), other("/elsewhere", source)) == "volume-not-covered"
    refuse_uncovered(policy, [ContainerMount("/elsewhere", source, is_volume=True)])


def test_another_drivers_volume_or_subpath_is_let_through_where_the_policy_names_its_place() -> None:
    policy = Policy({"/data": LUKS}, frozenset({"/secrets", "/etc/app.conf"}))
    mounts = [
        volume("/data"),
        other("/secrets/", POD + "volumes/kubernetes.io~csi/secrets-store/mount"),
        other("/etc/app.conf", POD + "volume-subpaths/config/app/0"),
    ]
    refuse_uncovered(policy, mounts)
    assert refusal(policy, *mounts, other("/secrets2", mounts[1].source)) == "volume-not-covered"


@pytest.mark.parametrize(
    "source",
    [
        "/run/secrets",
        "proc",
        "",
        POD + "volumes/kubernetes.io~secret/a",
        POD + "volumes/kubernetes.io~csi-not/a",
    ],
)
def test_other_mounts_are_left_alone(source: str) -> None:
    for destination in ("/etc/hosts", "/data2", "/dat", "/proc", "/dev/shm", "/home/data"):
        refuse_uncovered(POLICY, [volume("/data"), other(destination, source)])


@pytest.mark.parametrize("inner", ["/data/sub", "/data/sub/deeper", "/data/.hidden"])
def test_what_lies_within_a_named_place_is_refused_in_any_order(inner: str) -> None:
    """A write path within the volume that ends in the host's, or the guest's, own storage."""
    assert refusal(POLICY, volume("/data"), other(inner)) == "volume-shadowed"
    assert refusal(POLICY, other(inner), volume("/data")) == "volume-shadowed"
    assert refusal(POLICY, other(inner)) == "volume-shadowed", "a container without the volume"
    refuse_uncovered(DEFAULT_POLICY, [volume("/data"), other(inner)])


def test_what_lies_within_may_be_named_as_something_else_or_as_a_volume_of_its_own() -> None:
    named = Policy({"/data": LUKS}, frozenset({"/data/dashboards"}))
    refuse_uncovered(named, [volume("/data"), other("/data/dashboards")])
    assert refusal(named, volume("/data"), other("/data/dashboards/x")) == "volume-shadowed"
    nested = Policy({"/data": LUKS, "/data/wal": LUKS})
    refuse_uncovered(nested, [volume("/data"), volume("/data/wal")])
    assert refusal(nested, volume("/data"), other("/data/wal")) == "volume-not-covered"


@pytest.mark.parametrize("policy", [DEFAULT_POLICY, Policy({"/srv/app/data": LUKS}, frozenset({"/srv/app"}))])
@pytest.mark.parametrize("above", ["/srv/app", "/srv/app/", "//srv/./app"])
def test_a_mount_above_a_volume_that_comes_after_it_hides_it(policy: Policy, above: str) -> None:
    refuse_uncovered(policy, [other(above), volume("/srv/app/data")])
    assert refusal(policy, volume("/srv/app/data"), other(above)) == "volume-shadowed"
    # A second entry for the same volume, on top of it.
    refuse_uncovered(policy, [volume("/srv/app/data"), other(above), volume("/srv/app/data")])


def test_no_volume_hides_another_one() -> None:
    for policy in (DEFAULT_POLICY, Policy({"/data": LUKS, "/data/wal": LUKS})):
        refuse_uncovered(policy, [volume("/data"), volume("/data/wal")])
        assert refusal(policy, volume("/data/wal"), volume("/data")) == "volume-shadowed"


def test_a_mount_above_a_named_place_must_be_named() -> None:
    """A volume's mount point in a file system of the host's goes when the host removes the directory."""
    policy = Policy({"/srv/app/data": LUKS})
    for above in ("/", "/srv", "/srv/app"):
        assert refusal(policy, other(above), volume("/srv/app/data")) == "volume-shadowed"
        assert refusal(policy, other(above)) == "volume-shadowed"
    refuse_uncovered(policy, [other("/srv/app2"), volume("/srv/app/data")])


#: Ways to a volume in the VM: its directory, one above it, its device, a path that leads elsewhere for
#: kata-agent than for us.
WAYS_TO_A_VOLUME = [
    "/run/cloud-volumes/vol-0",
    "/var/run/cloud-volumes",
    "//run/./cloud-volumes/x",
    "/run",
    "/",
    "/run/peerpod",
    "/run/confidential-containers/cdh.sock",
    "/run/kata-containers",
    "/run/kata-containers/agent.sock",
    "/etc/confidential-csi/volumes.toml",
    "../../cloud-volumes/vol-0",
    "rootfs/../../../cloud-volumes",
    "/dev/mapper/caa-vol-0",
    "/dev/dm-1",
    "/proc/1/root/run/cloud-volumes/vol-0",
    "/proc/42/cwd",
]


@pytest.mark.parametrize("source", WAYS_TO_A_VOLUME)
@pytest.mark.parametrize("policy", [DEFAULT_POLICY, POLICY], ids=["default", "policy"])
def test_only_the_agent_puts_its_volumes_anywhere(policy: Policy, source: str) -> None:
    """Else the host would put a volume where the policy names none, or writable where it says read-only."""
    assert refusal(policy, other("/elsewhere", source)) == "mount-source"
    assert refusal(policy, volume("/data"), other("/x", "/run/confidential-csi-agent")) == "mount-source"


@pytest.mark.parametrize(
    "path",
    [
        "/run/cloud-volumes",
        "/run/cloud-volumes/vol-0",
        "/run/cloud-volumes/vol-0/sub",
        "/run/kata-containers/../cloud-volumes/vol-0",
        "/var/run/cloud-volumes/vol-0",
        "../run/cloud-volumes/vol-0",
        "/proc/1/root/run/cloud-volumes/vol-0",
        "/run/confidential-csi-agent/x",
        "/run",
        "/",
        "/run/peerpod",
        "/run/confidential-containers",
        "/etc",
        "/usr/sbin",
        "/run/cloud-volumes2",
        "/run/kata-containers",
        "//run/",
        "run",
        "/x\0",
        "/" + "x" * 4096,
    ],
)
def test_the_host_mounts_nothing_over_or_within_the_agents_directories(path: str) -> None:
    with pytest.raises(Refused, match=r"\[guest-mount\]") as raised:
        refuse_guest_mounts([GuestMount("/run/kata-containers/shared/x", "tmpfs"), GuestMount(path, "tmpfs")])
    assert len(str(raised.value).encode()) < 990


@pytest.mark.parametrize("source", WAYS_TO_A_VOLUME)
def test_the_host_shows_no_volume_elsewhere_in_the_vm(source: str) -> None:
    """From there it would bind it into a container, where no policy names it."""
    with pytest.raises(Refused, match=r"\[guest-mount\]"):
        refuse_guest_mounts([GuestMount("/run/kata-containers/x", source)])


def test_no_layer_of_an_overlay_is_a_volume() -> None:
    layers = ("xino=off", f"lowerdir={SCRATCH}:/run/cloud-volumes/vol-0", "upperdir=/run/kata-containers/y")
    with pytest.raises(Refused, match=r"\[guest-mount\]"):
        refuse_guest_mounts([GuestMount(SCRATCH, "none", layers)])
    overlay = ContainerMount("/x", "none", kind="overlay", options=layers)
    assert refusal(DEFAULT_POLICY, overlay) == "mount-source"
    refuse_guest_mounts([GuestMount(SCRATCH, "none", (f"lowerdir={SCRATCH}", "io.kata=/9j/4A=="))])


def test_a_link_that_leads_to_the_agents_directories_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/run/cloud-volumes")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(Refused, match=r"\[guest-mount\]"):
        refuse_guest_mounts([GuestMount(SCRATCH, f"{tmp_path}/link/vol-0")])
    assert refusal(DEFAULT_POLICY, other("/x", f"{tmp_path}/link/vol-0")) == "mount-source"
    (tmp_path / "dm-name-caa-vol-0").symlink_to("/dev/dm-1")
    assert refusal(DEFAULT_POLICY, other("/x", f"{tmp_path}/dm-name-caa-vol-0")) == "mount-source"
    refuse_guest_mounts([GuestMount(SCRATCH, f"{tmp_path}/loop")])


@pytest.mark.parametrize(
    "path",
    [
        "/run/kata-containers/c1/rootfs/srv",
        "/run/kata-containers/shared/containers/c1/rootfs/srv/data",
        "//run/./kata-containers/c1/rootfs//srv",
    ],
)
def test_the_host_mounts_nothing_below_the_root_of_a_container(path: str) -> None:
    """The kernel propagates it into the container that runs there, over the directory that holds a volume."""
    with pytest.raises(Refused, match=r"\[guest-mount\]"):
        refuse_guest_mounts([GuestMount(path, "/dev/vdc")])
    refuse_guest_mounts([GuestMount("/run/kata-containers/c1/rootfs", "docker.io/library/busybox")])


def test_no_container_has_a_volume_in_its_root() -> None:
    for path in WAYS_TO_A_VOLUME:
        with pytest.raises(Refused, match=r"\[mount-source\]"):
            refuse_root(path)
    for path in ("", "/run/kata-containers/c1/rootfs", "/run/kata-containers/shared/containers/c1/rootfs"):
        refuse_root(path)


@pytest.mark.parametrize(
    "destination",
    ["/proc/self/root/data", "//proc/self/root/data", "/proc/./1/cwd", "/x/self/root/data", "/y/1/root/data"],
)
@pytest.mark.parametrize("policy", [DEFAULT_POLICY, POLICY], ids=["default", "policy"])
def test_no_destination_leads_by_way_of_a_process(policy: Policy, destination: str) -> None:
    """kata-agent follows links within the container's root: this one leads to ``/data``."""
    mounts = [
        ContainerMount("/proc", "proc", kind="proc"),
        ContainerMount("/x", "whatever", kind="proc"),
        other("/y", "/proc"),
        volume("/data"),
    ]
    hostile = ContainerMount(destination, "/dev/vdc", kind="ext4")
    assert refusal(policy, *mounts, hostile) == "mount-destination"
    refuse_uncovered(policy, [*mounts, other("/proc/meminfo")])


def test_what_lies_within_a_mount_of_the_hosts_must_be_named_as_its_links_lead_anywhere() -> None:
    mounts = [volume("/data"), other("/conf")]
    assert refusal(POLICY, *mounts, other("/conf/link")) == "volume-shadowed"
    assert refusal(POLICY, *mounts, other("/conf/link/deeper")) == "volume-shadowed"
    refuse_uncovered(Policy({"/data": LUKS}, frozenset({"/conf/link"})), [*mounts, other("/conf/link")])
    refuse_uncovered(DEFAULT_POLICY, [*mounts, other("/conf/link")])
    for options in ((), ("nosuid", "mode=755")):
        device = ContainerMount("/dev", "tmpfs", kind="tmpfs", options=options)
        refuse_uncovered(POLICY, [volume("/data"), device, other("/dev/shm"), other("/dev/termination-log")])
    bound = ContainerMount("/dev", SCRATCH, kind="tmpfs", options=("nosuid", "rbind"))
    assert refusal(POLICY, volume("/data"), bound, other("/dev/link")) == "volume-shadowed"


def test_no_link_of_the_hosts_leads_an_unencrypted_volume_over_an_encrypted_one() -> None:
    plain = VolumeRules(encryption=Encryption.NONE)
    policy = Policy({"/data": LUKS, "/cache": plain, "/cache/link": plain, "/srv/link": plain}, OTHERS)
    refuse_uncovered(policy, [volume("/data"), volume("/cache")])
    refuse_uncovered(policy, [volume("/data"), volume("/srv/link")])
    assert refusal(policy, volume("/data"), volume("/cache"), volume("/cache/link")) == "volume-shadowed"
    assert refusal(policy, volume("/data"), other("/srv"), volume("/srv/link")) == "volume-shadowed"


def test_mounts_of_the_guest_elsewhere_are_left_alone() -> None:
    for path in ("", "/run/kata-containers/sandbox/shm", SCRATCH, "/run/kata-containers/c1/rootfs"):
        for source in ("", "shm", "/dev/vdb", "0000:00:01", "docker.io/library/busybox"):
            refuse_guest_mounts([GuestMount(path, source)])


_PARTS = st.sampled_from(["data", "sub", "srv", "", "."])
_PATHS = st.lists(_PARTS, max_size=4).map(lambda parts: "/" + "/".join(parts))
_MOUNTS = st.builds(ContainerMount, _PATHS, st.just(SCRATCH), st.booleans())


@given(st.lists(_MOUNTS, max_size=6))
def test_what_passes_leaves_each_named_place_to_its_volume(mounts: list[ContainerMount]) -> None:
    """Played through as the kernel would: the topmost mount at, within or above ``/data`` is a volume."""
    policy = Policy({"/data": LUKS, "/data/sub": LUKS})
    try:
        refuse_uncovered(policy, mounts)
    except Refused:
        return
    for place in ("/data", "/data/sub"):
        reached = None
        for mount in mounts:
            destination = normalized(mount.destination)
            if place == destination or f"{place}/".startswith(f"{destination.rstrip('/')}/"):
                reached = mount
        if any(normalized(mount.destination) == place for mount in mounts):
            assert reached is not None
            assert normalized(reached.destination) == place
            assert reached.is_volume
        assert not any(
            normalized(mount.destination).startswith(f"{place}/") and not mount.is_volume for mount in mounts
        )


@given(st.lists(st.builds(ContainerMount, st.text(max_size=300), st.text(max_size=300)), max_size=3))
@example([ContainerMount("\U0001f512" * 300, "\x7f" * 300)])
def test_no_mount_of_the_hosts_breaks_the_check(mounts: list[ContainerMount]) -> None:
    try:
        refuse_uncovered(POLICY, mounts)
        refuse_guest_mounts([GuestMount(mount.destination, mount.source) for mount in mounts])
    except Refused as refused:
        assert len(str(refused).encode()) < 990


def test_many_mounts_and_many_named_places_cost_little_time() -> None:
    policy = Policy({f"/{'d/' * 50}{number}": LUKS for number in range(2000)})
    mounts = [volume(f"/{'d/' * 50}{number}") for number in range(2000)]
    refuse_uncovered(policy, [*mounts, *(other(f"/x/{number}") for number in range(2000))])
