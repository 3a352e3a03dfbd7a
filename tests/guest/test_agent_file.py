"""The agent as one file in a real guest, run as its unit runs it: by the guest's own Python, confined."""

from __future__ import annotations

import re
from pathlib import Path

from tests.guest.pod import PLAINTEXT, SOURCE, Outcome, Pod
from tests.tools.agent_file import agent_file

MIB = 2**20
UNIT = Path(__file__).parents[2] / (
    "deploy/podvm/tree/common/etc/systemd/system/confidential-csi-agent.service.d/10-common.conf"
)


def confined(pod: Pod, *argv: str, stdin: str = "") -> Outcome:
    """Run it with the unit's capabilities and no new privileges, in an environment of a search path alone."""
    found = re.search(r"^CapabilityBoundingSet=(.+)$", UNIT.read_text(), re.MULTILINE)
    assert found
    capabilities = ",".join(["-all", *(f"+{name[4:].lower()}" for name in found[1].split())])
    done = pod.vm.run(
        [
            *("env", "-i", "PATH=/usr/sbin:/usr/bin", "setpriv", "--no-new-privs"),
            *(f"--bounding-set={capabilities}", f"--inh-caps={capabilities}", str(agent_file()), *argv),
        ],
        stdin=stdin.encode(),
        timeout=120.0,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_it_mounts_grows_and_unmounts_a_volume_as_its_unit_runs_it(pod: Pod, ready_copy: Path) -> None:
    """Field case I10: each command is a process of its own, and finds what those before it left."""
    with ready_copy.open("r+b") as image:
        image.truncate(96 * MIB)
    pod.attach(ready_copy, "disk")

    mounted = confined(
        pod, "mount", "--annotation", "-", stdin=pod.annotation("disk", fs_group="1234")
    ).result()
    assert mounted == {"volumes": [{"name": "vol-0", "mount_point": "/data", "source": SOURCE}]}
    assert pod.read_file() == PLAINTEXT * 1000
    blocks, size = (int(number) for number in pod.sh(f"stat -f -c '%b %S' {SOURCE}").split())
    assert blocks * size > 70 * MIB, "the filesystem was grown while mounted"
    assert pod.sh(f"stat -c '%a %g' {SOURCE}") == b"2775 1234\n"

    assert pod.status() == [{"name": "vol-0", "mounted": True, "open": True, "shielded": True}]
    assert confined(pod, "unmount", "--all").result() == {"unmounted": ["vol-0"]}
    assert pod.leftovers() == ""
