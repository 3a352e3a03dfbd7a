"""The proxy in a real guest: containers get real volumes, and kata-agent sees what it should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.pod import PLAINTEXT, SOURCE, MakeDisk, Pod, volume
from tests.guest.sandbox import BUNDLES, Sandbox, by_disk, sandbox
from tests.peers.kata import CLOUD_VOLUMES, TARGET_PATH, OciMount

CLAIM = "/var/lib/kubelet/pods/8c1f/volumes/kubernetes.io~csi/pvc-a/mount"
HOSTS = OciMount("/etc/hosts", "/bin", options=("rbind", "ro"))


@pytest.fixture
def box(pod: Pod) -> Iterator[Sandbox]:
    with sandbox(pod) as running:
        yield running


def test_containers_share_a_volume_which_closes_with_the_last_of_them(
    box: Sandbox, pod: Pod, ready_copy: Path
) -> None:
    """Field case I10. The second container mounts it read-only, at another path."""
    pod.attach(ready_copy, "disk")
    opens = len(pod.cdh.calls("SecureMount"))
    one = {"vol-0": volume("disk")}
    assert box.create("c1", [HOSTS, OciMount("/data", CLAIM)], one).code == 0
    reader = OciMount("/other/", CLAIM, options=("rbind", "ro"))
    assert box.create("c2", [reader], {"vol-0": volume("disk", mount_point="/other")}).code == 0
    first, second = box.seen()
    assert [mount.source for mount in first.OCI.Mounts] == [HOSTS.source, SOURCE]
    assert [mount.source for mount in second.OCI.Mounts] == [SOURCE]
    for seen in (first, second):
        assert not {CLOUD_VOLUMES, TARGET_PATH} & seen.OCI.Annotations.keys()

    assert pod.read_file(f"{BUNDLES}/c1/data") == PLAINTEXT * 1000
    pod.write_file(f"{BUNDLES}/c1/data")
    assert pod.run(f"touch {BUNDLES}/c2/other/x").returncode != 0, "ro is kept"
    assert len(pod.cdh.calls("SecureMount")) == opens + 1

    size, inodes = box.stats(by_disk("disk")).usage
    assert 40 << 20 < size.total < 60 << 20
    assert 0 < inodes.available < inodes.total

    assert box.remove("c1").code == 0
    assert pod.read_file(f"{BUNDLES}/c2/other") == PLAINTEXT * 1000
    assert box.remove("c2").code == 0
    assert pod.leftovers() == ""
    assert box.call("GetVolumeStats", b"").code == 12, "of other volumes kata-agent knows"


def test_a_container_that_kata_agent_refuses_leaves_nothing_open(
    box: Sandbox, pod: Pod, make_disk: MakeDisk
) -> None:
    """A new disk: it was initialized all the same, and is used by the next container."""
    pod.attach(make_disk("new", mib=32), "new")
    mount = OciMount("/data", CLAIM)
    box.create("fail", [mount], {"vol-0": volume("new")})
    assert [one.container_id for one in box.seen()] == ["fail"]
    assert pod.leftovers() == ""
    assert box.create("c1", [mount], {"vol-0": volume("new")}).code == 0
    assert box.remove("c1").code == 0
