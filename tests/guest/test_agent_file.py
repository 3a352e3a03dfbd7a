"""The agent as one file under its own unit: a real systemd, as in a PodVM, in a real guest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.guest.pod import PLAINTEXT, Pod, volume
from tests.guest.sandbox import BUNDLES, call
from tests.peers.kata import CLOUD_VOLUMES, SERVICE, OciMount, by_id, create_container
from tests.tools.agent_file import agent_file

MIB = 2**20
LISTEN = "/run/confidential-csi-agent/kata-agent.sock"
KATA_AGENT = "/run/kata-containers/agent.sock"
CLAIM = "/var/lib/kubelet/pods/8c1f/volumes/kubernetes.io~csi/pvc-a/mount"

# Only /run is shared with the namespace in which systemd is process 1: there the stand-in for kata-agent,
# outside of it, must see what the service mounts. The targets are empty: nothing else is started.
_START = """
cp {agent} /usr/local/bin/confidential-csi-agent
mkdir -p /run/units /run/kata-containers
cp -a deploy/podvm/tree/common/etc/systemd/system/. deploy/podvm/tree/mode-b/etc/systemd/system/. /run/units
for target in sysinit basic shutdown paths multi-user; do echo '[Unit]' >/run/units/$target.target; done
mount --make-shared /run
cat >/run/start-systemd <<'end'
mount -t proc proc /proc
exec env -i SYSTEMD_UNIT_PATH=/run/units PATH=/usr/sbin:/usr/bin /usr/lib/systemd/systemd --system \
  --unit=multi-user.target --log-target=console --show-status=no
end
setsid unshare --fork --kill-child --pid --mount --propagation unchanged sh /run/start-systemd \
  </dev/null >/run/systemd.log 2>&1 & echo $! >/run/systemd.pid
"""
_STOP = f"""
kill -9 $(cat /run/systemd.pid)
while pgrep -x systemd >/dev/null; do sleep 0.05; done
mount --make-private /run
rm -rf /run/units {LISTEN} /run/confidential-csi-agent/containers.json /usr/local/bin/confidential-csi-agent
"""


@contextmanager
def systemd(pod: Pod) -> Iterator[None]:
    """The units of mode B, enabled, and a stand-in for kata-agent where it is in a PodVM."""
    pod.sh("mkdir -p /run/kata-containers")
    kata = pod.vm.call("tests.guest.inside.kata:start", socket_path=KATA_AGENT)
    try:
        pod.sh(_START.format(agent=agent_file()))
        wait = {"socket_path": LISTEN, "log": "/run/systemd.log", "seconds": 120.0}
        pod.vm.call("tests.guest.inside.agent:wait_until_it_listens", **wait, timeout=150)
        yield
    finally:
        pod.sh(_STOP)
        pod.vm.call("tests.guest.inside.agent:stop", pid=kata)


@pytest.fixture
def machine(pod: Pod) -> Iterator[Pod]:
    with systemd(pod):
        yield pod


def test_confined_by_its_unit_it_mounts_grows_and_unmounts(machine: Pod, ready_copy: Path) -> None:
    """Also, its mounts reach the containers, and its memory, with keys in it, is never dumped."""
    with ready_copy.open("r+b") as image:
        image.truncate(96 * MIB)
    machine.attach(ready_copy, "disk")
    annotations = {CLOUD_VOLUMES: json.dumps({"vol-0": volume("disk", fs_group="1234")})}
    request = create_container("c1", [OciMount("/data", CLAIM)], annotations)
    answer = call(machine, LISTEN, SERVICE, "CreateContainer", request)
    assert answer.code == 0, answer
    data = f"{BUNDLES}/c1/data"
    assert machine.read_file(data) == PLAINTEXT * 1000
    assert machine.sh(f"stat -c '%a %g' {data}") == b"2775 1234\n"
    blocks, size = (int(number) for number in machine.sh(f"stat -f -c '%b %S' {data}").split())
    assert blocks * size > 70 * MIB, "it was grown while mounted, which needs a capability"

    process = "/proc/$(pgrep -of 'confidential-csi-agent proxy')"  # the shell's words hold these, too
    confinement = machine.sh(f"cd {process}; cat status; grep core limits; tr '\\0' ' ' <cmdline").decode()
    for line in ("NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000009204019"):
        assert f"{line}\n" in confinement
    assert "Max core file size        0                    0 " in confinement
    assert "/usr/bin/python3 -IS /usr/local/bin/confidential-csi-agent proxy --mode middle" in confinement

    assert call(machine, LISTEN, SERVICE, "RemoveContainer", by_id("c1")).code == 0
    assert "cloud-volumes" not in machine.sh("cat /proc/mounts").decode()
